"""Law: an answer that is held to a form ends in it, wherever it is cut, and one that fits in stays as it is."""

import asyncio
import json
from collections.abc import Callable, Iterable
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.constrain.budget import WorkBudget
from antiphon.constrain.compile import OutputRequirements
from antiphon.constrain.gbnf_parser import read_gbnf
from antiphon.core.chunks import Chunk, Finish, FinishReason
from antiphon.core.constraint import Format, Gbnf, JsonObject, JsonSchema, Regex
from antiphon.core.errors import AntiphonError, ClientBusyError, EngineError, RequestError
from antiphon.core.turn import CallMode, Function, ToolChoice
from antiphon.dialects.registry import find
from antiphon.engines.engine import Capabilities, GenerationRequest, Prompt, Receiver, Work
from antiphon.engines.script import Line, answer_of
from antiphon.engines.scripted import CAPABILITIES, ScriptedEngine
from antiphon.run import closing
from antiphon.run.closing import ClosedGeneration, least_tokens, tokens_in
from antiphon.run.constraints import ConstraintPlan, is_whole, plan_for
from tests.constrain.sampler import Sampler
from tests.constrain.schemas import SCHEMAS
from tests.constrain.test_json_schema import schemas
from tests.search import examples, share

LONG = {
    "type": "object",
    "properties": {
        "thoughts": {"type": "string"},
        "notes": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"enum": [1, 2]}}, "required": ["a", "b"]}},
        "verdict": {"enum": ["agreed", "refused", "put off until somebody has the time to look at it"]},
        "sure": {"type": "boolean"},
    },
    "required": ["thoughts", "verdict", "sure"],
}  # fmt: skip
DEMANDS: dict[str, tuple[Format | None, tuple[Function, ...]]] = {
    "long": (JsonSchema(LONG), ()),
    "object": (JsonObject(), ()),
    "regex": (Regex("(yes|no)(, (yes|no))*[.]{3}"), ()),
    "call": (None, (Function("look", None, LONG), Function("now", None, {}))),
    **{name: (JsonSchema(schema), ()) for name, schema in SCHEMAS.items()},
}


def planned(
    format_: Format | None,
    tools: tuple[Function, ...] = (),
    dialect: str = "hermes",
    *,
    enforces: bool = True,
) -> ConstraintPlan:
    """How an answer is held to these demands."""
    choice = ToolChoice(CallMode.REQUIRED) if tools else ToolChoice()
    able = Capabilities(constraints=(Gbnf,) if enforces else ())
    return plan_for(OutputRequirements(tools, choice, format_), find(dialect).grammar, able)


@cache
def plan_of(name: str, dialect: str = "hermes") -> ConstraintPlan:
    format_, tools = DEMANDS[name]
    return planned(format_, tools, dialect)


class Here:
    """Does the work of a pool here, some of it later; `failures` come first."""

    def __init__(self, random: Random, *failures: Exception) -> None:
        self._random = random
        self._failures = [*failures]

    async def run(self, param: str, call: Callable[..., Any], *args: Any) -> Any:
        for _ in range(self._random.choice((0, 0, 1, 5, 20))):
            await asyncio.sleep(0)
        if self._failures:
            raise self._failures.pop(0)
        return call(*args)


class Writer(ScriptedEngine):
    """Writes a text, and then what `ending` makes of the constraint on the way out. It is asked `requests`."""

    def __init__(self, text: str, split: Any, ending: Callable[[GenerationRequest], Line]) -> None:
        super().__init__([], capabilities=replace(CAPABILITIES, constraints=(Gbnf,)))
        self._text, self._split, self._ending = text, split, ending
        self.requests: list[GenerationRequest] = []

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        self.requests.append(request)
        line = Line(self._text, split=self._split) if len(self.requests) == 1 else self._ending(request)
        self.answers = [answer_of(line)]
        return super().generate(replace(request, answer_start=""), receiver)


