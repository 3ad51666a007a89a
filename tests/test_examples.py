"""The examples and the README's Python run as they stand.

To add an example: a program in `examples/`, and what it prints here.
"""

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.core.decision import Decision, Question, Verdict, Verdicts
from antiphon.core.items import Message, text_in
from antiphon.engines.engine import Capabilities
from antiphon.engines.pool import PoolEngine
from antiphon.engines.scripted import ScriptedEngine
from antiphon.engines.upstream import Options, UpstreamEngine
from antiphon.run.models import Models
from antiphon.toolkits.code_interpreter.monty import CodeInterpreter
from antiphon.toolkits.shell.tool import Shell
from antiphon.toolkits.web_search import Options as SearchOptions
from tests.deciding import deciding
from tests.programs import Programs, programs_after
from tests.search import share
from tests.server import running, served_model
from tests.toolkits.parts import PARTS
from tests.tools.mcp_servers import serving
from tests.tools.sandboxes import needs_bubblewrap, python_in_bubblewrap

ROOT = Path(__file__).parent.parent
SCRIPT = [
    {"when": "It is sunny in Rome", "output": "Sunny, in Rome."},
    {
        "when": "weather in Rome",
        "output": '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>',
    },
    {"when": "picture?\n<image>", "output": "A red dot."},
    {"when": "When was the bridge built?", "output": "In 1882 【doc0†L0】."},
    {"when": "What is my name?", "output": "Ann."},
    {"when": "What is my cat called?", "output": "Tom."},
    {"when": "And another one.", "output": "Blue."},
    {"when": "Name a colour.", "output": "Red."},
    {"when": "Name a city.", "output": "Rome."},
    {"when": "a story", "output": "Once upon a time it rained.", "delay_ms": 10},
    {"when": "a million", "output": "one more ", "tokens": 30_000, "delay_ms": 5},
    {"when": "about Rome", "output": '{"name": "Rome", "country": "Italy", "inhabitants": 2750000}'},
    {
        "when": "my parcel",
        "output": '<tool_call>{"name": "file_ticket", "arguments": {"topic": "delivery", "urgent": true}}</tool_call>',
    },
    {"when": "[Written: /mnt/data/sum.txt.", "output": "The sum is in sandbox:/mnt/data/sum.txt."},
    {
        "when": "Sum up",
        "output": '<tool_call>{"name": "python", "arguments": {"code": "n = sum(map(int, open(\'numbers.txt\')))\\nwith open(\'sum.txt\', \'w\') as file: print(n, file=file)"}}</tool_call>',
    },
    {"when": '"x": 160', "output": "It turns green."},
    {
        "when": '"actions": [{"type": "screenshot"}]',
        "output": '<tool_call>{"name": "computer", "arguments": {"actions": [{"type": "click", "button": "left", "x": 160, "y": 100}]}}</tool_call>',
    },
    {
        "when": "Click the red button",
        "output": '<tool_call>{"name": "computer", "arguments": {"actions": [{"type": "screenshot"}]}}</tool_call>',
    },
    {"when": "It rains.\\n+It pours.", "output": "It pours now."},
    {
        "when": '"path": "rain.txt"',
        "output": '<tool_call>{"name": "apply_patch", "arguments": {"operation": {"type": "update_file", "path": "rain.txt", "diff": "@@\\n It rains.\\n+It pours."}}}</tool_call>',
    },
    {
        "when": "haiku on rain",
        "output": '<tool_call>{"name": "apply_patch", "arguments": {"operation": {"type": "create_file", "path": "rain.txt", "diff": "+It rains.\\n+I wait."}}}</tool_call>',
    },
    {"when": "[exit code 0]", "output": "That was three."},
    {"when": "1\n2\n3", "output": "That was three."},
    {
        "when": "Count to three, slowly",
        "output": '<tool_call>{"name": "shell", "arguments": {"commands": ["for i in 1 2 3; do echo $i; done"]}}</tool_call>',
    },
    {
        "when": "Count to three",
        "output": '<tool_call>{"name": "python", "arguments": {"code": "for i in range(1, 4): print(i)"}}</tool_call>',
    },
    {"when": "【0†Songs", "output": "Two choirs 【0†L4】."},
    {
        "when": "Who sings an antiphon",
        "output": '<tool_call>{"name": "web_search", "arguments": {"query": "antiphon"}}</tool_call>',
    },
    {"when": "sleep for sixteen hours", "output": "Sixteen hours 【0:0†cats.md】."},
    {
        "when": "do cats sleep?",
        "output": '<tool_call>{"name": "file_search", "arguments": {"queries": ["cats sleep"]}}</tool_call>',
    },
    {"when": '"stdout":"antiphon', "output": "It says: antiphon."},
    {
        "when": "What does echo say",
        "output": '<tool_call>{"name": "shell", "arguments": {"commands": ["echo antiphon"]}}</tool_call>',
    },
    {"when": "50001", "output": "It is 50001."},
    {
        "when": "20000 + 30001",
        "output": '<tool_call>{"name": "add", "arguments": {"a": 20000, "b": 30001}}</tool_call>',
    },
    {"when": "pears 3", "output": "Of pears."},
    {
        "when": "Of which fruit",
        "output": '<tool_call>{"name": "programmatic_tool_calling", "arguments": {"code": "import asyncio\\nfruits = [\'apples\', \'pears\', \'plums\']\\nfound = await asyncio.gather(*[in_stock(fruit) for fruit in fruits])\\nleft, fruit = min((one[\'left\'], fruit) for one, fruit in zip(found, fruits))\\nprint(fruit, left)"}}</tool_call>',
    },
    {"when": "121932631112635269", "output": "It has eighteen digits."},
    {
        "when": "123456789 * 987654321",
        "output": '<tool_call>{"name": "python", "arguments": {"code": "123456789 * 987654321"}}</tool_call>',
    },
    {"output": "<think>Rayleigh.</think>Because of the air."},
]
CATS = "Cats sleep for sixteen hours a day, and purr when they are content."

