"""Traces of prompts: the first difference is found exactly, and the part that makes it."""

from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.app.cache_traces import CacheTraces
from antiphon.core.cache_trace import (
    BLOCK,
    OPENING,
    TEMPLATE,
    CacheHit,
    CacheMiss,
    NotCompared,
    PromptTrace,
    RequestParts,
    common_tokens,
    compared,
    hash_of,
    settings_of,
    trace_of,
)
from antiphon.core.limits import Limits


def runs(ids: st.SearchStrategy[int]) -> st.SearchStrategy[list[int]]:
    """Prompts of several blocks, in which an id repeats."""
    some = st.lists(st.tuples(ids, st.integers(1, 3) | st.integers(BLOCK - 2, BLOCK + 2)), max_size=6)
    return some.map(lambda pairs: [id_ for id_, count in pairs for _ in range(count)])


IDS = runs(st.sampled_from([-1, 0, 1, 2**31, 2**32 - 1, 2**32, 2**40]))
SMALL = runs(st.integers(0, 3))


def trace(ids: list[int], media: tuple[str, ...] = (), **parts: Any) -> PromptTrace:
    return trace_of(ids, media, RequestParts(**parts))


@given(IDS | SMALL, IDS | SMALL, IDS | SMALL)
def test_the_first_difference_is_found_to_the_token(
    same: list[int], one: list[int], other: list[int]
) -> None:
    first, second = same + one, same + other
    alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
    assert common_tokens(trace(first), trace(second)) == alike == common_tokens(trace(second), trace(first))


@given(IDS | SMALL, IDS | SMALL, IDS | SMALL)
def test_a_trace_is_the_same_after_any_other(same: list[int], one: list[int], other: list[int]) -> None:
    earlier, ids = trace(same + one), same + other
    assert trace_of(ids, (), RequestParts(), earlier) == trace(ids)


PARTS = {
    "settings": settings_of(model="m", tools=[], system="s", thinking=None),
    "items": (hash_of(1), hash_of(2)),
}
LONG = [*range(300)]


def changed(**settings: Any) -> dict[str, Any]:
    return {**PARTS, "settings": {**PARTS["settings"], **settings_of(**settings)}}


ITEM = {**PARTS, "items": (hash_of(1), hash_of(3), hash_of(4))}
GROWN = {**PARTS, "items": (*PARTS["items"], hash_of(3))}
CASES: list[tuple[list[int], dict[str, Any], Any]] = [
    ([*LONG, 1, 2], GROWN, CacheHit()),
    (LONG, PARTS, CacheHit()),
    ([*LONG[:-OPENING], 7, 7], GROWN, CacheHit()),
    ([*LONG[: -OPENING - 1], 7, 7], GROWN, CacheMiss(TEMPLATE, 283, 17, 2)),
    (
        [*LONG[: -OPENING - 1], 7, 7],
        {**GROWN, "leaves_out": "truncation"},
        CacheMiss("truncation", 283, 17, 2),
    ),
    ([*LONG[:299], 7], ITEM, CacheMiss("messages[1]", 299, 1, 1)),
    ([*LONG, 7], ITEM, CacheHit()),
    (LONG[:100], {**PARTS, "items": PARTS["items"][:1]}, CacheMiss("messages[1]", 100, 200, 0)),
    ([5, *LONG], changed(tools=[1]), CacheMiss("tools", 0, 300, 301)),
    ([5, *LONG], {**changed(tools=[1]), "items": ITEM["items"]}, CacheMiss("tools", 0, 300, 301)),
    ([5, *LONG], changed(system="t", tools=[1]), CacheMiss("tools", 0, 300, 301)),
    ([*LONG, 5], changed(tools=[1]), CacheHit()),
    (
        [5, *LONG],
        {**ITEM, "settings": changed(thinking=1)["settings"]},
        CacheMiss("messages[1]", 0, 300, 301),
    ),
    ([5, *LONG], changed(thinking=1), CacheMiss("thinking", 0, 300, 301)),
    (
        [5, *LONG],
        {**changed(**{"reasoning.effort": 1}), "items": ITEM["items"]},
        CacheMiss("messages[1]", 0, 300, 301),
    ),
    ([5, *LONG], changed(**{"reasoning.effort": 1}), CacheMiss("reasoning.effort", 0, 300, 301)),
    (LONG[:-OPENING], changed(**{"reasoning.effort": 1}), CacheHit()),
    (LONG[:-OPENING], changed(system="t"), CacheMiss("system", 284, 16, 0)),
    (LONG, changed(model="n"), CacheMiss("model", 0, 300, 300)),
    ([5, *LONG], {**PARTS, "compactions": 1}, CacheMiss("compaction", 0, 300, 301)),
    ([5, *LONG], {**ITEM, "history": 5, "listed": "input"}, CacheMiss("history[1]", 0, 300, 301)),
    ([5, *LONG], {**ITEM, "history": 1, "listed": "input"}, CacheMiss("input[0]", 0, 300, 301)),
    ([], PARTS, NotCompared()),
]


@pytest.mark.parametrize(("ids", "parts", "result"), CASES)
def test_the_part_that_makes_the_difference_is_named(
    ids: list[int], parts: dict[str, Any], result: Any
) -> None:
    assert compared(trace(LONG, **PARTS), trace(ids, **parts)) == result


def test_media_are_compared_too() -> None:
    before, now = trace(LONG, ("a",), **PARTS), trace([*LONG, 1], ("a", "b"), **GROWN)
    assert compared(before, now) == CacheHit()
    assert compared(before, replace(now, media=("c", "b"))) == NotCompared()


# The table


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.integers(0, 3 * BLOCK), st.integers(0, 2)),
        min_size=1,
        max_size=40,
    )
)
def test_traces_share_blocks_and_stay_within_the_limits(answers: list[tuple[str, int, int]]) -> None:
    traces = CacheTraces(Limits(traced_answers=4, trace_bytes=9_000))
    for name, size, kind in answers:
        traces.put("owner", name, trace([kind] * size))
        assert len(traces) <= 4
        assert 0 <= traces.size <= 9_000
        kept = traces.get("owner", name)
        assert kept is not None
        assert kept.tokens == size
        assert traces.get("another", name) is None
    blocks = {block for name in "abcdef" if (kept := traces.get("owner", name)) for block in kept.hashes}
    assert blocks == {*traces._blocks}
    for name in "abcdef":
        traces._forget(("owner", name))
    assert (traces.size, len(traces), traces._blocks) == (0, 0, {})


@pytest.mark.parametrize(
    "large",
    [
        trace([10**6] * 300),
        trace([1], ("d" * 64,) * 8),
        trace([1], items=(hash_of(1),) * 16),
        trace([1], settings=settings_of(**{str(number): 1 for number in range(16)})),
    ],
    ids=["tokens", "media", "items", "settings"],
)
def test_a_trace_that_is_over_the_limit_is_not_kept(large: PromptTrace) -> None:
    traces = CacheTraces(Limits(trace_bytes=1_500))
    traces.put("owner", "a", large)
    assert traces.get("owner", "a") is None
    assert traces.size == 0
