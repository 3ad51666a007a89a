"""Replicas of one model: which of them gets a request, and what becomes of answers when one fails."""

import asyncio
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.constrain.compile import CompiledConstraint
from antiphon.constrain.grammar_ir import GrammarIR, sequence
from antiphon.core.accumulator import Accumulator, Output
from antiphon.core.chunks import Chunk, Finish, FinishReason, Token
from antiphon.core.constraint import Gbnf
from antiphon.core.errors import (
    EngineBusyError,
    EngineError,
    EngineNotReadyError,
    ReplicaLostError,
    RequestError,
)
from antiphon.core.observation import OBSERVATION, Observation
from antiphon.core.shared_loads import Drain
from antiphon.core.turn import Sampling
from antiphon.decode.decoder import Decoder
from antiphon.decode.ids import ids_by, openai_call_id
from antiphon.decode.table import Table
from antiphon.dialects.registry import find
from antiphon.engines.cache_views import BLOCK, EventsView
from antiphon.engines.engine import Engine, GenerationRequest, Prompt, Range, Receiver, Work
from antiphon.engines.figures import CacheFigures
from antiphon.engines.kv_events import Stored
from antiphon.engines.kv_sources import Source
from antiphon.engines.models import resolve
from antiphon.engines.pool import OTHER_SERVERS_WEIGHT, PoolEngine, ReplicaState, ReplicaStatus
from antiphon.engines.scripted import ScriptedEngine
from antiphon.engines.upstream import Options
from antiphon.run.constraints import ConstraintPlan, Demands, plan_of
from antiphon.run.generation import GenerationRun, Interceptors
from tests.contracts.engine import Collected, EngineContract, generated, request_of, running, until
from tests.engines import llama_http
from tests.run.support import Handheld, Heard, fold
from tests.search import CI

FREE = ConstraintPlan()
DRAIN = Drain("ann", 0)
STORY = "Ünce upon a time, 🎉 in 日本, there was a fox. "


class Dying(ScriptedEngine):
    """A scripted engine whose next generations fail after numbers of chunks, and one that is unavailable.

    `probes` counts.
    """

    def __init__(self, lines: Iterable[dict[str, Any]], cuts: Iterable[int] = (), **options: Any) -> None:
        super().__init__(list(lines), **options)
        self.cuts = iter(cuts)
        self.away = False
        self.asked: list[GenerationRequest] = []
        self.probes = 0

    async def start(self) -> None:
        if self.away:
            raise EngineError("It is unavailable.")
        await super().start()

    async def probe(self) -> None:
        self.probes += 1
        if self.away:
            raise EngineError("It is unavailable.")

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        self.asked.append(request)
        if self.away:
            return asyncio.get_running_loop().call_soon(receiver.fail, EngineError("It is unavailable."))
        cut = next(self.cuts, None)
        if cut is None:
            return super().generate(request, receiver)
        failing = _Failing(receiver, cut)
        failing.work = super().generate(request, failing)
        return failing.work


class _Failing:
    """A receiver whose generation fails after a number of chunks, unless it ends before."""

    work: Work

    def __init__(self, receiver: Receiver, after: int) -> None:
        self._receiver = receiver
        self._left = after
        self.fail = receiver.fail

    def push(self, chunks: list[Chunk]) -> None:
        taken, self._left = chunks[: self._left], self._left - len(chunks)
        if self._left >= 0 and chunks[-1].finish is not None:
            self._receiver.push(chunks)
            return
        if taken:
            self._receiver.push(taken)
        if self._left <= 0:
            self.work.cancel()
            self._receiver.fail(EngineError("It died."))


async def pool_of(*engines: Engine) -> PoolEngine:
    """A pool of these replicas. Among equals, the first of them comes first."""
    named = [(f"replica {number}", engine) for number, engine in enumerate(engines)]
    pool = PoolEngine(named, draw=lambda: 0.0)
    await pool.start()
    return pool


def up(pool: PoolEngine) -> list[bool]:
    """Which of the replicas get requests."""
    return [replica.status is ReplicaStatus.UP for replica in pool.replicas]


