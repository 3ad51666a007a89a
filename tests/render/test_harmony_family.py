"""A family with a renderer of its own: who gets it, and who knows of it."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

import antiphon
from antiphon.core.accumulator import Accumulator
from antiphon.core.chunks import Chunk, Finish, FinishReason
from antiphon.core.items import FunctionCall, Reasoning
from antiphon.engines.scripted import ScriptedEngine
from antiphon.render.renderer import CHATML
from antiphon.run.model import Model
from tests.real_templates import marks, real_templates
from tests.render.support import WEATHER, say, turn
from tests.server import served_model

TEMPLATE = """\
<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.
Knowledge cutoff: 2024-06
Current date: {{ strftime_now("%Y-%m-%d") }}

Reasoning: medium

# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>
{%- for message in messages -%}
<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}"""
"""Greets as the family does, and knows little else."""

OTHERS = TEMPLATE.replace("ChatGPT", "someone else")

WHERE_IT_IS_KNOWN = {
    "dialects/openai.py",
    "dialects/beam.py",  # the same messages, with other arguments
    "dialects/dialect.py",  # its renderer, for comparison
    "dialects/own/file.py",  # its renderer by name, for dialects of one's own
    "dialects/detection/families.py",  # which models are of the family
    "apis/responses/previous.py",  # which of vLLM's messages are the family's
    "decode/headers.py",  # how its headers are read
    "render/harmony.py",
    "render/harmony_messages.py",
    "render/harmony_tools.py",
}


async def model(template: str | None, chat_template: str | None = None) -> Model:
    engine = ScriptedEngine([])
    engine.card = replace(engine.card, chat_template=template)
    return await served_model(engine, dialect="openai", template=chat_template).load()


async def is_native(model: Model) -> bool:
    prompt = await model.compose(turn(say("system", "Be brief."), say("user", "q")))
    return "# Instructions\n\nBe brief.<|end|>" in prompt.text


@pytest.mark.parametrize(
    ("template", "chat_template", "native"),
    [
        (TEMPLATE, None, True),
        (None, None, True),
        (OTHERS, None, False),  # another maker's model, that greets in its own name
        (CHATML, None, True),  # of another format than the dialect that was named
        (TEMPLATE, OTHERS, False),
        (TEMPLATE, TEMPLATE, False),  # a user's template has precedence
    ],
)
async def test_a_template_counts_only_if_it_says_something_else(
    template: str | None, chat_template: str | None, native: bool
) -> None:
    assert await is_native(await model(template, chat_template)) == native


class TestRealTemplates:
    pytestmark = marks

    @pytest.mark.parametrize(
        ("name", "native"), [("openai-gpt-oss-120b", True), ("llm-jp-llm-jp-4.1-8b-thinking", False)]
    )
    async def test_each_model_is_greeted_as_its_maker_does(self, name: str, native: bool) -> None:
        assert await is_native(await model(real_templates()[name])) == native


async def test_an_answer_goes_on_where_the_prompt_ends() -> None:
    served = await model(None)
    asked = turn(say("user", "How is the weather?"), tools=(WEATHER,))
    prompt = await served.compose(asked)
    assert prompt.text.endswith("<|start|>assistant")

    decoder, fold = served.decoder(asked, prompt), Accumulator()
    text = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to="
        'functions.get_weather <|constrain|>json<|message|>{"city": "Rome"}<|call|>'
    )
    for event in [*decoder.feed(Chunk(text)), *decoder.finish(Finish(FinishReason.STOP))]:
        fold.push(event)

    reasoning, call = fold.output.items
    assert reasoning == Reasoning("Hm.")
    assert isinstance(call, FunctionCall)
    assert (call.name, call.arguments) == ("get_weather", '{"city": "Rome"}')


def test_nobody_else_knows_of_the_family() -> None:
    """Everything that is special about it is in its dialect, its renderer and its header's form."""
    root = Path(antiphon.__file__).parent
    knowing = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if re.search("harmony|gpt.?oss", path.read_text(), re.IGNORECASE)
    }
    assert knowing == WHERE_IT_IS_KNOWN
