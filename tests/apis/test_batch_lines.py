"""The lines of a batch's file: found however the bytes come, and put next to those that begin alike."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.apis.batches.lines import LEVELS, Expected, LineScanner, read_line
from antiphon.apis.batches.results import (
    BatchLog,
    Logged,
    Progress,
    answered,
    last_progress,
    read_log_line,
    results_in,
)

CHAT = "/v1/chat/completions"
EXPECTED = Expected(CHAT, most_lines=8, line_bytes=200, model="m")


def line_of(number: int, said: str = "", **fields: Any) -> bytes:
    body = {"messages": [{"role": "user", "content": said}], **fields}
    return json.dumps({"custom_id": f"{number}", "method": "POST", "url": CHAT, "body": body}).encode()


def scanned(*pieces: bytes, expected: Expected = EXPECTED) -> LineScanner:
    scanner = LineScanner(expected)
    for piece in pieces:
        scanner.feed(piece)
    scanner.finish()
    return scanner


WRONG = [b"{", b"[]", b"\xff", b"x" * 300, line_of(0, method=1), line_of(0, stream=True), b""]
LINES = st.lists(
    st.one_of(st.builds(line_of, st.integers(0, 9), st.text("ab", max_size=5)), st.sampled_from(WRONG)),
    max_size=20,
)


@given(LINES, st.lists(st.integers(0, 3000), max_size=20), st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_lines_are_the_same_however_their_bytes_come(
    lines: list[bytes], cuts: list[int], end: bytes, last: bool
) -> None:
    content = end.join(lines) + (end if last else b"")
    at = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    pieces = [content[start:stop] for start, stop in pairwise(at)]
    whole, piecewise = scanned(content), scanned(*pieces)

    assert piecewise.errors == whole.errors
    assert (len(piecewise), piecewise.model) == (len(whole), whole.model)
    places = [whole.place(index) for index in range(len(whole))]
    assert [piecewise.place(index) for index in range(len(whole))] == places
    found = [content[start : start + size] for start, size in places]
    ids = [read_line(each).custom_id for each in found]
    assert len({*ids}) == len(ids) <= EXPECTED.most_lines
    numbers = [error.line for error in whole.errors if error.line is not None]
    assert numbers == sorted({*numbers})
    # Each line is empty, or in the index, or has an error.
    if not whole.full and (found or numbers):
        assert len(found) + len(numbers) == sum(not each.isspace() and bool(each) for each in lines)


@given(st.lists(st.text("ab", max_size=3), max_size=30))
def test_the_index_of_a_line_is_the_same_when_it_is_not_checked_again(said: list[str]) -> None:
    content = b"\n".join(line_of(number, each) for number, each in enumerate(said))
    first = scanned(content, expected=Expected(CHAT, model="m"))
    again = scanned(content, expected=Expected(CHAT, checked=True))

    assert (len(again), again.errors[1:]) == (len(first), [])
    assert [again.place(index) for index in range(len(again))] == [
        first.place(index) for index in range(len(first))
    ]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(0, 3)), max_size=40))
def test_lines_that_begin_alike_are_neighbours(kinds: list[tuple[str, str, int]]) -> None:
    """Of the shortest beginning that is compared, and within that of a longer one."""
    said = [f"{outer * LEVELS[0]}{inner * LEVELS[1]}{rest}" for outer, inner, rest in kinds]
    content = b"\n".join(line_of(number, each) for number, each in enumerate(said))
    scanner = scanned(content, expected=Expected(CHAT, model="m"))
    order = [*scanner.grouped()]

    assert sorted(order) == list(range(len(kinds)))
    for depth in (1, 2):
        groups = [kinds[index][:depth] for index in order]
        begun = [group for before, group in zip([None, *groups], groups, strict=False) if group != before]
        assert begun == [*dict.fromkeys(begun)]
    firsts = [next(at for at, kind in enumerate(kinds) if kind[0] == kinds[index][0]) for index in order]
    assert firsts == sorted(firsts)  # a group stands where its first line does


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 2}, (3, 0, 2, 0)),
        ({"input_tokens": 3, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}}, (3, 1, 2, 0)),
        (
            {
                "prompt_tokens": 3,
                "completion_tokens": 2,
                "completion_tokens_details": {"reasoning_tokens": 1},
            },
            (3, 0, 2, 1),
        ),
        ({"prompt_tokens": 3, "total_tokens": 3}, (3, 0, 0, 0)),
        (None, (0, 0, 0, 0)),
    ],
)
def test_tokens_are_counted_by_either_of_their_names(usage: Any, counts: tuple[int, ...]) -> None:
    log = BatchLog(Progress(), 1, lambda: 1.0)
    body = json.dumps({"usage": usage}).encode()
    [line] = log.push(0, [Logged(0, answered("r", "a", 200, body), body=body)])

    progress = last_progress(line)
    found = (
        progress.input_tokens,
        progress.cached_tokens,
        progress.output_tokens,
        progress.reasoning_tokens,
    )
    assert found == counts
    assert progress.completed == 1


def test_the_log_has_results_calls_and_times() -> None:
    log = BatchLog(Progress(), 3, lambda: 5.0)
    lines = [
        *log.begin(),
        *log.push(0, [Logged(0, b'{"a":1}', body=b"{}")]),
        *log.push(0, [Logged(1, calls=2)]),
        *log.push(0, [Logged(1, b'{"b":1}', failed=True)]),
        *log.finalizing(),
    ]
    events = b"\n".join(lines)

    assert b"".join(results_in(events, failed=False)) == b'{"a":1}\n'
    assert b"".join(results_in(events, failed=True)) == b'{"b":1}\n'
    assert [read_log_line(line).calls for line in lines] == [None, None, 2, None, None]
    assert last_progress(events) == Progress(1, 1, in_progress_at=5.0, finalizing_at=5.0)
