"""Dialects in files: what is written is read back, whatever is wrong is told with its line, and modules."""

import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from antiphon.core.errors import EngineError
from antiphon.dialects.detection.detect import Evidence, choose, detect
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.own.file import parse
from antiphon.dialects.own.states import UnwritableError
from antiphon.dialects.own.writer import to_toml
from antiphon.dialects.registry import DIALECTS, check, find, load
from antiphon.run.inspect import inspect, lines
from tests.dialects.templates import MADE_UP, TAGS
from tests.dialects.test_derived_tags import TEMPLATES

UNWRITABLE: dict[str, str] = {}
"""The dialects that no file can hold, and why."""


def read(text: str) -> Dialect:
    return parse("my.toml", text, find)


def refused(text: str) -> str:
    with pytest.raises(EngineError) as error:
        read(text)
    return error.value.message


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.names[0])
def test_each_dialect_is_read_back_from_its_file(dialect: Dialect) -> None:
    if why := UNWRITABLE.get(dialect.names[0]):
        with pytest.raises(UnwritableError, match=why):
            to_toml(dialect)
        return
    back = read(to_toml(dialect))

    assert back == replace(dialect, names=dialect.names[:1])


@pytest.mark.parametrize("template", [*TEMPLATES.values(), MADE_UP], ids=[*TEMPLATES, "made up"])
def test_a_derived_dialect_is_read_back_from_what_inspect_prints(tmp_path: Path, template: str) -> None:
    source = tmp_path / "family.jinja"
    source.write_text(template)
    report = inspect(str(source))
    assert report.dialect_file is not None
    text = "\n".join(lines(report))
    printed = text.partition("for --dialect FILE.toml:\n")[2].partition("\n\nWhy this dialect")[0]
    file = tmp_path / "mine.toml"
    file.write_text(printed)

    found, derived = load(str(file)), detect(Evidence(template, ("family",))).dialect

    assert found.names == ("mine",)
    assert (found.grammar, found.call_format) == (derived.grammar, derived.call_format)
    assert "[calls]" in printed


def test_what_inspect_finds_in_known_families_is_no_file(tmp_path: Path) -> None:
    source = tmp_path / "family.jinja"
    source.write_text(TAGS)
    assert inspect(str(source)).dialect_file is None


def test_a_dialect_is_based_on_another_one() -> None:
    found = read('base = "hermes"\nids = "mistral"\nreplace = { tool_call = "use", think = "muse" }')

    assert found.grammar.markers == {"<use>", "</use>", "<muse>", "</muse>"}
    assert found.names == ("my",)
    assert found.tool_prompt is not None
    assert isinstance(found.tool_prompt.call, str)
    assert "<use>" in found.tool_prompt.call
    assert "tool_call" not in found.tool_prompt.system
    assert found.ids is find("mistral").ids


def test_the_base_of_messages_has_other_markers() -> None:
    found = read('base = "openai"\nreplace = { "<|message|>" = "<|body|>" }')

    assert "<|body|>" in found.grammar.markers
    assert found.answer_start == "<|end|><|start|>assistant<|channel|>final<|body|>"