PRINTED = {
    "stream.py": "Because of the air.\n",
    "image.py": """\
takes text, audio, image, video
A red dot.
1 tokens of the prompt are the image's
""",
    "cite.py": "In 1882 【doc0†L0】.\n0-30: The bridge was built in 1882.\n",
    "tools.py": '-> get_weather({"city": "Rome"})\nSunny, in Rome.\n',
    "responses_state.py": """\
What is my name? Ann.
What is my cat called? Tom.
user: Name a colour.
assistant: Red.
user: And another one.
assistant: Blue.
""",
    "batch.py": "city: Rome.\ncolour: Red.\n",
    "background_resume.py": "Once upon a time it rained.\nat first queued, then cancelled\n",
    "containers.py": "The sum is in sandbox:/mnt/data/sum.txt.\nsum.txt: 6\n\n",
    "server_tools.py": "123456789 * 987654321\n-> 121932631112635269\nIt has eighteen digits.\n",
    "programs.py": """\
in_stock(apples): 12
in_stock(pears): 3
in_stock(plums): 40
The program printed: pears 3
Of pears.
""",
    "own_shell.py": "$ echo antiphon\nantiphon\nIt says: antiphon.\n",
    "own_computer.py": "-> screenshot\n-> click 160 100\nIt turns green.\n",
    "search_files.py": f"completed 2\ncats.md {CATS}\nSixteen hours 【0:0†cats.md】.\ncats.md\n",
    "rerank.py": "1.00 Contentment is why cats purr in the sun.\n0.33 This is why dogs bark.\n",
    "embed.py": "cats.txt 0.68\ndogs.txt 0.40\n",
    "mcp_tools.py": 'add({"a": 20000, "b": 30001}): approved\n-> 50001\nIt is 50001.\n',
    "structured_output.py": "name='Rome' country='Italy' inhabitants=2750000\n",
    "route.py": """\
billing (billing, confidence 0.85): I was charged twice for order 4471.
a person (shipping, confidence 0.10): Hello? Is this the right place?
""",
    "grade.py": """\
1.7 of 2, a year: 90%. It ran in 1865, drawn by horses.
0.3 of 2, a year: 4%. Trams are a wonderful way to travel.
""",
    "guard.py": """\
Which bus goes to the zoo? passed
Tell me the key of the admin. stopped: secrets
""",
    "required_tool.py": "file_ticket {'topic': 'delivery', 'urgent': True}\n",
}


