"""Requests that wait for the prompt of another."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.items import MediaKind, MediaPart
from antiphon.core.limits import CLIENT
from antiphon.core.turn import Adapter, Sampling
from antiphon.engines.engine import GenerationRequest, Prompt
from antiphon.engines.shared_prompts import SHARED_TOKENS, SharedPrompts, common_length
from tests.contracts.engine import until

BEGIN = (*range(2 * SHARED_TOKENS),)
LONG = 0.2
"""Seconds that a prompt takes to compute which others wait for."""


def request_of(*rest, begin=BEGIN, **fields):
    media = fields.pop("media", ())
    sampling = Sampling(seed=fields.pop("seed", None), lora=fields.pop("lora", None))
    return GenerationRequest(
        prompt=Prompt("", (*begin, *rest), media), sampling=sampling, max_tokens=9, **fields
    )


class Engine:
    """Begins everything at once, and says what."""

    def __init__(self, slots=4):
        self.prompts = SharedPrompts(slots)
        self.begun = []
        self.busy = False  # with others: what is begun has to wait for a slot

    def enter(self, name, request):
        def start():
            self.begun.append((name, CLIENT.get()))
            if not self.busy:
                ticket.mark_in_slot()

        ticket = self.prompts.ticket(request, start)
        ticket.enter()
        return ticket

    @property
    def names(self):
        return [name for name, _ in self.begun]


async def test_a_prompt_waits_for_one_that_begins_like_it_and_begins_when_that_is_over():
    engine = Engine()
    one, two, three = (engine.enter(name, request_of(name)) for name in (1, 2, 3))
    assert (engine.names, engine.prompts.waiting) == ([1], 2)
    one.leave()
    assert (engine.names, engine.prompts.waiting) == ([1, 2], 1)
    two.leave()
    assert (engine.names, engine.prompts.waiting) == ([1, 2, 3], 0)
    three.leave()


async def test_it_waits_as_long_as_computing_would_take_and_others_then_wait_for_it():
    engine = Engine()
    one = engine.enter(1, request_of(1))
    two, three = (engine.enter(name, request_of(name)) for name in (2, 3))
    await asyncio.sleep(LONG)
    one.mark_computed()
    assert engine.names == [1]
    await until(lambda: len(engine.names) > 1)
    assert (engine.names, engine.prompts.waiting) == ([1, 2], 1)
    two.mark_computed()
    two.leave()
    assert engine.names == [1, 2, 3]
    for ticket in (one, three):
        ticket.leave()


async def test_one_that_comes_when_the_wait_is_not_worth_it_begins():
    engine = Engine()
    engine.enter(1, request_of(1)).mark_computed()  # in no time
    engine.enter(2, request_of(2))
    await until(lambda: engine.names == [1, 2])


async def test_it_does_not_wait_if_an_idle_slot_has_as_much_of_it():
    engine = Engine()
    one = engine.enter(1, request_of(1))
    one.mark_computed()
    two = engine.enter(2, request_of(2))
    await until(lambda: engine.names == [1, 2])
    two.mark_computed()
    one.leave()
    two.leave()  # both slots have the beginning
    for name in (3, 4, 5):
        engine.enter(name, request_of(name))
    assert (engine.names, engine.prompts.waiting) == ([1, 2, 3, 4], 1)


@pytest.mark.parametrize(
    "other",
    [
        request_of(begin=BEGIN[1:]),
        request_of(begin=BEGIN[: SHARED_TOKENS - 1]),
        request_of(lora=(Adapter("sql"),)),
        request_of(lora=(Adapter("sql", 0.5),)),
        request_of(seed=1),
        request_of(media=(MediaPart(MediaKind.IMAGE, "", "image/png", b""),)),
    ],
    ids=["another beginning", "a short one", "an adapter", "its scale", "a seed", "media"],
)
async def test_it_waits_for_none_that_it_could_not_use(other):
    for requests in ((request_of(1), other), (other, request_of(1))):
        engine = Engine()
        for place, request in enumerate(requests):
            engine.enter(place, request)
        assert engine.names == [0, 1]


async def test_it_does_not_wait_for_a_prompt_that_has_much_more():
    engine = Engine()
    engine.enter(1, request_of(*range(3 * len(BEGIN))))
    engine.enter(2, request_of(2))
    assert engine.names == [1, 2]


async def test_no_more_wait_than_there_are_slots():
    engine = Engine(slots=2)
    for name in range(5):
        engine.enter(name, request_of(name))
    assert (engine.names, engine.prompts.waiting) == ([0, 3, 4], 2)


async def test_none_waits_for_one_that_waits_for_a_slot():
    engine = Engine()
    one = engine.enter(1, request_of(1))
    for name in (2, 3, 4):
        engine.enter(name, request_of(name))
    engine.busy = True
    one.leave()
    assert (engine.names, engine.prompts.waiting) == ([1, 2, 3, 4], 0)
    engine.enter(5, request_of(5))
    assert engine.names[-1] == 5


async def test_a_prompt_that_was_not_computed_is_in_no_slot():
    engine = Engine()
    engine.enter(1, request_of(1)).leave()
    for name in (2, 3):
        engine.enter(name, request_of(name))
    assert (engine.names, engine.prompts.waiting) == ([1, 2], 1)


async def test_one_that_is_not_wanted_any_more_does_not_begin():
    engine = Engine()
    one, two, _three = (engine.enter(name, request_of(name)) for name in (1, 2, 3))
    two.leave()
    one.leave()
    two.leave()
    assert engine.names == [1, 3]


async def test_it_begins_as_the_client_that_it_is_of():
    engine = Engine()
    tickets = []
    for client in ("ann", "bob"):
        CLIENT.set(client)
        tickets.append(engine.enter(client, request_of(0)))
    CLIENT.set("cat")
    tickets[0].leave()
    assert engine.begun == [("ann", "ann"), ("bob", "bob")]


@given(st.lists(st.booleans()), st.lists(st.booleans()))
def test_the_common_length_is_that_of_the_longest_common_beginning(one, other):
    length = common_length(one, other)
    assert one[:length] == other[:length]
    assert length == min(len(one), len(other)) or one[length] != other[length]
