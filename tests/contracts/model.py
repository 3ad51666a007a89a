"""The contract of models for the layers above: the protocol `antiphon.run.model.Model`.

A test module inherits `ModelContract`, and defines `served`, which makes a model from a script. Scripts are
in the format of the dialect hermes, for any decoder.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from msgspec import Struct

from antiphon.core.accumulator import Output
from antiphon.core.chunks import FinishReason
from antiphon.core.constraint import JsonSchema
from antiphon.core.errors import EngineError, RequestError
from antiphon.core.events import (
    CallEnded,
    CallStarted,
    Event,
    Finished,
    ReasoningEnded,
    ReasoningStarted,
    TextEnded,
    TextStarted,
    ToolCallsPending,
    ToolResultReceived,
)
from antiphon.core.items import FunctionCall, FunctionOutput, Item, Message, Reasoning
from antiphon.core.turn import CallMode, Function, Sampling, ToolChoice, Turn
from antiphon.engines.scripted import ScriptedEngine
from antiphon.run.answer_source import AnswerSource
from antiphon.run.model import Model
from antiphon.run.replay import ReplayContext, ReplayLog, read_entries
from tests.acting import PYTHON, ActingTool
from tests.run.support import Heard, answered, fold, turn, until

THINKING = {"enable_thinking": True}
"""Some models show reasoning only on request."""
TOOLS = (Function("f", parameters={"type": "object"}), Function("g", parameters={"type": "object"}))
STARTS = (TextStarted, ReasoningStarted, CallStarted)
ENDS = (TextEnded, ReasoningEnded, CallEnded)


def called(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


RUN = called("python", '{"code": "6*7"}')
TWO_CALLS = called("f", '{"x": 1}') + called("g", "{}")
SCRIPT: list[dict[str, Any]] = [
    {"when": "<tool_response>", "output": "It is 42."},
    {"when": "run it", "output": f"Let me see.{RUN}"},
    {
        "when": "reason",
        "output": f"<think>Let me see.</think>Well: {TWO_CALLS}",
    },
    {"when": "break", "output": "word word word word", "fail_after": 3},
    {"when": "number", "output": '{"n": "none"}'},
    {"when": "endless", "output": "word ", "tokens": 20_000, "delay_ms": 1},
    {"output": "one two three four"},
]


class Served(Struct):
    """A model, and its engine, which plays the script."""

    model: Model
    engine: ScriptedEngine


Serving = Callable[..., AbstractAsyncContextManager[Served]]


def plain(item: Item) -> tuple[str, ...]:
    """The parts of an item that do not depend on its origin."""
    match item:
        case FunctionCall():
            return "call", item.name, item.arguments, item.status
        case FunctionOutput():
            return "output", item.text
        case Message():
            return "text", item.text
        case Reasoning():
            return "reasoning", item.text


def check(events: Sequence[Event]) -> Output:
    """The answer, whose events keep the rules."""
    open_: Any = None
    indexes = []
    for event in events:
        if isinstance(event, STARTS):
            assert open_ is None
            open_ = event
        elif isinstance(event, ENDS):
            assert open_ is not None
            assert event.index == open_.index
            assert event.item is not None
            indexes.append(event.index)
            open_ = None
        elif isinstance(event, ToolResultReceived):
            indexes.append(event.index)
    assert indexes == [*range(len(indexes))]
    *before, last = events
    assert isinstance(last, Finished)
    assert not any(isinstance(event, Finished) for event in before)
    return fold(events)


class ModelContract:
    """Inherit, and give it `served`."""

    goes_on: bool
    """An interrupted answer is continued from its text so far."""

    @pytest.fixture
    def served(self) -> Serving:
        raise NotImplementedError

    @pytest.fixture
    async def here(self, served: Serving) -> AsyncIterator[Served]:
        async with served(SCRIPT) as here:
            yield here

    async def said(self, here: Served, asked: Turn, **options: Any) -> Output:
        return check((await answered(asked, here.model, **options)).events)

    async def test_parts_of_an_answer_are_told_apart(self, here: Served) -> None:
        output = await self.said(here, turn("reason", variables=THINKING, tools=TOOLS))
        assert [plain(item) for item in output.items] == [
            ("reasoning", "Let me see."),
            ("text", "Well:"),
            ("call", "f", '{"x": 1}', "completed"),
            ("call", "g", "{}", "completed"),
        ]
        assert output.reason is FinishReason.STOP
        assert len({call.call_id for call in output.calls}) == 2

    async def test_it_tells_what_else_is_known_of_it(self, here: Served) -> None:
        traits = here.model.traits
        assert traits.calls
        assert bool(traits.family) is traits.reasons  # both are known of its dialect, if it has one

    async def test_what_was_used_is_counted(self, here: Served) -> None:
        heard = await answered(turn("hello"), here.model)
        usage = check(heard.events).usage
        assert usage.completion_tokens == 4
        assert sum(len(prompt.ids) for prompt in heard.prompts) + usage.prompt_tokens > 0

    async def test_tokens_are_limited(self, here: Served) -> None:
        output = await self.said(here, turn("hello", sampling=Sampling(max_tokens=2)))
        assert (output.text.split(), output.reason) == (["one", "two"], FinishReason.LENGTH)

    async def test_a_stop_string_ends_the_answer_and_is_named(self, here: Served) -> None:
        output = await self.said(here, turn("hello", stop=("three",)))
        assert (output.text, output.stop, output.reason) == ("one two ", "three", FinishReason.STOP)
        await until(lambda: not here.engine.load.running)

    async def test_calls_are_those_that_may_be(self, here: Served) -> None:
        for choice, names in (
            (ToolChoice(CallMode.AUTO, parallel=False), ["f"]),
            (ToolChoice(CallMode.AUTO, frozenset({"g"})), ["g"]),
        ):
            output = await self.said(
                here, turn("reason", variables=THINKING, tools=TOOLS, tool_choice=choice)
            )
            assert [call.name for call in output.calls] == names

    async def test_a_demand_that_is_not_met_is_told(self, here: Served) -> None:
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
        output = await self.said(here, turn("a number", format=JsonSchema(schema)))
        assert output.text == '{"n": "none"}'
        assert "/n" in output.unmet[0]
        required = ToolChoice(CallMode.REQUIRED)
        assert "tool_choice" in (await self.said(here, turn("x", tools=TOOLS, tool_choice=required))).unmet[0]

    async def test_each_choice_is_whole(self, here: Served) -> None:
        heard = await answered(turn("hello", choices=3), here.model)
        assert [check(events).text for events in heard.choices.values()] == ["one two three four"] * 3

    async def test_what_it_cannot_do_is_refused_by_name(self, here: Served) -> None:
        with pytest.raises(RequestError) as error:
            await answered(turn("hello", sampling=Sampling(beam_width=2)), here.model)
        assert error.value.param == "use_beam_search"
        assert not here.engine.seen

    async def test_a_failure_in_the_middle(self, here: Served) -> None:
        heard = Heard()
        source = AnswerSource([turn("break")], here.model)
        with pytest.raises(EngineError):
            await source.run(heard)
        for choice, events in source.abandon():
            heard.push(choice, events)
        output = check(heard.events)
        assert (output.text.split(), output.reason) == (["word"] * 3, FinishReason.ERROR)

    async def test_a_client_that_leaves_stops_it(self, here: Served) -> None:
        heard = await answered(turn("endless"), here.model, leave_after=5)
        assert len(heard.events) >= 5
        await until(lambda: not here.engine.load.running)
        assert here.engine.steps < 10_000

    async def test_a_client_that_does_not_read_loses_nothing(self, here: Served) -> None:
        heard = Heard()
        heard.hold()
        running = asyncio.create_task(
            AnswerSource([turn("reason", variables=THINKING, tools=TOOLS)], here.model).run(heard)
        )
        await until(lambda: here.engine.seen and not here.engine.load.running)
        await asyncio.sleep(0.05)
        assert not heard.events
        heard.resume()
        await running
        assert check(heard.events).text == "Well:"
        assert len(heard.batches) == 1

    async def test_the_tools_of_the_server_are_run(self, served: Serving) -> None:
        tool = ActingTool()
        async with served(SCRIPT, tools=[tool]) as here:
            events = (await answered(turn("run it", tools=(PYTHON,)), here.model)).events
            assert [plain(item) for item in check(events).items] == [
                ("text", "Let me see."),
                ("call", "python", '{"code": "6*7"}', "completed"),
                ("output", "42\n"),
                ("text", "It is 42."),
            ]
            assert sum(isinstance(event, ToolCallsPending) for event in events) == 1
            assert "42" in here.engine.seen[-1].prompt.text

    async def test_an_answer_is_repeated_as_it_was_recorded(self, served: Serving) -> None:
        """Up to the result of a tool: then another generation follows."""
        tool, log = ActingTool(), ReplayLog()
        async with served(SCRIPT, tools=[tool]) as here:
            asked = turn("run it", tools=(PYTHON,))
            first = (await answered(asked, here.model, ReplayContext(log))).events
            entries = read_entries([log.new()])
            at = next(i for i, entry in enumerate(entries) if type(entry).__name__ == "ToolResultEntry")
            again = (await answered(asked, here.model, ReplayContext(ReplayLog(entries[: at + 1])))).events
            assert fold(again).text == fold(first).text
            assert ("python", {"code": "6*7"}) in tool.done
            assert len(here.engine.seen) == 3

    async def test_an_answer_that_was_interrupted(self, here: Served) -> None:
        log = ReplayLog()
        await answered(turn("hello"), here.model, ReplayContext(log))
        entries = read_entries([log.new()])
        context = ReplayContext(ReplayLog(entries[:2]))
        if self.goes_on:
            await answered(turn("hello"), here.model, context)
            assert here.engine.seen[-1].answer_start
        else:
            with pytest.raises(EngineError) as error:
                await answered(turn("hello"), here.model, context)
            assert "interrupted" in error.value.message