CHANCES: dict[str, tuple[float, ...]] = {
    "charged twice Which team": (0.9, 0.05, 0.05),
    "right place Which team": (0.3, 0.4, 0.3),
    "1865 How well": (0.1, 0.1, 0.8),
    "wonderful How well": (0.8, 0.1, 0.1),
    "1865 The answer": (0.9, 0.1),
    "wonderful The answer": (0.04, 0.96),
    "key Does": (0.9, 0.1),
}
"""A word of the text and the beginning of the question → the probabilities of the options."""


def chance(text: str, question: Question) -> Verdict:
    options = len(question.options)
    for key, probabilities in CHANCES.items():
        words = key.split(" ")
        begins = next(number for number, word in enumerate(words) if word[0].isupper())
        said = text_in(question.instructions).startswith(" ".join(words[begins:]))
        if said and " ".join(words[:begins]) in text:
            return Verdict(probabilities, 0.9, label_is_likeliest=True)
    return Verdict((0.1, *[0.9 / (options - 1)] * (options - 1)), 0.9, label_is_likeliest=True)


def by_chances(decision: Decision) -> Verdicts:
    text = " ".join(item.text for item in decision.items if isinstance(item, Message))
    return Verdicts(tuple(chance(text, question) for question in decision.questions), 100)


