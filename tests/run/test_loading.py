"""What a server does with the template of its model."""

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from antiphon.core.accumulator import Accumulator
from antiphon.core.chunks import Chunk, Finish, FinishReason
from antiphon.core.errors import EngineError
from antiphon.core.items import Item, Message, Reasoning, Role, TextPart
from antiphon.core.turn import Turn
from antiphon.engines.scripted import ScriptedEngine
from antiphon.run.model import Model
from tests.dialects.templates import CODER, MADE_UP, TAGS, THINKS
from tests.server import served_model

TURN = Turn("m", (Message(Role.USER, (TextPart("Hi"),)),))


async def started(template: str | None, dialect: str | None = None) -> tuple[Model, list[dict[str, object]]]:
    engine = ScriptedEngine([])
    engine.card = replace(engine.card, chat_template=template)
    with capture_logs() as logs:
        model = await served_model(engine, dialect=dialect).load()
    return model, [dict(entry) for entry in logs if entry["event"] == "dialect"]


async def test_the_choice_is_logged() -> None:
    model, [entry] = await started(TAGS)

    assert model.dialect.names[0] == "hermes"
    assert (entry["log_level"], entry["name"]) == ("info", "hermes")
    assert entry["why"]


async def test_a_doubtful_choice_is_a_warning() -> None:
    _, [entry] = await started(MADE_UP)

    assert entry["log_level"] == "warning"
    assert "--dialect" in str(entry["hint"])


@pytest.mark.parametrize("dialect", [None, "hermes"])
async def test_a_model_without_a_template_is_refused(dialect: str | None) -> None:
    with pytest.raises(EngineError, match=r"no chat template.*--chat-template.*chatml"):
        await started(None, dialect)


async def test_a_user_overrides() -> None:
    model, [entry] = await started(MADE_UP, "qwen3_coder")

    assert model.dialect.names[0] == "qwen3_coder"
    assert entry["log_level"] == "info"


MESSAGES = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
HEADER = "<|im_start|>assistant\n"
THINKS_UNASKED = MESSAGES + HEADER + "<think>\n"
"""Ignores `add_generation_prompt`."""
SPEAKS_UNASKED = MESSAGES + HEADER + "{% if add_generation_prompt %}<think>\n{% endif %}"
"""Only begins the reasoning when it is asked for a generation prompt."""


async def answered(template: str, turn: Turn, answer: str, dialect: str | None = None) -> tuple[Item, ...]:
    """The items of this answer, to a turn whose prompt ends in an opened thought."""
    model, _ = await started(template, dialect)
    prompt = await model.compose(turn)
    assert prompt.text.rpartition("<think>")[2].strip() == turn.prefix
    decoder, fold = model.decoder(turn, prompt), Accumulator()
    for event in [*decoder.feed(Chunk(answer)), *decoder.finish(Finish(FinishReason.STOP))]:
        fold.push(event)
    return fold.output.items


@pytest.mark.parametrize(
    "template",
    [THINKS, CODER.replace("assistant\\n' }}", "assistant\\n<think>\\n' }}"), THINKS_UNASKED, SPEAKS_UNASKED],
)
async def test_an_answer_begins_inside_the_thought_that_the_prompt_opens(template: str) -> None:
    items = await answered(template, TURN, "Hm.\n</think>\n\nSo.")

    assert items == (Reasoning("Hm."), Message(Role.ASSISTANT, (TextPart("So."),)))


@pytest.mark.parametrize("template", [THINKS_UNASKED, SPEAKS_UNASKED])
async def test_so_it_does_after_earlier_answers_and_behind_a_prefix(template: str) -> None:
    said = Message(Role.ASSISTANT, (TextPart("<think>\nAh.\n</think>\n\nHello"),))
    turn = replace(TURN, items=(*TURN.items, said, *TURN.items), prefix="Hm")
    items = await answered(template, turn, ".\n</think>\n\nSo.")

    assert items == (Reasoning("."), Message(Role.ASSISTANT, (TextPart("So."),)))
