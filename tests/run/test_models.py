"""What a server does with the template of its model."""

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from antiphon.core.accumulator import Accumulator
from antiphon.core.chunks import Chunk, Finish, FinishReason
from antiphon.core.errors import EngineError
from antiphon.core.items import Message, Reasoning, Role, TextPart
from antiphon.core.turn import Turn
from antiphon.engines.scripted import ScriptedEngine
from antiphon.run.models import Service
from tests.dialects.templates import CODER, MADE_UP, TAGS, THINKS

TURN = Turn("m", (Message(Role.USER, (TextPart("Hi"),)),))


async def started(
    template: str | None, dialect: str | None = None
) -> tuple[Service, list[dict[str, object]]]:
    engine = ScriptedEngine([])
    engine.card = replace(engine.card, chat_template=template)
    service = Service(engine, names=("m",), dialect=dialect)
    with capture_logs() as logs:
        await service.start()
    return service, [dict(entry) for entry in logs if entry["event"] == "dialect"]


async def test_the_choice_is_logged() -> None:
    service, [entry] = await started(TAGS)

    assert service.model("m").dialect.names[0] == "hermes"
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
    service, [entry] = await started(MADE_UP, "qwen3_coder")

    assert service.model("m").dialect.names[0] == "qwen3_coder"
    assert entry["log_level"] == "info"


@pytest.mark.parametrize(
    "template", [THINKS, CODER.replace("assistant\\n' }}", "assistant\\n<think>\\n' }}")]
)
async def test_an_answer_begins_inside_the_thought_that_the_prompt_opens(template: str) -> None:
    service, _ = await started(template)
    model = service.model("m")
    prompt = await model.prompt(TURN)
    assert prompt.text.endswith("<think>\n")

    decoder, fold = model.decoder(TURN, prompt), Accumulator()
    for event in [
        *decoder.feed(Chunk("Hm.\n</think>\n\nSo.")),
        *decoder.finish(Finish(FinishReason.STOP)),
    ]:
        fold.push(event)

    assert fold.output.items == (Reasoning("Hm."), Message(Role.ASSISTANT, (TextPart("So."),)))