class TestContract(EngineContract):
    """A pool is an engine like any other. The first replica is not determined: one has all the slots."""

    prompt = "Tell a story."
    others = ("Say alpha.", "Say beta.", "Say gamma.")
    slots = 4
    draws = False

    @pytest_asyncio.fixture
    async def engine(self):
        lines = [
            *(
                {"when": word, "output": f"{word} is a letter of Greek "}
                for word in ("alpha", "beta", "gamma")
            ),
            {"when": "story", "output": STORY, "tokens": 10**9},
            {"output": "a", "tokens": 100},
        ]
        away = Dying(lines)
        away.away = True
        pool = await pool_of(ScriptedEngine(lines, parallel=self.slots), away)
        yield pool
        await pool.stop()

    @pytest.fixture
    def fresh(self):
        return PoolEngine([("one", ScriptedEngine([{"output": "again ", "tokens": 10**9}], parallel=1))])


# The law: an answer does not show that replicas failed


CALLS = (
    "<think>\nLet me see…</think>Sure. "
    '<tool_call>\n{"name": "look", "arguments": {"at": "日本 🎉", "n": [1, 2]}}\n</tool_call>'
)
TABLE = Table(find("hermes").grammar)


async def answer(
    engine: Engine, plan: ConstraintPlan = FREE, text: str = "Hi", max_tokens: int = 1000, **options: Any
) -> Output:
    """The whole answer to a prompt."""
    run = GenerationRun(
        engine,
        await request_of(engine, text, max_tokens, **options),
        Decoder(TABLE, ids=ids_by(openai_call_id, rng=Random(1))),
        Interceptors(plan=plan),
        Accumulator(),
    )
    heard = Heard()
    await run.run(heard, 0)  # type: ignore[arg-type]
    return fold(heard.events)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=3), st.sampled_from(["chars", 3, None, "whole"]))
async def test_an_answer_is_the_same_whichever_replicas_fail(cuts: list[int], split: Any) -> None:
    lines = [{"output": CALLS, "split": split}]
    undisturbed = await answer(await pool_of(ScriptedEngine(lines)))
    pool = await pool_of(Dying(lines, cuts[::2]), Dying(lines, cuts[1::2]), Dying(lines))
    disturbed = await answer(pool)
    await pool.stop()
    assert disturbed == undisturbed


async def test_what_is_enforced_holds_for_the_rest() -> None:
    """The grammar of what follows is made of what is there."""
    plan = plan_of(Demands(CompiledConstraint(GrammarIR(sequence("ab", "cd")))), Gbnf)
    lines = [{"output": "abcd", "split": "chars"}]
    first, second = Dying(lines, [3]), Dying(lines)
    pool = await pool_of(first, second)
    output = await answer(pool, plan, constraint=plan.constraint)
    await pool.stop()
    asked, rest = first.asked + second.asked
    assert output.text == "abcd"
    assert asked.constraint == plan.constraint
    assert rest.constraint is not None
    assert '"d"' in rest.constraint.text
    assert "a" not in rest.constraint.text.replace("root", "")


async def test_max_tokens_and_usage_count_each_token_once() -> None:
    lines = [{"output": STORY, "split": "chars", "tokens": 100}]
    pool = await pool_of(Dying(lines, [7]), Dying(lines, [5]), Dying(lines))
    output = await answer(pool, max_tokens=30)
    assert output.usage.completion_tokens == 30
    assert output.text == (STORY * 3)[:30]
    await pool.stop()


async def test_a_character_that_was_begun_is_written_again() -> None:
    """Its first tokens have no text yet: another replica could not end it."""
    first, second = Handheld(), Handheld()
    for engine in (first, second):
        engine.card = replace(engine.card, capabilities=replace(engine.card.capabilities, token_ids=True))
    pool = await pool_of(first, second)
    running = asyncio.create_task(answer(pool))
    await until(lambda: len(first.receivers) == 1)
    first.receivers[0].push([_token("a", 1), _token("", 2), _token("", 3)])
    first.receivers[0].fail(EngineError())
    await until(lambda: len(second.receivers) == 1)
    assert second.asked[0].answer_start == "a"
    assert second.asked[0].prompt.ids == (*first.asked[0].prompt.ids, 1)
    second.receivers[0].push([_token("", 2), _token("", 3), _token("é", 4, end=True)])
    output = await running
    assert output.text == "aé"
    assert output.usage.completion_tokens == 4
    await pool.stop()


# What is given up


async def test_a_request_that_makes_all_fail_is_given_up() -> None:
    engines = [Dying([{"output": STORY}], [1] * 9) for _ in range(6)]
    pool = await pool_of(*engines)
    with pytest.raises(EngineError):
        await answer(pool)
    assert sum(len(engine.asked) for engine in engines) == 4
    await pool.stop()