class Heard:
    """Receives a generation."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def push(self, chunks: list[Chunk]) -> None:
        assert not self.over.done()
        self.chunks += chunks
        if chunks[-1].finish is not None:
            self.over.set_result(None)

    def fail(self, error: AntiphonError) -> None:
        self.over.set_exception(error)

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def tokens(self) -> int:
        return sum(map(tokens_in, self.chunks))

    @property
    def finish(self) -> Finish:
        finish = self.chunks[-1].finish
        assert finish is not None
        return finish


def narrow(random: Random) -> Callable[[GenerationRequest], Line]:
    """Any of the ways out, in any tokens; or what does not lead out."""

    def line(request: GenerationRequest) -> Line:
        assert isinstance(request.constraint, Gbnf)
        way = Sampler(read_gbnf(request.constraint.text, WorkBudget(10**9)), random).draw()
        kinds = (
            *[Line(way, split=split) for split in ("chars", "whole", None)],
            Line(way[:-1] or "x", finish=FinishReason.LENGTH),
            Line(way, fail_after=0),
            Line(way, tokens=1000),
            Line("something else"),
        )
        return random.choice(kinds)

    return line


async def written(
    plan: ConstraintPlan, engine: Writer, limit: int, pool: Here, cut: Finish | None = None
) -> Heard:
    """What a receiver gets of an answer of at most so many tokens."""
    await engine.start()
    heard = Heard()
    request = GenerationRequest(Prompt("", ()), limit, constraint=plan.constraint, resumable=True)
    generation = ClosedGeneration(engine, request, heard, plan, pool)  # type: ignore[arg-type]
    generation.begin(cut)
    await asyncio.wait_for(heard.over, 30)
    for _ in range(30):  # nothing comes after the end
        await asyncio.sleep(0)
    return heard


def held(plan: ConstraintPlan, text: str, split: Any, limit: int, heard: Heard) -> None:
    """The law, for an answer whose model wanted to write this text."""
    whole = [chunk.text for chunk in answer_of(Line(text, split=split)).chunks]
    assert heard.tokens <= limit
    if len(whole) <= limit:
        assert [chunk.text for chunk in heard.chunks] == whole
        assert heard.finish == Finish(FinishReason.STOP)
        return
    assert heard.finish.reason is FinishReason.LENGTH
    assert is_whole(plan, heard.text), (text, heard.text)
    added = heard.finish.closed
    assert heard.tokens + heard.finish.unused <= limit
    if not added:
        assert text.startswith(heard.text)


async def closed(plan: ConstraintPlan, text: str, random: Random) -> None:
    """An answer with this text, cut anywhere."""
    split = random.choice(("chars", None, 3))
    assert plan.closing is not None
    engine = Writer(text, split, narrow(random))
    least = await least_tokens(engine, plan.closing)
    size = len(answer_of(Line(text, split=split)).chunks)
    limit = random.randint(least, max(least, size + 3)) or 1
    heard = await written(plan, engine, limit, Here(random))
    held(plan, text, split, limit, heard)


def drawn(plan: ConstraintPlan, random: Random) -> str:
    """A text that the constraint of a plan lets through."""
    assert isinstance(plan.constraint, Gbnf)
    return Sampler(read_gbnf(plan.constraint.text, WorkBudget(10**9)), random).draw()


@pytest.mark.parametrize("name", DEMANDS)
async def test_an_answer_is_closed_wherever_it_is_cut(name: str) -> None:
    random, plan = Random(name), plan_of(name)
    for _ in range(3):
        await closed(plan, drawn(plan, random), random)


@settings(max_examples=examples(100))
@given(schemas(), st.integers(0, 10**6))
def test_any_schema_is_closed_wherever_it_is_cut(schema: Any, seed: int) -> None:
    random = Random(seed)
    try:
        plan = planned(JsonSchema(schema, strict=False))
    except RequestError:
        return
    if plan.closing is not None and plan.constraint is not None:
        asyncio.run(closed(plan, drawn(plan, random), random))


HEAVY = {
    "type": "array",
    "items": {"type": "object", "properties": {"a": {"const": "x" * 40}}, "required": ["a"]},
}
HEAVY_TEXT = json.dumps([{"a": "x" * 40}] * 3)


async def _outcomes(limits: Iterable[int]) -> list[str]:
    """What breaks the law, of answers that open much at once, and of others, of at most so many tokens."""
    found: list[str] = []
    for limit in limits:
        random, plan = Random(limit), planned(JsonSchema(HEAVY))
        try:
            heard = await written(plan, Writer(HEAVY_TEXT, "chars", narrow(random)), limit, Here(random))
            held(plan, HEAVY_TEXT, "chars", limit, heard)
            await closed(plan_of("long"), drawn(plan_of("long"), random), random)
        except AssertionError as error:
            found.append(str(error))
    return found


class Sated(Heard):
    """A receiver that needs no more after so many tokens: a call that is complete may be the last."""

    def __init__(self, enough: int) -> None:
        super().__init__()
        self._enough = enough
        self.work: ClosedGeneration
        self.late: list[object] = []

    def push(self, chunks: list[Chunk]) -> None:
        if self.over.done():
            self.late.append(chunks)
            return
        super().push(chunks)
        if not self.over.done() and self.tokens >= self._enough:
            self.over.set_result(None)
            self.work.cancel()

    def fail(self, error: AntiphonError) -> None:
        self.late.append(error)


@pytest.mark.parametrize("name", share(["call", "long"]))
async def test_a_receiver_that_needs_no_more_gets_no_more(name: str) -> None:
    for seed in range(40):
        assert await late_for_sated(plan_of(name), Random(seed)) == [], seed


async def late_for_sated(plan: ConstraintPlan, random: Random) -> list[object]:
    """What comes after a receiver has had enough."""
    assert plan.closing is not None
    text = drawn(plan, random)
    engine = Writer(text, "chars", narrow(random))
    await engine.start()
    limit = max(await least_tokens(engine, plan.closing), random.randint(len(text) // 2, len(text) + 99))
    heard = Sated(random.randint(1, len(text)))
    request = GenerationRequest(Prompt("", ()), limit, constraint=plan.constraint, resumable=True)
    heard.work = ClosedGeneration(engine, request, heard, plan, Here(random))  # type: ignore[arg-type]
    heard.work.begin(None)
    await asyncio.wait_for(heard.over, 30)
    for _ in range(30):
        await asyncio.sleep(0)
    return heard.late


async def test_what_opens_much_at_once_is_closed() -> None:
    assert not await _outcomes(range(2, 180, 11))


async def test_of_many_places_some_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "MAX_PLACES", 5)
    assert not await _outcomes(range(2, 180, 11))


async def test_a_client_with_too_much_work_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "BUSY_SECONDS", 0)
    plan, random = plan_of("long"), Random(0)
    pool = Here(random, ClientBusyError(), ClientBusyError())
    text = '{"thoughts": "' + "hm " * 100
    heard = await written(plan, Writer(text, None, narrow(random)), 60, pool)
    assert is_whole(plan, heard.text)
    assert heard.finish.closed


async def test_what_takes_too_long_to_work_out_is_left_as_it_is() -> None:
    plan, random, text = plan_of("long"), Random(0), '{"thoughts": "' + "hm " * 100
    pool = Here(random, RequestError("Too long.", param="max_tokens"))
    heard = await written(plan, Writer(text, None, narrow(random)), 60, pool)
    assert (heard.finish.reason, heard.finish.closed) == (FinishReason.LENGTH, 0)
    assert text.startswith(heard.text)
    assert heard.tokens == 60


@pytest.mark.parametrize("enforces", [True, False])
async def test_what_leaves_the_form_is_left_as_it_is_however_long_it_takes_to_see(enforces: bool) -> None:
    plan = planned(*DEMANDS["long"], enforces=enforces)
    for seed in range(60):
        random = Random(seed)
        begun = '{"thoughts": "' + "hm " * 15
        text = begun + random.choice(('"} no', '", x', "\n")) + " and so on" * 100
        pieces = [chunk.text for chunk in answer_of(Line(text, split=None)).chunks]
        limit = len(answer_of(Line(begun, split=None)).chunks) + random.randint(4, 9)
        heard = await written(plan, Writer(text, None, narrow(random)), limit, Here(random))
        assert heard.text == "".join(pieces[:limit])
        assert (heard.finish.reason, heard.finish.closed) == (FinishReason.LENGTH, 0)


async def test_an_answer_is_closed_where_it_is_said() -> None:
    plan, random = plan_of("long"), Random(0)
    heard = await written(
        plan, Writer("", None, narrow(random)), 60, Here(random), Finish(FinishReason.LENGTH, "x")
    )
    assert is_whole(plan, heard.text)
    assert (heard.finish.reason, heard.finish.stop) == (FinishReason.LENGTH, "x")


async def test_an_engine_that_fails_is_told_at_once() -> None:
    plan, random = plan_of("long"), Random(0)
    engine = Writer("", None, lambda request: Line("x", fail_after=0))
    engine.requests.append(GenerationRequest(Prompt("", ()), 60))  # so that this is the second
    with pytest.raises(EngineError):
        await written(plan, engine, 60, Here(random))


async def test_far_from_the_limit_nothing_is_held() -> None:
    plan, random = plan_of("long"), Random(0)
    text = '{"thoughts": "' + "hm " * 300 + '", "verdict": "agreed", "sure": true}'
    pool = Here(random, *[AssertionError("there is nothing to work out")] * 9)
    heard = await written(plan, Writer(text, None, narrow(random)), 30_000, pool)
    assert heard.text == text


def nothing_grows(patch: pytest.MonkeyPatch) -> None:
    """Chunks are passed on though the way out may have become longer."""
    patch.setattr(closing, "growth_in", lambda growth, text: 0)


def any_place(patch: pytest.MonkeyPatch) -> None:
    """The answer is cut at its end, whether the way out fits in or not."""

    async def last(self: ClosedGeneration, places: Any, ways: Any) -> int:
        return len(places) - 1

    patch.setattr(ClosedGeneration, "_chosen", last)


def not_closed(patch: pytest.MonkeyPatch) -> None:
    """The answer is only cut."""

    async def cut(self: ClosedGeneration, finish: Finish) -> None:
        self._end(self._held)

    patch.setattr(ClosedGeneration, "_close", cut)


def unchecked(patch: pytest.MonkeyPatch) -> None:
    """What the engine has written is taken for a way out."""
    patch.setattr(closing, "is_whole", lambda plan, text: True)


@pytest.mark.parametrize("plant", [nothing_grows, any_place, not_closed, unchecked])
async def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        plant(patch)
        assert await _outcomes(range(2, 70, 6))
