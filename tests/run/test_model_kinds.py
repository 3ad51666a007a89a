"""The contract of models, for a model that continues prompts, and for one on a server of conversations."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.core.errors import EngineError, RequestError
from antiphon.core.items import FunctionCall, FunctionOutput, Message, Role, TextPart
from antiphon.core.turn import PromptEnding, Turn
from antiphon.engines.scripted import ScriptedEngine
from antiphon.engines.upstream import Options, UpstreamEngine
from antiphon.tools.discovery import by_type
from antiphon.tools.tool import ServerTool
from tests.contracts.model import SCRIPT, ModelContract, Served, Serving
from tests.run.support import answered, fold, turn
from tests.server import running, served_model


class TestTokens(ModelContract):
    goes_on = True

    @pytest.fixture
    def served(self) -> Serving:
        @asynccontextmanager
        async def serving(
            script: list[dict[str, Any]], tools: Iterable[ServerTool] = ()
        ) -> AsyncIterator[Served]:
            engine = ScriptedEngine(script)
            served = served_model(engine, dialect="hermes", tools=by_type(tools))
            yield Served(await served.load(), engine)
            await served.unload()

        return serving


@asynccontextmanager
async def chats(
    script: list[dict[str, Any]], tools: Iterable[ServerTool] = (), kind: str = "chat", **options: Any
) -> AsyncIterator[Served]:
    """The model of another Antiphon, on a real socket, as a client of Chat Completions."""
    async with running(script) as behind:
        asking = UpstreamEngine(Options(behind.url, upstream_kind=kind, **options))
        served = served_model(asking, tools=by_type(tools))
        yield Served(await served.load(), behind.engine)
        await served.unload()


class TestMessages(ModelContract):
    """Another Antiphon, as a client of Anthropic's Messages."""

    goes_on = False

    @pytest.fixture
    def served(self) -> Serving:
        return partial(chats, kind="anthropic")


class TestChats(ModelContract):
    goes_on = False

    @pytest.fixture
    def served(self) -> Serving:
        return chats

    async def test_what_depends_on_prompts_is_refused_by_name(self, here: Served) -> None:
        for asked, param in (
            (Turn("m", prompt="Once"), "prompt"),
            (turn(prompt_limit=5), "truncate_prompt_tokens"),
            (
                turn(
                    template="{{ x }}",
                    parameters={"template": "chat_template"},
                ),
                "chat_template",
            ),
            (turn(prefix="So", parameters={"prefix": "response_prefix"}), "response_prefix"),
            (turn(ending=PromptEnding.CONTINUED, parameters={"conversation": "messages"}), "messages"),
            (turn(ending=PromptEnding.TRANSCRIPT), "add_generation_prompt"),
        ):
            with pytest.raises(RequestError) as error:
                await answered(asked, here.model)
            assert error.value.param == param
        assert not here.engine.seen

    async def test_there_are_no_tokens_but_estimates(self, here: Served) -> None:
        model = here.model
        assert await model.count(turn("x" * 400)) == (100, True)
        for asking, what in ((model.compose, turn()), (model.token_texts, [1]), (model.detokenize, [1])):
            with pytest.raises(RequestError) as error:
                await asking(what)  # type: ignore[operator]
            assert error.value.code == "conversations_only"

    async def test_a_conversation_that_does_not_fit_is_shortened_by_an_estimate(self) -> None:
        items = (
            Message(Role.SYSTEM, (TextPart("Be brief."),)),
            Message(Role.USER, (TextPart("old " * 300),)),
            FunctionCall("a", "f", "{}"),
            FunctionOutput("a", (TextPart("7"),)),
            Message(Role.USER, (TextPart("new"),)),
        )
        async with chats(SCRIPT, context=300) as here:
            await answered(Turn("m", items, shorten=True), here.model)
            prompt = here.engine.seen[-1].prompt.text
            assert "old" not in prompt
            assert "Be brief." in prompt
            assert "new" in prompt

    async def test_without_a_known_context_nothing_is_shortened(self) -> None:
        served = served_model(_Unknown())  # type: ignore[arg-type]
        with pytest.raises(RequestError) as error:
            await answered(turn(shorten=True), await served.load())
        assert error.value.param == "truncation"

    async def test_reasoning_goes_back_to_where_it_came_from(self, served: Serving) -> None:
        async with served(SCRIPT) as here:
            first = fold((await answered(turn("reason"), here.model)).events)
            items = (*turn("reason").items, *first.items, Message(Role.USER, (TextPart("Go on."),)))
            await answered(Turn("m", items), here.model)
            assert "Well:" in here.engine.seen[-1].prompt.text

    @pytest.mark.parametrize("option", [{"dialect": "hermes"}, {"template": "{{ messages }}"}])
    async def test_options_that_have_no_use_are_refused(self, option: dict[str, str]) -> None:
        with pytest.raises(EngineError) as error:
            await served_model(_Unknown(), **option).load()  # type: ignore[arg-type]
        assert "Leave it out" in error.value.message


class _Unknown:
    """An engine for conversations, of which nothing else is known."""

    def __init__(self) -> None:
        scripted = ScriptedEngine([])
        able = replace(scripted.card.capabilities, chat=True)
        self.card = replace(scripted.card, context=0, capabilities=able)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...