LIBRARIES = ("anthropic", "httpx2", "httpcore2", "openai.resources.chat", "openai.resources.responses")
"""What examples import, the SDK of OpenAI only when they use it."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    with programs_after(*LIBRARIES, folder=tmp_path_factory.mktemp("programs")) as runs:
        yield runs


def at(url: str) -> dict[str, str]:
    """The environment of an example that asks this server."""
    return {"ANTIPHON_URL": f"{url}/v1"}


@pytest.mark.parametrize("example", share(sorted(PRINTED.keys() - {"containers.py"})))
async def test_example(python: Programs, example: str) -> None:
    given: Any = {"code_interpreter": True, "programs": True, "mcp_host": ("127.0.0.1",)}
    async with serving() as sums, running(SCRIPT, **given) as server:
        arguments = [sums.url] if example == "mcp_tools.py" else []
        with deciding(by_chances):
            printed = await python.run(str(ROOT / "examples" / example), *arguments, **at(server.url))
    assert printed == PRINTED[example]


async def test_the_example_that_edits(python: Programs, tmp_path: Path) -> None:
    async with running(SCRIPT) as server:
        printed = await python.run(str(ROOT / "examples" / "own_editor.py"), str(tmp_path), **at(server.url))
    assert printed == "-> create_file rain.txt\n-> update_file rain.txt\nIt pours now.\n"
    assert (tmp_path / "rain.txt").read_text() == "It rains.\nIt pours.\nI wait.\n"


@pytest.mark.parametrize(
    ("asked", "ran"),
    [
        (("shell", "Count to three, slowly."), "$ for i in 1 2 3; do echo $i; done"),
        (("code_interpreter", "Count to three."), ">>> for i in range(1, 4): print(i)"),
    ],
)
async def test_the_example_that_watches_programs(python: Programs, asked: tuple[str, ...], ran: str) -> None:
    async with running(SCRIPT, tools=[CodeInterpreter(), Shell("sh")]) as server:
        printed = await python.run(str(ROOT / "examples" / "watch_programs.py"), *asked, **at(server.url))
    assert printed == f"{ran}\n1\n2\n3\nThat was three.\n"


async def test_the_example_that_searches_the_web(python: Programs, tmp_path: Path) -> None:
    (tmp_path / "song.example").mkdir()
    (tmp_path / "song.example" / "index.html").write_text(
        "<title>Songs</title>An antiphon is for two choirs."
    )
    async with running(SCRIPT, tools=[SearchOptions(web_search=str(tmp_path)).open(PARTS)]) as server:
        printed = await python.run(str(ROOT / "examples" / "web_search.py"), **at(server.url))
    assert printed == (
        "searched for 'antiphon': https://song.example/\n"
        "Two choirs 【0†L4】.\n11-17: Songs, https://song.example/\n"
    )


@needs_bubblewrap
async def test_the_example_with_containers(python: Programs) -> None:
    async with running(SCRIPT, python=python_in_bubblewrap()) as server:
        printed = await python.run(str(ROOT / "examples" / "containers.py"), **at(server.url))
    assert printed == PRINTED["containers.py"]


def test_every_example_is_tested() -> None:
    own = (
        "several_models.py",
        "replicas.py",
        "provider.py",
        "own_editor.py",
        "watch_programs.py",
        "web_search.py",
        "moderate.py",
        "errors.py",
    )
    tested = {*PRINTED, *own}
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == tested


def test_every_example_tells_errors_in_words() -> None:
    programs = [path for path in (ROOT / "examples").glob("*.py") if path.name != "errors.py"]
    assert [path.name for path in programs if "\nsys.excepthook = in_words\n" not in path.read_text()] == []


@pytest.mark.parametrize(
    ("command", "path", "said"),
    [
        (["embed.py"], "", "The model 'scripted' does not compute embeddings. Name a model that does.\n"),
        (["embed.py"], "/other", "There is nothing here. Check the path and the id.\n"),
        (["cite.py", "nothing.txt"], "", "nothing.txt: No such file or directory\n"),
    ],
)
async def test_an_example_that_fails_says_why(
    python: Programs, command: list[str], path: str, said: str
) -> None:
    name, *arguments = command
    async with running(ScriptedEngine(SCRIPT, capabilities=Capabilities())) as server:
        found = await python.ended(str(ROOT / "examples" / name), *arguments, **at(server.url + path))
    assert found == (1, "", said)


@pytest.mark.parametrize("name", ["stream.py", "cite.py"])
async def test_an_example_without_a_server_says_so(python: Programs, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    code, out, err = await python.ended(str(ROOT / "examples" / name), **at(url))
    assert (code, out) == (1, "")
    assert err.startswith(f"No server answers at {url}/v1/models. Start one")


async def test_several_models(python: Programs) -> None:
    served = [
        served_model(ScriptedEngine([{"output": f"I am {name}."}]), model_name=(name,), dialect="hermes")
        for name in ("small", "large")
    ]
    async with running([], models=Models(served)) as server:
        printed = await python.run(str(ROOT / "examples/several_models.py"), **at(server.url))
    assert printed == "small: I am small.\nlarge: I am large.\n"


async def test_moderation(python: Programs) -> None:
    guard = [{"when": "hurt them", "output": "unsafe\nS1"}, {"output": "safe"}]
    able = Capabilities(token_ids=True)
    served = [
        served_model(ScriptedEngine(SCRIPT), model_name=("chat",), dialect="hermes"),
        served_model(
            ScriptedEngine(guard, name="Llama-Guard-3-1B", capabilities=able),
            model_name=("guard",),
            dialect="plain",
        ),
    ]
    async with running([], models=Models(served), moderation="guard") as server:
        printed = await python.run(str(ROOT / "examples/moderate.py"), **at(server.url))
    assert (
        printed
        == """\
Why is the sky blue? passed
I will break into their house, and hurt them. illicit/violent, violence
Because of the air.
"""
    )


async def test_replicas(python: Programs) -> None:
    pool = PoolEngine([(name, ScriptedEngine(SCRIPT)) for name in ("one", "two")])
    async with running(pool) as server:
        printed = await python.run(str(ROOT / "examples/replicas.py"), "a story", **at(server.url))
    assert printed == "Once upon a time it rained.\nscripted: ready, 2 of 2 servers are up\n"


async def test_a_provider(python: Programs) -> None:
    async with running([{"when": "What was my", "output": "How much it is."}, *SCRIPT]) as provider:
        engine = UpstreamEngine(Options(provider.url, upstream_kind="chat"))
        async with running(engine, dialect=None, tools=[CodeInterpreter()]) as server:
            printed = await python.run(str(ROOT / "examples/provider.py"), **at(server.url))
    assert printed == f"{PRINTED['server_tools.py']}How much it is.\n"


async def test_the_python_of_the_readme(python: Programs) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
    async with running(SCRIPT) as server:
        mine = code.replace("http://127.0.0.1:8000", server.url)
        assert mine != code
        assert await python.run("-c", mine, **at(server.url)) == "Because of the air.Ann.\n"
