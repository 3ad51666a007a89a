"""What a pool knows of caches: by what it sent, and by the events of vLLM and SGLang."""

from collections.abc import Sequence
from itertools import count
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.engines.block_index import EXPECTED_SECONDS, TIERS, BlockIndex, PromptBlocks
from antiphon.engines.cache_views import BLOCK, SILENT_SECONDS, ApproximateView, EventsView
from antiphon.engines.engine import Load
from antiphon.engines.kv_events import END, CacheEvents, Cleared, Removed, Stored, decoded
from antiphon.engines.kv_sources import Source
from antiphon.engines.pool import BUSY_TOKENS, Replica, cheapest
from antiphon.engines.scripted import ScriptedEngine

SIZE = 4


def stored(tokens: Sequence[int], hashes: list[Any], parent: Any = None, **more: Any) -> dict[str, Any]:
    """An event as vLLM 0.33 writes it."""
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **more,
    }


def removed(hashes: list[Any], medium: str = "GPU") -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": medium}


CLEARED = {"type": "AllBlocksCleared"}


def payload(*events: Any, at: float = 0.0) -> bytes:
    return msgspec.msgpack.encode([at, events, 0])


def message(number: int, *events: Any, at: float = 0.0) -> list[bytes]:
    return [b"kv", number.to_bytes(8, "big"), payload(*events, at=at)]


_times = count(1.0)


def blocks(events: CacheEvents, index: BlockIndex, tokens: Sequence[int], **more: Any) -> float:
    return index.look_up(PromptBlocks(tokens, **more).chain(SIZE)).get(events.bit, 0)


def fresh() -> tuple[BlockIndex, CacheEvents]:
    index = BlockIndex()
    return index, CacheEvents(index)


# What is read