def test_of_a_base_only_what_the_file_has_is_changed() -> None:
    found = read(
        'base = "glm45"\n[reasoning]\nstart = ["<a>", "<b>"]\nend = "</a>"\nagain = []\ncalls = false'
    )

    assert found.calls == find("glm45").calls
    assert found.reasoning is not None
    assert (found.reasoning.opens, found.reasoning.reopens) == (("<a>", "<b>"), ())
    assert not found.reasoning.calls


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = b\n", "my.toml is not TOML: Invalid value (at line 1, column 5)."),
        ('\nnme = "a"', "my.toml, line 2: nme: there is no such key. Did you mean name?"),
        ("name = 3", "my.toml, line 1: name: Expected `str | null`, got `int`."),
        ('ids = "x"', "my.toml, line 1: ids: there is no 'x'. Use one of: openai, mistral, kimi."),
        ('base = "x"', "my.toml, line 1: base: There is no dialect 'x'. Use one of: "),
        ('replace = { a = "b" }', "my.toml, line 1: replace: there is no base whose markers"),
        (
            'base = "hermes"\n[replace]\nx = "y"',
            "my.toml, line 3: replace.x: hermes has no such marker. It has:",
        ),
        (
            'base = "k2_horizon"\nreplace = { arg_key = "k" }',
            "my.toml, line 2: replace.arg_key: it is inside of a header of k2_horizon.",
        ),
        ('[reasoning]\nstart = "<a>"', 'my.toml, line 1: reasoning.end: it is missing. Write end = "…".'),
        ('[reasoning]\nstart = ""\nend = "b"', "my.toml, line 2: reasoning.start: Expected"),
        (
            '[calls]\nformat = "xml"',
            "my.toml, line 2: calls.format: it is one of: json, name_and_json, tags, python.",
        ),
        ('[calls]\nstart = "a"', "my.toml, line 1: calls.format: it is one of:"),
        ('[calls]\nformat = "json"', 'my.toml, line 1: calls.start: it is missing. Write start = "…".'),
        (
            '[calls]\nformat = "json"\nstart = "a"\nends = "b"',
            "my.toml, line 4: calls.ends: there is no such key. Did you mean end?",
        ),
        (
            '[calls]\nformat = "json"\nstart = "a"\n[states.text]\nkind = "text"',
            "my.toml, line 1: calls: a file has either [calls] or [states].",
        ),
        ('[grammar]\nstart = "a"', "my.toml, line 1: grammar: it needs [states.NAME] tables."),
        (
            '[states.text]\nkind = "txt"',
            "my.toml, line 2: states.text.kind: The kind of a state is one of: text,",
        ),
        (
            '[states.text]\nkind = "text"\non = { "<a>" = "b" }',
            "my.toml, line 3: states.text.on: there is no state 'b'. Add a table [states.b].",
        ),
        (
            '[states.text]\nkind = "text"\nthen = "b"',
            "my.toml, line 3: states.text.then: A state of the kind text has",
        ),
        ('[states.a]\nkind = "text"', "my.toml: grammar.start: there is no state 'text'. Name one of: a."),
        (
            '[states.text]\nkind = "text"\n[states.a]\nkind = "name"\non = { b = "text" }\nparse = "other"',
            "my.toml, line 6: states.a.parse: There is no parser 'other' for it. docs/dialects.md lists them.",
        ),
        (
            '[states.text]\nkind = "text"\n[states.a]\nkind = "key"\non = { b = "text" }\nparse.by = "typed_key"',
            "my.toml, line 6: states.a.parse: The parser typed_key takes other arguments: ",
        ),
        (
            '[states.text]\nkind = "name"\nparse = "plain_name"',
            "my.toml, line 1: states.text: A state of the kind name needs on.",
        ),
        (
            '[states.text]\nkind = "text"\n[states.a]\nkind = "json_calls"\nthen = "a"',
            "my.toml, line 5: states.a.then: the state 'a' reads no text between markers",
        ),
        (
            '[states.text]\nkind = "text"\npeek = { ab = "text" }',
            "my.toml, line 3: states.text.peek: 'ab' is longer",
        ),
        (
            '[states.text]\nkind = "text"\n[states.a]\nkind = "header"\nends = ["b"]\nroute = "plain_name"',
            "my.toml, line 6: states.a.route: There is no parser 'plain_name' for it.",
        ),
        (
            '[states.text]\nkind = "text"\n[states.a]\nkind = "key"\non = {}\nparse.by = "plain_key"\nparse.more = "b"',
            "my.toml, line 6: states.a.parse: The parser plain_key takes no arguments.",
        ),
        ("[states]\ntext = 3", "my.toml, line 2: states.text: A state is a table."),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_the_remedy(text: str, message: str) -> None:
    assert refused(text).startswith(message)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"Cannot read the dialect .*none\.toml: No such file"):
        check(str(tmp_path / "none.toml"))
    (tmp_path / "a.toml").write_bytes(b"\xff")
    with pytest.raises(EngineError, match=r"Cannot read the dialect .*a\.toml: "):
        load(str(tmp_path / "a.toml"))
    (tmp_path / "b.toml").write_bytes(b" " * (1024 * 1024 + 1))
    with pytest.raises(EngineError, match="more than 1048576 bytes"):
        load(str(tmp_path / "b.toml"))


def test_a_file_combines_with_a_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[calls]\nformat = "json"\nstart = "<use>"')

    assert load(f"mistral+{file}").reasoning == find("mistral").reasoning
    assert load(f"mistral+{file}").names == ("mistral+mine",)


def test_a_module_of_another_package_is_a_dialect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "my_formats"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mine.py").write_text(
        "from msgspec.structs import replace\n"
        "from antiphon.dialects.hermes import HERMES\n"
        "DIALECT = replace(HERMES, names=('mine',))\n"
    )
    (package / "none.py").write_text("DIALECT = 3\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert load("my_formats.mine").names == ("mine",)
    with pytest.raises(EngineError, match=r"my_formats\.none has no dialect\. Assign it: DIALECT = Dialect"):
        check("my_formats.none")
    with pytest.raises(EngineError, match=r"The dialect my_formats\.other cannot be imported: No module"):
        check("my_formats.other")
    for name in [each for each in sys.modules if each.startswith("my_formats")]:
        del sys.modules[name]


def test_what_is_found_by_name_opens_no_file() -> None:
    """Names in records of other servers are found so."""
    for name in ("/tmp/a.toml", "os.path"):  # noqa: S108
        with pytest.raises(EngineError, match="There is no dialect"):
            find(name)


def test_reasoning_tags_replace_those_of_the_dialect() -> None:
    found = choose("hermes", Evidence(TAGS), ("<a>", "</a>"))
    assert found.dialect.reasoning is not None
    assert found.dialect.grammar.markers == {"<a>", "</a>", "<tool_call>", "</tool_call>"}
    assert found.dialect.calls == find("hermes").calls
    assert choose(None, Evidence(TAGS), ("<a>", "</a>")).dialect.reasoning == found.dialect.reasoning
    assert choose("plain", Evidence(TAGS), ("<a>", "</a>")).dialect.reasoning is not None
    with pytest.raises(
        EngineError, match=r"'openai' does not write its reasoning between tags. Leave --reas"
    ):
        choose("openai", Evidence(TAGS), ("<a>", "</a>"))
