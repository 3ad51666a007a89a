from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.call_results import NO_RESULT, _is_paired, _paired, is_answer, pair_results
from antiphon.core.items import FunctionCall, FunctionOutput, Item, Message, Reasoning, Role, TextPart


def said(role: str, text: str) -> Message:
    return Message(Role(role), (TextPart(text),))


def called(call_id: str) -> FunctionCall:
    return FunctionCall(call_id, f"f_{call_id}", "{}")


def result(call_id: str, text: str = "") -> FunctionOutput:
    return FunctionOutput(call_id, (TextPart(text or f"of {call_id}"),), None)


IDS = st.sampled_from("abc")
ITEMS = st.one_of(
    st.builds(called, IDS),
    st.builds(result, IDS),
    st.builds(said, st.sampled_from(["user", "assistant", "system"]), st.sampled_from(["1", "2"])),
    st.builds(Reasoning, st.just("hm")),
)
HISTORIES = st.lists(ITEMS, max_size=12).map(tuple)


def paired(*items: Item) -> list[str]:
    return [short(item) for item in pair_results(items, [])]


def short(item: Item) -> str:
    match item:
        case FunctionCall(call_id):
            return f"call {call_id}"
        case FunctionOutput():
            return "none" if item.text == NO_RESULT else item.text
        case _:
            return item.text


def test_results_get_the_order_of_their_calls() -> None:
    calls = called("a"), called("b"), called("c")
    assert paired(*calls, result("c"), result("a"), result("b"))[3:] == ["of a", "of b", "of c"]


def test_messages_between_results_come_after_them() -> None:
    items = called("a"), called("b"), result("b"), said("user", "look"), result("a")
    assert paired(*items) == ["call a", "call b", "of a", "of b", "look"]


def test_calls_apart_get_their_results_at_once() -> None:
    items = called("a"), Reasoning("hm"), called("b"), said("assistant", "so"), result("b"), result("a")
    assert paired(*items) == ["call a", "of a", "hm", "call b", "of b", "so"]


def test_calls_of_one_id_get_results_in_turn() -> None:
    items = called("a"), called("a"), result("a", "1"), result("a", "2")
    assert paired(*items) == ["call a", "call a", "1", "2"]
    items = called("a"), result("a", "1"), called("a"), result("a", "2")
    assert paired(*items) == ["call a", "1", "call a", "2"]


def test_what_is_missing_is_added_and_told() -> None:
    repairs: list[str] = []
    items = result("x"), called("a"), called("b"), result("b"), said("assistant", "so"), result("a")
    made = pair_results(items, repairs)
    names = [item.name for item in made if isinstance(item, (FunctionCall, FunctionOutput))]
    assert [short(item) for item in made] == [
        *("call x", "of x", "call a", "call b", "none", "of b", "so", "call a_7", "of a"),
    ]
    assert names == ["unnamed", None, "f_a", "f_b", "f_a", None, "f_a", "f_a"]
    assert repairs == [
        *("the result 'x' answers no call", "the call 'a' has no result", "the result 'a' answers no call"),
    ]


@given(items=HISTORIES)
def test_calls_that_follow_each_other_have_their_results_next_in_their_order(items: tuple[Item, ...]) -> None:
    made = [*pair_results(items, [])]
    waiting: list[str] = []
    for item in made:
        if isinstance(item, FunctionOutput):
            assert waiting, "a result without a call"
            assert item.call_id == waiting.pop(0)
        else:
            assert isinstance(item, FunctionCall) or not waiting, "a call without a result"
            waiting += [item.call_id] if isinstance(item, FunctionCall) else []
    assert not waiting


@given(items=HISTORIES)
def test_nothing_is_lost_and_a_second_time_changes_nothing(items: tuple[Item, ...]) -> None:
    repairs: list[str] = []
    made = pair_results(items, repairs)
    added = sum(2 if "no call" in each else 1 for each in repairs)
    orphans = sum("no call" in each for each in repairs)
    assert len(made) == len(items) + added - orphans
    assert not {*map(short, items)} - {*map(short, made)}
    again: list[str] = []
    assert _is_paired(made)
    assert (_paired(made, again), again) == (made, [])
    assert _is_paired(items) == (made == items)


@given(items=HISTORIES)
def test_the_prompt_of_each_answer_begins_with_that_of_the_one_before(items: tuple[Item, ...]) -> None:
    made = pair_results(items, [])
    for at, item in enumerate(items):
        if is_answer(item) and at and not is_answer(items[at - 1]):
            before = pair_results(items[:at], [])
            assert made[: len(before)] == before
