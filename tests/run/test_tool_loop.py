"""The tool loop: what the model gets of its calls, and when the answer ends."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.core.accumulator import Accumulator
from antiphon.core.chunks import FinishReason
from antiphon.core.errors import EngineError, EngineNotReadyError, RequestError
from antiphon.core.events import (
    CallStarted,
    Event,
    Finished,
    ToolCallsPending,
    ToolPrinted,
    ToolResultReceived,
)
from antiphon.core.items import FunctionCall, FunctionOutput, Message, Role, Status, TextPart
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.tool_result import OutputCallback, ToolResult, ignore_output
from antiphon.core.turn import CallMode, Function, Hosted, PromptEnding, Sampling, ToolChoice, Turn
from antiphon.engines.scripted import ScriptedEngine
from antiphon.run import tool_calls, tool_sessions
from antiphon.run.answer_source import AnswerSource
from antiphon.run.drive import Driver
from antiphon.run.model import Model
from antiphon.run.replay import ReplayContext, ReplayLog, read_entries
from antiphon.run.tool_loop import ToolLoop
from antiphon.toolkits.code_interpreter.details import ProgramDetails
from antiphon.toolkits.registry import built_in
from antiphon.tools.discovery import by_type
from antiphon.tools.tool import RequestedTool
from tests.acting import PYTHON, ActingSession, ActingTool, TakingTurns, hermes_turns
from tests.laws import merge
from tests.run.support import LONGEST_WAIT, Heard, answered, fold, raw, turn, until
from tests.run.test_drive import Words
from tests.search import examples
from tests.server import served_model

SHELL = Function("shell", "Runs.", {"type": "object"}, hosted=Hosted("shell", "run"))
SEARCHING = replace(PYTHON, hosted=Hosted("code_interpreter", "python", parallel=True, idempotent=True))
"""A function whose calls may run side by side."""
OWN = Function("noon", "The client's.", {"type": "object", "properties": {}})


def called(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


RUN = called("python", '{"code": "print(42)"}')


async def model_of(
    *answers: str, tool: ActingTool | Sequence[ActingTool], limits: Limits = DEFAULTS, **options: Any
) -> tuple[Model, TakingTurns]:
    engine = TakingTurns(*answers, **options)
    tools = by_type([tool] if isinstance(tool, ActingTool) else tool)
    return await served_model(engine, dialect="hermes", tools=tools, limits=limits).load(), engine


async def said(
    asked: Turn,
    model: Model,
    context: ReplayContext = ReplayContext(),  # noqa: B008 (frozen)
    leave_after: float = float("inf"),
) -> list[Event]:
    return (await answered(asked, model, context, leave_after)).events


def asking(**options: Any) -> Turn:
    return turn(**{"tools": (PYTHON,), **options})


async def test_the_model_goes_on_with_what_the_tool_said() -> None:
    tool = ActingTool()
    model, _ = await model_of(f"Let me see.{RUN}", "It is 42.", tool=tool)
    events = await said(asking(), model)
    output = fold(events)
    call, answer = output.items[1:3]
    assert isinstance(call, FunctionCall)
    assert call.hosted
    assert isinstance(answer, FunctionOutput)
    assert (answer.call_id, answer.text) == (call.call_id, "42\n")
    assert output.text == "Let me see.\n\nIt is 42."
    assert (output.calls, output.reason) == ((), FinishReason.STOP)
    assert tool.done == [("open", {}), ("python", {"code": "print(42)"}), ("close", None)]
    kinds = [
        type(event) for event in events if isinstance(event, ToolCallsPending | ToolResultReceived | Finished)
    ]
    assert kinds == [ToolCallsPending, ToolResultReceived, Finished]


async def test_the_next_prompt_holds_the_call_and_its_result_and_its_tokens_count() -> None:
    model, engine = await model_of(RUN, "It is 42.", tool=ActingTool())
    asked = asking()
    first = await model.compose(asked)
    usage = fold(await said(asked, model)).usage
    second = engine.seen[1].prompt
    assert "print(42)" in second.text
    assert "42\n" in second.text
    assert second.text.startswith(first.text)
    assert usage.prompt_tokens == len(second.ids)
    assert usage.completion_tokens == len(RUN) + len("It is 42.")


async def test_the_raw_text_of_all_generations_is_kept() -> None:
    model, _ = await model_of(f"A{RUN}", f"B{RUN}", "C", tool=ActingTool())
    events = await said(asking(), model)
    assert raw(events) == f"A{RUN}B{RUN}C"


async def test_several_calls_are_answered_in_their_order() -> None:
    tool = ActingTool(results=[ToolResult("one"), ToolResult("two"), ToolResult("?")])
    model, _ = await model_of(f"{RUN}\n{RUN}", "Done.", tool=tool)
    output = fold(await said(asking(), model))
    assert [item.text for item in output.items if isinstance(item, FunctionOutput)] == ["one", "two"]


async def test_the_clients_own_call_ends_the_answer() -> None:
    tool = ActingTool()
    model, engine = await model_of(RUN + "\n" + called("noon", "{}"), tool=tool)
    output = fold(await said(asking(tools=(PYTHON, OWN)), model))
    assert [call.name for call in output.calls] == ["noon"]
    assert ("python", {"code": "print(42)"}) in tool.done
    assert len(engine.seen) == 1


async def test_a_client_without_server_tools_is_not_served() -> None:
    tool = ActingTool()
    mine = Function("python", parameters=PYTHON.parameters)
    model, _ = await model_of(RUN, tool=tool)
    output = fold(await said(asking(tools=(mine,)), model))
    assert [call.name for call in output.calls] == ["python"]
    assert tool.done == []


# What goes wrong


async def test_arguments_that_are_no_json_are_told_to_the_model() -> None:
    tool = ActingTool()
    model, engine = await model_of(called("python", '{"code": '), "Sorry.", tool=tool)
    output = fold(await said(asking(), model))
    assert output.text == "Sorry."
    assert "not a JSON object" in engine.seen[1].prompt.text
    assert tool.done == []


async def test_a_tool_that_raises_does_not_break_the_answer() -> None:
    model, engine = await model_of(RUN, "Then not.", tool=ActingTool(results=[OSError("secret path")]))
    output = fold(await said(asking(), model))
    assert output.text == "Then not."
    assert "secret" not in engine.seen[1].prompt.text


async def test_leaving_stops_the_tool() -> None:
    tool = ActingTool(results=[None])
    model, _ = await model_of(RUN, tool=tool)
    task = asyncio.create_task(said(asking(), model))
    await tool.running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tool.done[-1] == ("close", None)


# Limits


async def test_a_cut_call_is_not_run() -> None:
    tool = ActingTool()
    model, _ = await model_of(RUN, tool=tool)
    output = fold(await said(asking(sampling=Sampling(max_tokens=len(RUN) - 15)), model))
    assert output.reason is FinishReason.LENGTH
    assert tool.done == []


async def test_tokens_are_limited_over_all_generations() -> None:
    model, _ = await model_of(RUN, "It is 42.", tool=ActingTool())
    output = fold(await said(asking(sampling=Sampling(max_tokens=len(RUN) + 2)), model))
    assert (output.text, output.reason) == ("It", FinishReason.LENGTH)
    model, _ = await model_of(RUN, "It is 42.", tool=ActingTool())
    output = fold(await said(asking(sampling=Sampling(max_tokens=len(RUN))), model))
    assert (output.text, output.reason) == ("", FinishReason.LENGTH)


async def test_calls_are_limited() -> None:
    tool = ActingTool()
    model, engine = await model_of(f"{RUN}\n{RUN}", f"{RUN}So.", tool=tool)
    output = fold(await said(asking(tool_limit=1), model))
    assert [action for action, _ in tool.done] == ["open", "python", "close"]
    assert "No more tools" in engine.seen[1].prompt.text
    assert output.text == "So."


SPENT: list[tuple[dict[str, int], int, int]] = [
    ({"tool_calls": 2}, 2, 2),
    ({"calls_per_tool": 2}, 2, 2),
    ({"generation_tokens": 1}, 1, 0),  # the generation that calls has more
    ({"tokens_per_tool": 4}, 2, 2),  # each result has 2
]
"""Limits, how many calls are made, and how many are run."""


@pytest.mark.parametrize(("limits", "made", "run"), SPENT)
@pytest.mark.parametrize("end", ["So.", RUN, "", " "])
async def test_a_budget_that_is_spent_ends_in_words_or_says_that_there_are_none(
    limits: dict[str, int], made: int, run: int, end: str
) -> None:
    tool = ActingTool()
    model, engine = await model_of(*[RUN] * made, end, tool=tool, limits=Limits(**limits))
    output = fold(await said(asking(), model))
    assert [action for action, _ in tool.done].count("python") == run
    assert "No more tools" in engine.seen[-1].prompt.text
    ended = (FinishReason.STOP, "So.") if end == "So." else (FinishReason.TOOL_LIMIT, "")
    assert (output.reason, output.text.strip()) == ended
    assert len(engine.seen) == made + 1


@pytest.mark.parametrize("limits", [{"tool_seconds": 1}, {"seconds_per_tool": 1}])
async def test_the_time_of_tools_is_limited(limits: dict[str, int]) -> None:
    tool = ActingTool(results=[None])
    model, engine = await model_of(RUN, "So.", tool=tool, limits=Limits(**limits))
    output = fold(await said(asking(), model))
    assert "time of tools for this answer is used up" in engine.seen[1].prompt.text
    assert output.text == "So."
    assert tool.done[-1] == ("close", None)


async def test_another_tool_may_go_on_where_one_has_taken_all_it_may() -> None:
    done = [ActingTool(), ActingTool("shell", (SHELL,), [ToolResult("a.txt")])]
    model, engine = await model_of(
        f"{RUN}\n{RUN}", called("shell", "{}"), "So.", tool=done, limits=Limits(calls_per_tool=1)
    )
    output = fold(await said(asking(tools=(PYTHON, SHELL)), model))
    assert [[action for action, _ in tool.done] for tool in done] == [
        ["open", name, "close"] for name in ("python", "run")
    ]
    assert "This tool cannot be called any more" in engine.seen[1].prompt.text
    assert output.text == "So."


async def test_more_calls_than_the_server_allows_are_refused() -> None:
    model, _ = await model_of(RUN, "So.", tool=ActingTool(), limits=Limits(tool_calls=3))
    with pytest.raises(RequestError, match="'tool_calls'") as refused:
        await said(asking(tool_limit=4, parameters={"tool_limit": "max_tool_calls"}), model)
    assert refused.value.param == "max_tool_calls"


async def test_the_usage_of_each_generation_is_told() -> None:
    model, engine = await model_of(f"{RUN}\n{RUN}", "It is 42.", tool=ActingTool())
    output = fold(await said(asking(), model))
    first, last = output.generations
    assert [each.input_tokens for each in (first, last)] == [len(seen.prompt.ids) for seen in engine.seen]
    assert (first.output_tokens, last.output_tokens) == (2 * len(RUN) + 1, len("It is 42."))
    assert (first.tool_calls, first.tool_output_tokens) == (2, 2 * len(await engine.tokenize(["42\n"])))
    assert (last.tool_calls, last.tool_output_tokens) == (0, 0)
    model, _ = await model_of("Hi.", tool=ActingTool())
    assert fold(await said(asking(), model)).generations == ()


# Side by side


class Meeting(ActingTool):
    """Answers a call when `most` are under way, the last first."""

    def __init__(self, most: int, functions: tuple[Function, ...]) -> None:
        super().__init__(functions=functions)
        self._most = most
        self._under_way: list[asyncio.Event] = []

    async def next(self) -> ToolResult:
        number, mine = len(self._under_way), asyncio.Event()
        self._under_way.append(mine)
        if number + 1 == self._most:
            mine.set()
        await mine.wait()
        if number:
            self._under_way[number - 1].set()
        return ToolResult(str(number))


async def test_calls_run_side_by_side_where_their_tool_allows_and_results_stay_in_order() -> None:
    model, _ = await model_of(RUN * 3, "Done.", tool=Meeting(3, (SEARCHING,)))
    log = ReplayLog()
    async with asyncio.timeout(LONGEST_WAIT):
        whole = await said(asking(tools=(SEARCHING,)), model, ReplayContext(log, Random(1)))
    assert [event.result.text for event in whole if isinstance(event, ToolResultReceived)] == ["0", "1", "2"]
    tool = Meeting(3, (SEARCHING,))
    model, _ = await model_of(RUN * 3, "Done.", tool=tool)
    entries = read_entries([log.new()], built_in().details)
    again = await said(asking(tools=(SEARCHING,)), model, ReplayContext(ReplayLog(entries), Random(1)))
    assert merge(again) == merge(whole)
    assert [action for action, _ in tool.done] == ["open", *["recall"] * 3, "close"]


async def test_other_calls_run_alone_and_in_order() -> None:
    tool = ActingTool(results=[None])
    model, _ = await model_of(RUN * 2, "Never.", tool=tool)
    task = asyncio.create_task(said(asking(), model))
    await tool.running.wait()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [action for action, _ in tool.done] == ["open", "python", "close"]


# What programs print while they run


class Printing(ActingTool):
    """Prints the arguments of `press`, until it is `done`. Later output is ignored."""

    def __init__(self) -> None:
        super().__init__(results=[ToolResult("abcd", ProgramDetails("abcd"))])
        self.over = asyncio.Event()
        self.press: OutputCallback

    def open(self, requested: RequestedTool) -> Any:
        return PrintingSession(self)


class PrintingSession(ActingSession):
    async def run(
        self, action: str, arguments: Mapping[str, Any], on_output: OutputCallback = ignore_output
    ) -> ToolResult:
        tool = self._tool
        assert isinstance(tool, Printing)
        tool.press = on_output
        tool.running.set()
        await tool.over.wait()
        on_output("late")
        return await tool.next()


def printed(heard: Heard) -> list[tuple[str, str]]:
    return [(event.stdout, event.stderr) for event in heard.events if isinstance(event, ToolPrinted)]


async def test_what_a_program_prints_is_shown_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "SHOWING", 0.001)
    tool, log, heard = Printing(), ReplayLog(), Heard()
    model, _ = await model_of(RUN, "So.", tool=tool)
    context = ReplayContext(log, Random(1))
    task = asyncio.create_task(AnswerSource([asking()], model, context).run(heard))
    await tool.running.wait()
    tool.press("a")
    tool.press("b", "x")
    await until(lambda: printed(heard) == [("ab", "x")])  # in one piece
    heard.hold()
    tool.press("c")
    await asyncio.sleep(0.01)
    tool.press("d")
    assert len(printed(heard)) == 1
    heard.resume()
    await until(lambda: printed(heard)[1:] == [("cd", "")])
    tool.over.set()
    await task
    assert len(printed(heard)) == 2
    again = Heard()
    entries = read_entries([log.new()], built_in().details)
    await AnswerSource([asking()], model, ReplayContext(ReplayLog(entries), Random(1))).run(again)
    assert merge(again.events) == merge(heard.events)
    assert log.new() == b""


async def test_of_a_call_that_is_run_again_what_it_printed_before_is_shown_and_no_more_until_its_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tool_calls, "SHOWING", 0.001)
    tool, log, heard = Printing(), ReplayLog(), Heard()
    model, _ = await model_of(RUN, "So.", tool=tool)
    task = asyncio.create_task(AnswerSource([asking()], model, ReplayContext(log, Random(1))).run(heard))
    await tool.running.wait()
    tool.press("ab")
    await until(lambda: printed(heard))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    tool, again = Printing(), Heard()
    model, _ = await model_of(RUN, "So.", tool=tool)
    context = ReplayContext(ReplayLog(read_entries([log.new()], built_in().details)), Random(1))
    task = asyncio.create_task(AnswerSource([asking()], model, context).run(again))
    await tool.running.wait()
    assert merge(again.events) == merge(heard.events)
    tool.press("abc")
    await asyncio.sleep(0.01)
    tool.over.set()
    await task
    assert printed(again) == [("ab", "")]


async def test_what_cannot_be_shown_ends_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "SHOWING", 0.001)
    tool = Printing()
    model, _ = await model_of(RUN, "So.", tool=tool)

    class Broken(Words):
        def push(self, choice: int, events: Sequence[Event]) -> list[bytes]:
            if any(isinstance(event, ToolPrinted) for event in events):
                raise RuntimeError("it is broken")
            return []

    source = AnswerSource([asking()], model)
    task = asyncio.create_task(Driver(source, Broken()).run())
    await tool.running.wait()
    tool.press("a")
    with pytest.raises(RuntimeError, match="it is broken"):
        await task


async def test_a_tool_that_does_not_let_go_of_a_call_does_not_keep_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tool_sessions, "CLOSING", 0.01)
    over = asyncio.Event()

    class Stubborn(ActingTool):
        async def next(self) -> ToolResult:
            self.running.set()
            while not over.is_set():
                with suppress(asyncio.CancelledError):
                    await over.wait()
            return ToolResult("late")

    tool = Stubborn()
    model, _ = await model_of(RUN, "Never.", tool=tool)
    task = asyncio.create_task(said(asking(), model))
    await tool.running.wait()
    task.cancel()
    async with asyncio.timeout(LONGEST_WAIT):
        await asyncio.gather(task, return_exceptions=True)
    assert ("close", None) in tool.done
    over.set()
    await asyncio.sleep(0)


# Unknown outcomes


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_call_whose_outcome_is_unknown_is_run_again_only_if_it_may_be(idempotent: bool) -> None:
    assert PYTHON.hosted is not None
    function = replace(PYTHON, hosted=replace(PYTHON.hosted, idempotent=idempotent))
    tool, log, heard = ActingTool(results=[ToolResult("one"), None]), ReplayLog(), Heard()
    model, _ = await model_of(RUN * 2, "So.", tool=tool)
    source = AnswerSource([asking(tools=(function,))], model, ReplayContext(log, Random(1)))
    task = asyncio.create_task(source.run(heard))
    await tool.running.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert heard.calls_begun == (0 if idempotent else 2)

    tool = ActingTool(results=[ToolResult("two")])
    model, engine = await model_of(RUN * 2, "So.", tool=tool)
    context = ReplayContext(
        ReplayLog(read_entries([log.new()], built_in().details)), Random(1), calls_begun=heard.calls_begun
    )
    output = fold(await said(asking(tools=(function,)), model, context))
    results = [item.text for item in output.items if isinstance(item, FunctionOutput)]
    assert results[0] == "one"
    assert ("outcome of this call is unknown" in results[1], results[1] == "two") == (
        not idempotent,
        idempotent,
    )
    assert [action for action, _ in tool.done] == ["open", "recall", *["python"] * idempotent, "close"]
    assert results[1] in engine.seen[0].prompt.text
    assert output.text == "So."


async def test_a_conversation_that_becomes_too_long_ends_the_answer() -> None:
    tool = ActingTool(results=[ToolResult("x " * 5000)])
    model, _ = await model_of(RUN, "Never.", tool=tool, context=1000)
    output = fold(await said(asking(), model))
    assert output.reason is FinishReason.LENGTH


async def test_a_demanded_call_is_demanded_once() -> None:
    model, _ = await model_of(RUN, "It is 42.", tool=ActingTool())
    asked = asking(tool_choice=ToolChoice(CallMode.REQUIRED, frozenset({"python"})))
    output = fold(await said(asked, model))
    assert (output.text, output.unmet) == ("It is 42.", ())


async def test_without_parallel_calls_each_generation_has_one() -> None:
    model, engine = await model_of(f"{RUN}\n{RUN}", "Done.", tool=ActingTool())
    events = await said(asking(tool_choice=ToolChoice(parallel=False)), model)
    assert sum(isinstance(event, CallStarted) for event in events) == 1
    assert len(engine.seen) == 2


async def test_choices_have_sessions_of_their_own() -> None:
    tool = ActingTool()
    model, _ = await model_of(RUN, "It is 42.", tool=tool)
    heard = await answered(asking(choices=2), model)
    assert [fold(heard.choices[index]).text for index in (0, 1)] == ["It is 42."] * 2
    assert [action for action, _ in tool.done].count("open") == 2


# What the client began, and demanded


async def test_a_named_tool_is_called_once_and_no_other_is() -> None:
    tool = ActingTool()
    model, _ = await model_of(RUN, f"{RUN}{called('noon', '{}')}It is 42.", tool=tool)
    named = ToolChoice(CallMode.REQUIRED, frozenset({"python"}), named=True)
    output = fold(await said(asking(tools=(PYTHON, OWN), tool_choice=named), model))
    assert (output.calls, output.text) == ((), "It is 42.")
    assert [action for action, _ in tool.done] == ["open", "python", "close"]


async def test_allowed_tools_are_allowed_for_the_whole_answer() -> None:
    model, _ = await model_of(RUN, called("noon", "{}"), tool=ActingTool())
    allowed = ToolChoice(CallMode.REQUIRED, frozenset({"python"}))
    output = fold(await said(asking(tools=(PYTHON, OWN), tool_choice=allowed), model))
    assert output.calls == ()


async def test_the_model_is_told_that_it_has_called_enough() -> None:
    model, engine = await model_of(RUN, "So.", tool=ActingTool())
    await said(asking(tool_limit=1), model)
    assert "42\n\n\nNo more tools can be called" in engine.seen[1].prompt.text


@pytest.mark.parametrize("ending", [PromptEnding.ANSWER, PromptEnding.CONTINUED])
async def test_what_the_client_began_is_part_of_what_was_said(ending: PromptEnding) -> None:
    model, engine = await model_of(f" let me see.{RUN}", "Done.", tool=ActingTool(), turns=hermes_turns)
    begun = Message(Role.ASSISTANT, (TextPart("Well then,"),), status=Status.INCOMPLETE)
    asked = asking(prefix="Well then,")
    if ending is PromptEnding.CONTINUED:
        asked = replace(asked, items=(*asked.items, begun), ending=ending, prefix="")
    await said(asked, model)
    assert "<|im_start|>assistant\nWell then, let me see." in engine.seen[1].prompt.text


async def test_limits_are_counted_down() -> None:
    model, engine = await model_of(RUN, "So.", tool=ActingTool())
    await said(asking(sampling=Sampling(max_tokens=300, min_tokens=len(RUN))), model)
    second = engine.seen[1]
    assert (second.max_tokens, second.sampling.min_tokens) == (300 - len(RUN), 0)


async def test_thoughts_are_limited_over_all_generations() -> None:
    thought = "<think>" + "6" * 20 + "</think>"
    for limit, closed in ((100, False), (40, True)):
        model, engine = await model_of(f"{thought}{RUN}", f"{thought}So.", tool=ActingTool())
        await said(asking(reasoning_limit=limit), model, leave_after=len(f"{thought}{RUN}") + 30)
        assert (len(engine.seen) > 2) == closed  # an engine continues after closed reasoning


async def test_a_stop_string_ends_the_answer_and_no_call_before_it_is_run() -> None:
    tool = ActingTool()
    model, engine = await model_of(f"{RUN}\nSTOP more", "Never.", tool=tool)
    output = fold(await said(asking(stop=("STOP",)), model))
    assert (output.stop, len(engine.seen), tool.done) == ("STOP", 1, [])


# Failures


@pytest.mark.parametrize("arguments", ['{"code": 1e999}', "[1]", "7"])
async def test_arguments_that_no_tool_reads_are_told_to_the_model(arguments: str) -> None:
    model, engine = await model_of(called("python", arguments), "Sorry.", tool=ActingTool())
    assert fold(await said(asking(), model)).text == "Sorry."
    assert "not a JSON object" in engine.seen[1].prompt.text


async def test_a_tool_that_cannot_be_closed_is_for_the_log() -> None:
    tool = ActingTool(closing=OSError("busy"))
    model, _ = await model_of(RUN, "It is 42.", tool=tool)
    assert fold(await said(asking(), model)).text == "It is 42."


async def test_what_was_used_before_a_failure_is_counted_once() -> None:
    class Forgetful(TakingTurns):
        broken = False

        async def tokenize(self, pieces: Sequence[str]) -> list[int]:
            if self.broken:
                raise EngineError
            return await super().tokenize(pieces)

    class Breaking(Heard):
        def push(self, choice: int, events: list[Event]) -> None:
            super().push(choice, events)
            engine.broken = isinstance(events[-1], ToolCallsPending | ToolResultReceived)

    engine, heard = Forgetful(RUN, "Never."), Breaking()
    model = await served_model(engine, dialect="hermes", tools=by_type([ActingTool()])).load()
    loop = ToolLoop(await model.prepare(asking()), 0, ReplayContext(), Accumulator())
    with pytest.raises(EngineError):
        await loop.run(heard, 0)
    [end] = loop.abandon()
    assert isinstance(end, Finished)
    assert (end.reason, end.usage.completion_tokens) == (FinishReason.ERROR, len(RUN))


async def test_a_failure_in_the_second_generation_keeps_what_the_first_has_said() -> None:
    class Failing(TakingTurns):
        def __init__(self, *answers: str) -> None:
            super().__init__(*answers)
            failing = [{"output": answers[1], "split": "chars", "fail_after": 3}]
            self.answers[1] = ScriptedEngine(failing).answers[0]

    heard = Heard()
    served = served_model(Failing(RUN, "It is 42."), dialect="hermes", tools=by_type([ActingTool()]))
    loop = ToolLoop(await (await served.load()).prepare(asking()), 0, ReplayContext(), Accumulator())
    with pytest.raises(EngineError, match="The script says"):
        await loop.run(heard, 0)
    output = fold([*heard.events, *loop.abandon()])
    assert (output.text, output.reason) == ("It ", FinishReason.ERROR)
    assert output.usage.completion_tokens == len(RUN) + 3
    assert [type(item) for item in output.items] == [FunctionCall, FunctionOutput, Message]


async def test_a_server_that_stops_waits_for_no_tool() -> None:
    tool = ActingTool(results=[None])
    model, _ = await model_of(RUN, "Never.", tool=tool)
    task = asyncio.create_task(said(asking(), model))
    await tool.running.wait()
    model.stopping.set()
    with pytest.raises(EngineNotReadyError):
        await task
    assert tool.done[-1] == ("close", None)


async def test_a_server_without_the_tools_does_not_go_on_with_their_answers() -> None:
    log = ReplayLog()
    model, _ = await model_of(RUN, "It is 42.", tool=ActingTool())
    await said(asking(), model, ReplayContext(log, Random(1)))
    replayed = ReplayContext(ReplayLog(read_entries([log.new()], built_in().details)), Random(1))
    with pytest.raises(EngineError, match="does not run"):
        await said(turn(), model, replayed)


# Played again


@settings(max_examples=examples(40))
@given(st.integers(0, 400))
async def test_an_answer_that_is_taken_over_is_the_same(cut: int) -> None:
    """Law: interrupt it anywhere, also between call and result, and the events are those of one that was not."""

    async def run(log: ReplayLog, leave_after: float = float("inf")) -> tuple[list[Event], ActingTool]:
        tool = ActingTool(results=[ToolResult("one"), ToolResult("two")])
        model, _ = await model_of(f"A{RUN}\n{RUN}", f"B{RUN}", "C", tool=tool)
        return await said(asking(), model, ReplayContext(log, Random(1)), leave_after), tool

    whole, _ = await run(ReplayLog())
    log = ReplayLog()
    before, first = await run(log, cut)
    after, second = await run(ReplayLog(read_entries([log.new()], built_in().details)))
    assert [type(event) for event in merge(after)] == [type(event) for event in merge(whole)]
    assert before == whole[: len(before)]
    ran = sum(action == "python" for action, _ in first.done)
    again = sum(action in ("python", "recall") for action, _ in second.done)
    assert again == 3
    assert sum(action == "recall" for action, _ in second.done) <= ran