async def test_the_last_failure_is_told_where_nobody_is_left() -> None:
    pool = await pool_of(Dying([{"output": STORY}], [1]))
    collected = Collected()
    pool.generate(await request_of(pool, "Hi", 50), collected)
    with pytest.raises(EngineError, match="It died") as raised:
        await collected.whole()
    assert not isinstance(raised.value, ReplicaLostError)
    await pool.stop()


async def test_what_is_refused_is_no_failure_of_a_replica() -> None:
    class Refusing(Handheld):
        def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
            return asyncio.get_running_loop().call_soon(receiver.fail, RequestError("No.", param="seed"))

    pool = await pool_of(Refusing(), Refusing())
    collected = Collected()
    pool.generate(GenerationRequest(Prompt("Hi", (1, 2)), 5), collected)
    with pytest.raises(RequestError, match="No"):
        await collected.whole()
    assert up(pool) == [True, True]
    await pool.stop()


async def test_a_replica_that_has_too_many_rests_while_others_answer() -> None:
    class Busy(Handheld):
        def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
            super().generate(request, receiver)
            return asyncio.get_running_loop().call_soon(receiver.fail, EngineBusyError())

    busy, free = Busy(), Handheld()
    pool = await pool_of(busy, free)
    first, second = Collected(), Collected()
    asked = GenerationRequest(Prompt("Hi", (1, 2)), 5)
    pool.generate(asked, first)
    with pytest.raises(ReplicaLostError):
        await first.whole()
    pool.generate(asked, second)
    assert (len(busy.asked), len(free.asked)) == (1, 1)
    assert up(pool) == [True, True]
    await pool.stop()


def _token(text: str, id_: int, *, end: bool = False) -> Chunk:
    return Chunk(text, (Token(id_, text),), Finish(FinishReason.STOP) if end else None)


# Which replica


def prompt(*ids: int) -> GenerationRequest:
    return GenerationRequest(Prompt("", ids), 5)


async def test_requests_go_where_the_least_is_under_way() -> None:
    engines = [Handheld() for _ in range(3)]
    pool = await pool_of(*engines)
    works = [pool.generate(prompt(number), Collected()) for number in range(6)]
    assert [engine.load.running for engine in engines] == [2] * 3
    for work in works[:3]:
        work.cancel()
    await pool.stop()


async def test_a_conversation_stays_where_it_was_read() -> None:
    engines = [Handheld() for _ in range(3)]
    pool = await pool_of(*engines)
    conversations = [[number] * BLOCK * 10 for number in range(3)]
    for turn_ in range(4):
        for number, conversation in enumerate(conversations):
            conversation.extend([number, turn_] * BLOCK)
            pool.generate(prompt(*conversation), Collected()).cancel()
    assert [{request.prompt.ids[0] for request in engine.asked} for engine in engines] == [{0}, {1}, {2}]
    await pool.stop()


async def test_a_replica_with_much_to_do_shares_a_conversation() -> None:
    engines = [Handheld(), Handheld()]
    pool = await pool_of(*engines)
    for _ in range(8):
        pool.generate(prompt(*[7] * BLOCK * 4), Collected())
    assert all(len(engine.asked) > 1 for engine in engines)
    await pool.stop()


async def test_prompts_that_share_no_cache_share_no_replica() -> None:
    engines = [Handheld(), Handheld()]
    pool = await pool_of(*engines)
    ids = [7] * BLOCK * 40
    for salt in ("one", "two", "one", "two"):
        pool.generate(replace(prompt(*ids), sampling=Sampling(cache_salt=salt)), Collected()).cancel()
    assert [[request.sampling.cache_salt for request in engine.asked] for engine in engines] == [
        ["one"] * 2,
        ["two"] * 2,
    ]
    await pool.stop()


@pytest.mark.parametrize("places", [(0.1, 0.9), (0.9, 0.1)])
async def test_equal_replicas_are_in_an_order_of_this_process(places: tuple[float, float]) -> None:
    """Several servers with the same replicas, each with one request: they do not all choose the same."""
    engines = [Handheld(), Handheld()]
    pool = PoolEngine([("one", engines[0]), ("two", engines[1])], draw=iter(places).__next__)
    await pool.start()
    pool.generate(prompt(1), Collected())
    first = engines[places.index(min(places))]
    assert (len(first.asked), sum(len(engine.asked) for engine in engines)) == (1, 1)
    await pool.stop()