def test_events_of_vllm_of_sglang_and_older_ones_are_read() -> None:
    want = Stored([1, 2], tuple(range(8)), SIZE)
    assert decoded(payload(stored(range(8), [1, 2]), removed([1]), CLEARED)) == [
        want,
        Removed([1]),
        Cleared(),
    ]
    older = ["BlockStored", [1, 2], None, list(range(8)), SIZE, None, "GPU"]
    assert decoded(payload(older, ["BlockRemoved", [1], "CPU"], ["AllBlocksCleared"])) == [
        want,
        Removed([1], 1),
        Cleared(),
    ]
    sglang = {
        "type": "BlockStored",
        "block_hashes": [2**64 - 1],
        "parent_block_hash": b"\x01" * 32,
        "token_ids": [1],
        "block_size": 1,
        "lora_id": None,
        "medium": "CPU_PINNED",
        "cache_salt": "s",
    }
    assert decoded(payload(sglang)) == [
        Stored([2**64 - 1], (1,), 1, b"\x01" * 32, tier=1, salt="s"),
    ]
    assert decoded(payload({"type": "Heard"})) == []


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
fields = st.fixed_dictionaries(
    {"type": st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"])},
    optional={name: anything for name in stored([], []) if name != "type"},
)


@given(
    st.binary()
    | st.lists(anything | fields).map(lambda events: payload(*events))
    | anything.map(msgspec.msgpack.encode)
)
def test_nothing_that_comes_raises(data: bytes) -> None:
    _, events = fresh()
    for frames in ([], [data], [b"", data, data], message(0, CLEARED), [b"", bytes(8), data]):
        events.receive(frames)
        events.receive_replayed(frames)
    assert decoded(b"\x91" * 100_000) is None


def test_a_message_that_is_too_long_or_broken_forgets_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    _, events = fresh()
    events.receive(message(0, stored(range(8), [1, 2])))
    monkeypatch.setattr("antiphon.engines.kv_events.MAX_PAYLOAD", 8)
    events.receive(message(1, removed([1])))
    assert (len(events), events.losses) == (0, 1)


# The laws


class Cache:
    """A cache of blocks as an engine has it, which tells what happens. Hashes are those of the content."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.blocks: dict[tuple[int, ...], int] = {}
        self.messages: list[list[bytes]] = []

    def act(self) -> None:
        """One step: store a prompt, remove some blocks, or all."""
        events: list[Any] = []
        for _ in range(self.random.randint(1, 3)):
            what = self.random.random()
            if what < 0.65:
                events += self.store(tuple(self.random.choices((1, 2), k=SIZE * self.random.randint(1, 4))))
            elif what < 0.95 and self.blocks:
                gone = self.random.choice([*self.blocks])
                events.append(removed([self.blocks.pop(gone)]))
            else:
                self.blocks.clear()
                events.append(CLEARED)
        self.messages.append(message(len(self.messages), *events, at=next(_times)))

    def store(self, tokens: tuple[int, ...]) -> list[Any]:
        prefixes = [tokens[:end] for end in range(SIZE, len(tokens) + 1, SIZE)]
        events = []
        for prefix in prefixes:
            if prefix not in self.blocks:
                parent = None if len(prefix) == SIZE else hash(prefix[:-SIZE])
                if parent is not None and prefix[:-SIZE] not in self.blocks:
                    break
                self.blocks[prefix] = hash(prefix)
                events.append(stored(prefix[-SIZE:], [hash(prefix)], parent))
        return events

    def depth(self, tokens: tuple[int, ...]) -> int:
        ends = range(SIZE, len(tokens) + 1, SIZE)
        return next((n for n, end in enumerate(ends) if tokens[:end] not in self.blocks), len(ends))

    def replay(self, events: CacheEvents, start: int | None, kept: int) -> None:
        """Repeat the last messages, as often as it is asked for."""
        while start is not None:
            for frames in self.messages[-kept:]:
                if int.from_bytes(frames[1], "big") >= start:
                    assert events.receive_replayed(frames) is None
            start = events.receive_replayed([b"", END.to_bytes(8, "big"), b""])


PROMPTS = [tuple(Random(n).choices((1, 2), k=SIZE * 4)) for n in range(40)]


@given(st.randoms(use_true_random=False), st.integers(1, 3), st.booleans())
def test_the_index_is_what_caches_have_whatever_is_lost(random: Random, caches: int, restarts: bool) -> None:
    """Messages get lost, are replayed from a short memory, and engines start again, as connections show."""
    index = BlockIndex()
    pairs = [(Cache(random), CacheEvents(index)) for _ in range(caches)]
    restarted = False
    for _ in range(30):
        number = random.randrange(caches)
        cache, events = pairs[number]
        if restarts and random.random() < 0.1:
            restarted = True
            cache, _ = pairs[number] = Cache(random), events
            for _ in range(random.choice([0, 1, 5, 20])):
                cache.act()  # before there is a connection
            cache.replay(events, events.connected(), random.choice([2, 100]))
        else:
            cache.act()
            if random.random() < 0.3:
                continue  # lost
            cache.replay(events, events.receive(cache.messages[-1]), random.choice([2, 100]))
        for prompt in PROMPTS[:8]:
            told = blocks(events, index, prompt)
            assert told <= cache.depth(prompt)
            if not events.losses and not events.gaps and not restarted:
                assert told == cache.depth(prompt)
    for _, events in pairs:
        events.forget()
    assert len(index) == 0


@given(st.randoms(use_true_random=False), st.integers(0, 20), st.integers(0, 20))
def test_an_engine_that_starts_again_unseen_is_known_by_its_messages(
    random: Random, first: int, second: int
) -> None:
    """Whatever numbers it has reached when the connection is there again."""
    index, events = fresh()
    for acts in (first, second):
        cache = Cache(random)
        for _ in range(acts):
            cache.act()
        cache.replay(events, events.connected(), 100)
        assert [blocks(events, index, prompt) for prompt in PROMPTS] == [*map(cache.depth, PROMPTS)]


@given(st.randoms(use_true_random=False))
def test_how_events_are_split_into_messages_does_not_matter(random: Random) -> None:
    cache = Cache(random)
    for _ in range(20):
        cache.act()
    index, one = fresh()
    other = CacheEvents(index)
    for frames in cache.messages:
        one.receive(frames)
    other.apply([event for frames in cache.messages for event in decoded(frames[2]) or ()])
    for prompt in PROMPTS:
        assert blocks(one, index, prompt) == blocks(other, index, prompt) == cache.depth(prompt)


# Cases


def test_a_gap_is_replayed_and_what_came_twice_counts_once() -> None:
    index, events = fresh()
    assert events.receive(message(0, stored(range(4), [1]))) is None
    assert events.receive(message(2, removed([1]))) == 0, "so that it shows whether it is the same engine"
    assert events.receive(message(3)) is None  # under way
    events.receive_replayed(message(0, stored(range(4), [1])))
    events.receive_replayed(message(1, stored(range(4, 8), [2], 1)))
    events.receive_replayed(message(2, removed([2])))
    events.receive_replayed(message(3))
    assert events.receive_replayed([b"", END.to_bytes(8, "big"), b""]) is None
    assert blocks(events, index, range(8)) == 1
    assert (events.gaps, events.losses) == (1, 0)


def test_without_a_replay_a_new_connection_makes_a_cache_unknown() -> None:
    index, events = fresh()
    events.receive(message(0, stored(range(4), [1])))
    events.connected()
    events.cannot_replay()
    assert (blocks(events, index, range(4)), events.losses) == (0, 1)
    assert events.receive(message(1, stored(range(4), [1]))) is None
    assert blocks(events, index, range(4)) == 1


def test_an_engine_that_starts_again_has_nothing() -> None:
    index, events = fresh()
    for number in range(3):
        events.receive(message(number, stored(range(4), [1])))
    assert events.receive(message(1)) == 0
    assert blocks(events, index, range(4)) == 0


def test_what_has_an_unknown_parent_is_no_beginning_until_it_is_told_again() -> None:
    index, events = fresh()
    events.receive(message(0, stored(range(4, 8), [2], 1)))
    assert blocks(events, index, range(4, 8)) == 0
    events.receive(message(1, stored(range(8), [1, 2])))
    assert blocks(events, index, range(8)) == 2
    assert len(index) == 2, "what had the unknown parent is there no more"
    events.receive(message(2, removed([2])))
    assert blocks(events, index, range(8)) == 1


def test_what_cannot_be_replayed_makes_a_cache_unknown() -> None:
    index, events = fresh()
    events.receive(message(0, stored(range(4), [1])))
    assert events.receive(message(5)) == 0
    events.receive_replayed(message(4))  # those before are gone
    assert (blocks(events, index, range(4)), events.losses) == (0, 1)


def test_salts_adapters_and_media_are_apart() -> None:
    index, events = fresh()
    salted = stored(range(8), [1, 2], extra_keys=[["salt"], None])
    adapted = stored(range(8), [3, 4], lora_name="a", extra_keys=[["a", "salt"], ["a"]])
    image = stored(range(8), [5, 6], extra_keys=[[["image", 0]], None])
    events.receive(message(0, salted, adapted, image))
    assert blocks(events, index, range(8)) == 0
    assert blocks(events, index, range(8), salt="salt") == 2
    assert blocks(events, index, range(8), salt="salt", adapters=("a",)) == 2
    assert blocks(events, index, range(8), adapters=("a",)) == 0


def test_slower_memory_counts_less() -> None:
    index, events = fresh()
    tokens = range(8)
    events.receive(message(0, stored(tokens, [1, 2]), stored(tokens, [1, 2], medium="CPU"), removed([2])))
    assert blocks(events, index, tokens) == 1.75
    events.receive(message(1, removed([1, 2], "CPU")))
    assert blocks(events, index, tokens) == 1


def test_only_groups_that_need_all_blocks_count() -> None:
    index, events = fresh()
    window = stored(range(8), [1, 2], group_idx=1, kv_cache_spec_kind="sliding_window")
    full = stored(range(8), [1, 2], group_idx=0, kv_cache_spec_kind="full_attention")
    gone = {**removed([1, 2]), "group_idx": 1}
    events.receive(message(0, full, window, gone))
    assert blocks(events, index, range(8)) == 2


def test_no_more_is_remembered_than_a_cache_holds_and_a_quarter() -> None:
    index, events = fresh()
    events.resize(8)
    for number in range(100):
        events.receive(message(number, stored(range(number, number + 4), [number])))
    assert len(events) == len(index) == 10


def test_what_was_sent_is_remembered_as_far_as_the_cache_holds_it() -> None:
    view = ApproximateView(BlockIndex())
    view.resize(BLOCK * 4)
    first, second = PromptBlocks(range(BLOCK * 3)), PromptBlocks(range(1, BLOCK * 2 + 1))
    view.read(first)
    view.read(second)
    assert view.cached_tokens(second) == BLOCK * 2
    assert view.cached_tokens(first) == BLOCK * 2, "its end is forgotten first"
    assert view.size == BLOCK * 4


def test_a_prompt_under_way_is_expected_and_a_silent_replica_is_half_believed() -> None:
    now = 0.0
    index = BlockIndex(lambda: now)
    view = EventsView(index)
    [rank] = view.begin([Source("tcp://gpu:1")])
    rank.receive(message(0, stored(range(100, 104), [9])))
    view.heard()

    def cached() -> float:
        return view.cached_tokens(PromptBlocks(range(BLOCK * 2)))

    view.read(PromptBlocks(range(BLOCK * 2)))
    assert cached() == BLOCK * 2
    now = EXPECTED_SECONDS + 0.1
    assert cached() == 0
    now = SILENT_SECONDS + 0.1
    assert cached() == BLOCK
    rank.receive(message(1, CLEARED))
    view.heard()
    assert cached() == 0


def test_a_prompt_that_is_sent_again_is_expected_for_longer() -> None:
    now = 0.0
    index = BlockIndex(lambda: now)
    view = EventsView(index)
    view.begin([Source("tcp://gpu:1")])
    long, short = PromptBlocks(range(BLOCK * 2)), PromptBlocks(range(BLOCK))
    view.read(long)
    now = EXPECTED_SECONDS / 2
    view.read(short)
    now = EXPECTED_SECONDS
    assert view.cached_tokens(PromptBlocks(range(BLOCK * 2))) == BLOCK
    view.forget()
    assert view.cached_tokens(PromptBlocks(range(BLOCK * 2))) == 0
    now = EXPECTED_SECONDS * 2
    index.look_up([])
    assert not index._expected


class Looked(dict[int, int]):
    """Counts how often it is looked into."""

    gets = 0

    def get(self, key: int, default: int = 0) -> int:  # type: ignore[override]
        self.gets += 1
        return super().get(key, default)


class Loaded(ScriptedEngine):
    """Counts how often its load is asked for."""

    def __init__(self, running: int) -> None:
        super().__init__([])
        self.running = running
        self.asked = 0

    @property
    def load(self) -> Load:
        self.asked += 1
        return Load(self.running)


@pytest.mark.parametrize(
    ("depths", "looked", "asked"),
    [
        ([500] * 200, 500, 200),  # all have it: the load decides
        ([0] * 200, 1, 200),
        ([0] * 199 + [500], 500, 1),  # one has it: nothing else can be cheaper
        ([0] * 150 + [100] * 40 + [500] * 10, 500, 10),
        ([*range(300, 500)], 500, 81),
    ],
)
def test_a_prompt_of_8000_tokens_is_placed_among_200_replicas(
    depths: list[int], looked: int, asked: int
) -> None:
    """The work is one walk, and a look at the loads of those that could be the cheapest."""
    chain = PromptBlocks(range(8_000)).chain(16)
    index = BlockIndex(lambda: 0.0)
    replicas = []
    for number, depth in enumerate(depths):
        view = EventsView(index)
        [rank] = view.begin([Source("tcp://gpu:1")])
        rank.apply([Stored([*range(depth)], tuple(range(depth * 16)), 16)])
        view.heard()
        replicas.append(Replica(Loaded(number % 7 + 2), str(number), number / 200, view))
    masks = Looked(index._tiers[0])
    index._tiers = (masks, *index._tiers[1:])
    prompt = PromptBlocks(range(8_000))
    engines = [replica.engine for replica in replicas]
    costs = [256 * engine.running - 16 * depth for engine, depth in zip(engines, depths, strict=True)]
    assert cheapest(replicas, prompt) in [
        replica for replica, cost in zip(replicas, costs, strict=True) if cost == min(costs)
    ]
    assert masks.gets == looked
    assert sum(engine.asked for engine in engines) == asked
    assert prompt.chain(16) == chain


class Held:
    """A cache that holds so many tokens of any prompt."""

    def __init__(self, cached: float, size: int) -> None:
        self.cached, self.size = cached, size

    def cached_tokens(self, prompt: PromptBlocks) -> float:
        return self.cached


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=6))
def test_no_replica_is_cheaper_than_the_one_that_is_chosen(states: list[tuple[int, int, int]]) -> None:
    """Loads that are not looked at would not have changed the choice."""
    replicas = [
        Replica(Loaded(running), str(number), -number, Held(BUSY_TOKENS * cached, size))  # type: ignore[arg-type]
        for number, (running, cached, size) in enumerate(states)
    ]
    best = min(
        range(len(states)),
        key=lambda number: (states[number][0] - states[number][1], states[number][2], -number),
    )
    assert cheapest(replicas, PromptBlocks([])) is replicas[best]


@given(st.randoms(use_true_random=False))
def test_a_walk_finds_what_a_look_at_each_cache_does(random: Random) -> None:
    """Blocks in any tier, or expected, and holes."""
    now = 0.0
    index = BlockIndex(lambda: now)
    chain = list(range(6))
    bits = [index.new_bit() for _ in range(random.choice([2, 20]))]
    worth = {bit: [0.0] * len(chain) for bit in bits}
    for bit in bits:
        expected = random.randint(0, 3) * (random.random() < 0.5)
        index.expect(bit, chain[:expected])
        for place in chain:
            tiers = [tier for tier in range(3) if random.random() < random.choice([0.2, 0.9])]
            for tier in tiers:
                index.add(bit, place, tier)
            worth[bit][place] = max([*(TIERS[tier] for tier in tiers), float(place < expected)])
    want = {}
    for bit, values in worth.items():
        depth = next((place for place, value in enumerate(values) if not value), len(chain))
        if depth:
            want[bit] = pytest.approx(sum(values[:depth]))
    assert index.look_up(chain) == want