async def test_the_work_of_other_servers_counts() -> None:
    engines = [Handheld(), Handheld()]
    pool = await pool_of(*engines)
    of_two = int(2 / OTHER_SERVERS_WEIGHT)
    pool.count_elsewhere({"replica 0": of_two, "of another pool": 9})
    works = [pool.generate(prompt(number), Collected()) for number in range(4)]
    assert [len(engine.asked) for engine in engines] == [1, 3]  # as if those were two
    assert pool.replica_loads == {"replica 0": 1, "replica 1": 3}
    assert [state.elsewhere for state in pool.replicas] == [of_two, 0]
    pool.count_elsewhere({})
    works.append(pool.generate(prompt(4), Collected()))
    assert [len(engine.asked) for engine in engines] == [2, 3]
    for work in works:
        work.cancel()
    await pool.stop()


async def test_of_a_prompt_the_end_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.engines.cache_views.REMEMBERED_TOKENS", BLOCK * 6)
    engines = [Handheld(), Handheld()]
    pool = await pool_of(*engines)
    old, new = [1] * BLOCK * 4, [2] * BLOCK * 4
    pool.generate(prompt(*old), Collected()).cancel()
    pool.drain("replica 1", DRAIN)
    pool.generate(prompt(*new), Collected()).cancel()  # of the old one, half is remembered
    pool.drain("replica 1", None)
    pool.generate(prompt(*old), Collected()).cancel()
    assert len(engines[0].asked) == 3
    await pool.stop()


# Draining


async def test_a_drained_replica_gets_no_requests_and_goes_on_with_what_it_has() -> None:
    engines = [Dying([{"output": "again ", "tokens": 10**9}]) for _ in range(2)]
    pool = await pool_of(*engines)
    async with running(pool, await request_of(pool, "one", 10**6)) as (_, receiver):
        [busy] = [number for number, engine in enumerate(engines) if engine.load.running]
        assert pool.drain(f"replica {busy}", DRAIN)
        for _ in range(3):
            await generated(pool, await request_of(pool, "one", 2))
        assert [len(engine.asked) for engine in engines][busy] == 1
        assert pool.replicas[busy] == ReplicaState(f"replica {busy}", ReplicaStatus.DRAINED, 1, drained=DRAIN)
        seen = len(receiver.batches)
        await until(lambda: len(receiver.batches) > seen)
    pool.drain(f"replica {busy}", None)
    pool.drain(f"replica {1 - busy}", DRAIN)
    await generated(pool, await request_of(pool, "two", 2))
    assert len(engines[busy].asked) == 2
    assert not pool.drain("replica 2", DRAIN)
    await pool.stop()


async def test_an_answer_does_not_go_on_at_a_replica_that_is_drained() -> None:
    pool = await pool_of(Dying([{"output": STORY}], [3]), Dying([{"output": STORY}]))
    pool.drain("replica 1", DRAIN)
    receiver = Collected()
    pool.generate(await request_of(pool, "one", 20), receiver)
    with pytest.raises(EngineError, match="It died"):
        await receiver.whole()
    assert not isinstance(receiver.error, ReplicaLostError)
    await pool.stop()


async def test_where_all_are_drained_there_is_none() -> None:
    pool = await pool_of(Dying([{"output": STORY}]))
    pool.drain("replica 0", DRAIN)
    assert not pool.up
    with pytest.raises(EngineNotReadyError):
        await generated(pool, await request_of(pool, "one", 2))
    await pool.stop()


# Health


async def test_a_pool_starts_with_those_that_are_there_and_finds_the_others() -> None:
    there, away = Dying([{"output": STORY}]), Dying([{"output": STORY}])
    away.away = True
    pool = await pool_of(there, away)
    assert up(pool) == [True, False]
    away.away = False
    await until(lambda: up(pool) == [True, True])
    await pool.stop()


async def test_a_pool_without_any_does_not_start() -> None:
    away = Dying([{"output": STORY}])
    away.away = True
    with pytest.raises(EngineError, match="It is unavailable"):
        await pool_of(away, away)


async def test_another_model_is_no_replica() -> None:
    other = Handheld()
    other.card = replace(other.card, chat_template="another")
    with pytest.raises(EngineError, match=r"replica 1 does not run the same model.*chat_template"):
        await pool_of(Handheld(), other)


async def test_a_replica_that_failed_comes_back() -> None:
    first, second = Dying([{"output": STORY}], [0]), Dying([{"output": STORY}])
    pool = await pool_of(first, second)
    first.away = True
    collected = Collected()
    pool.generate(await request_of(pool, "Hi", 50), collected)
    with pytest.raises(ReplicaLostError):
        await collected.whole()
    assert up(pool) == [False, True]
    assert await pool.detokenize(await pool.tokenize(["Hi"])) == "Hi"
    first.away = False
    await until(lambda: up(pool) == [True, True])
    assert first.probes >= 1
    await pool.stop()


async def test_what_is_asked_of_any_replica_is_asked_of_the_next_if_it_fails() -> None:
    class Mute(Handheld):
        async def tokenize(self, pieces: Any) -> list[int]:
            raise EngineError("Nothing.")

    pool = await pool_of(Mute(), Handheld())
    assert await pool.tokenize(["ab"]) == [97, 98]
    assert up(pool) == [False, True]
    await pool.stop()


# Real servers


STREAMS = int(os.environ.get("ANTIPHON_TEST_STREAMS", "0" if CI else "12"))
"""Answers that are under way while a server is killed: `make test-failover` has 200."""
TOPICS = ("a fox", "the sea", "a train", "winter", "bread", "a king", "the moon", "a clock")


def question(number: int) -> str:
    text = f"Tell a story about {TOPICS[number % len(TOPICS)]}, number {number}."
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.skipif(not STREAMS, reason="takes long: leave out CI=1")
@pytest.mark.timeout(120 + 30 * STREAMS)
async def test_answers_survive_servers_that_are_killed() -> None:
    """Three servers with a real model; one is killed with many streams under way, and then another."""
    random = Random(STREAMS)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(llama_http.running(resolve(None), slots=4, context=512)) for _ in range(3)
        ]
        urls, processes = [url for url, _ in servers], dict(servers)
        pool = Options(urls[0], upstream_key=llama_http.KEY, replica=tuple(urls[1:])).build()
        await pool.start()

        async def written(number: int) -> Output:
            return await answer(pool, text=question(number), max_tokens=12 * (1 + number % 4))

        def busiest() -> str:
            alive = [replica for replica in pool.replicas if replica.name in processes]
            return max(alive, key=lambda replica: replica.running).name

        undisturbed = await asyncio.gather(*map(written, range(STREAMS)))
        OBSERVATION.set(observation := Observation())
        tasks = [asyncio.create_task(written(number)) for number in range(STREAMS)]
        for _ in range(2):
            done = random.randrange(STREAMS // 4, STREAMS // 2)
            while sum(task.done() for task in tasks) < done:
                await asyncio.sleep(0.01)
            processes.pop(busiest()).kill()
        disturbed = await asyncio.gather(*tasks)
        await pool.stop()
    assert observation.failovers
    assert [*map(_told, disturbed)] == [*map(_told, undisturbed)]


def _told(output: Output) -> tuple[str, FinishReason, int]:
    """What has to be the same. How much of a prompt was cached differs between servers."""
    return output.text, output.reason, output.usage.completion_tokens


bounds = st.none() | st.integers(-3, 3).map(float)
numbers = st.lists(st.integers(-3, 3).map(float), max_size=3).map(tuple)
ranges = st.builds(Range, bounds, bounds, bounds, st.none() | numbers)


@given(ranges, ranges, st.integers(-4, 4).map(float))
def test_a_pool_takes_the_numbers_that_all_replicas_take(one: Range, other: Range, value: float) -> None:
    assert one.both(other).admits(value) is (one.admits(value) and other.admits(value))


# What is known of caches


class Sized(Handheld):
    """An engine that says how much its cache holds, and where its events are published."""

    async def cache_figures(self) -> CacheFigures:
        return CacheFigures(block_size=BLOCK, blocks=10)

    async def event_sources(self) -> list[Source]:
        return [Source("tcp://gpu:1")]


class Followed:
    """What follows events, whose messages a test hands on."""

    def __init__(self) -> None:
        self.views: list[EventsView] = []
        self.stopped = False

    def follow(self, sources: Sequence[Source], view: EventsView) -> None:
        view.begin(sources)
        self.views.append(view)

    async def stop(self) -> None:
        self.stopped = True


async def test_no_more_is_remembered_than_a_cache_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.engines.pool.PROBE_SECONDS", 0.01)
    engines = [Sized(), Sized()]
    pool = await pool_of(*engines)
    await until(lambda: all(replica.measured for replica in pool._replicas))
    for number in range(8):
        pool.generate(prompt(*[number] * BLOCK * 4), Collected()).cancel()
    assert [replica.cache.size for replica in pool._replicas] == [10 * BLOCK] * 2
    await pool.stop()


async def test_events_tell_where_a_prompt_is() -> None:
    """A prompt that another server sent goes where it is, and what was expected is counted."""
    engines, followed = [Sized(), Sized()], Followed()
    pool = PoolEngine([("one", engines[0]), ("two", engines[1])], follow=lambda: followed)
    await pool.start()
    ids = tuple(range(BLOCK * 4))
    followed.views[1].ranks[0].apply([Stored([1, 2, 3, 4], ids, BLOCK)])
    followed.views[1].heard()
    pool.generate(prompt(*ids, 7), collected := Collected())
    assert [len(engine.asked) for engine in engines] == [0, 1]
    engines[1].receivers[0].push([Chunk("a", cached_tokens=100)])
    await collected.begun.wait()
    engines[1].receivers[0].push([Chunk("b", cached_tokens=100)])
    figures = (await pool.cache_figures()).pool
    assert figures is not None
    assert (figures.predicted, figures.cached, figures.blocks) == (BLOCK * 4, 100, 4)
    engines[1].receivers[0].fail(EngineError())
    assert followed.views[1].size == 0, "it has failed: its cache may be empty"
    await pool.stop()
    assert followed.stopped


async def test_events_are_followed_again_where_a_pool_is_started_again() -> None:
    followed = Followed()
    pool = PoolEngine([("one", Sized()), ("two", Sized())], follow=lambda: followed)
    for _ in range(2):
        await pool.start()
        await pool.stop()
    assert len(followed.views) == 4
    assert len({*followed.views}) == 2


class TwoRanks(Sized):
    """An engine of two data-parallel ranks."""

    async def event_sources(self) -> list[Source]:
        return [Source(f"tcp://gpu:{port}", take_ranks=True) for port in (1, 2)]


async def test_a_prompt_goes_to_the_rank_that_has_it_until_that_is_busier() -> None:
    engine, followed = TwoRanks(), Followed()
    pool = PoolEngine([("one", engine), ("two", Handheld())], follow=lambda: followed)
    await pool.start()
    ids = tuple(range(BLOCK * 10))
    followed.views[0].ranks[1].apply([Stored([*range(10)], ids, BLOCK)])
    followed.views[0].heard()

    def ask() -> Work:
        return pool.generate(prompt(*ids, 7), Collected())

    works = [ask(), ask(), ask()]
    assert [request.placement.rank for request in engine.asked] == [1, 1, 0]
    works[0].cancel()
    works[0].cancel()  # counts once
    engine.receivers[1].push([Chunk("a", finish=Finish(FinishReason.STOP))])
    engine.receivers[2].fail(EngineBusyError())
    assert set(pool._replicas[0].at_ranks.values()) == {0}
    assert not any(request.placement.tell_again for request in engine.asked)
    await pool.stop()


class Telling(Sized):
    """A vLLM, whose events tell again of blocks that it has."""

    async def event_sources(self) -> list[Source]:
        return [Source("tcp://gpu:1", tell_again=True)]


async def test_a_server_tells_again_of_its_cache_for_a_minute_after_it_became_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("antiphon.engines.pool._now", lambda: now)
    engine, followed = Telling(), Followed()
    pool = PoolEngine([("one", engine), ("two", Handheld())], follow=lambda: followed)
    await pool.start()
    ids = tuple(range(BLOCK * 100))

    def asked() -> bool:
        [rank] = followed.views[0].ranks
        rank.apply([Stored([*range(100)], ids, BLOCK)])
        followed.views[0].heard()
        pool.generate(prompt(*ids), Collected()).cancel()
        return engine.asked[-1].placement.tell_again

    assert asked(), "at the start"
    now += 59
    assert asked()
    now += 2
    assert not asked()
    [rank] = followed.views[0].ranks
    rank.receive([b"", (7).to_bytes(8, "big"), b"\x93\x00\x90\x00"])
    assert not asked(), "it may be replayed"
    rank.cannot_replay()
    assert asked()
    now += 61
    assert not asked()
    rank.receive([b"", (3).to_bytes(8, "big"), b"\x93\x00\x90\x00"])  # it has started again
    assert asked()
    await pool.stop()
