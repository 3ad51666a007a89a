"""Payloads as server-sent events."""

import json

from hypothesis import given
from hypothesis import strategies as st

from antiphon.apis.framing import DONE, event_type, frame, obfuscate
from antiphon.core.events import TextDelta, TextStarted
from tests.apis.responses.support import answering_to, streamed
from tests.apis.responses.test_stream import CALL, CUSTOM, STOP, SUMMARISED, TEXT, THOUGHT
from tests.openai_schema import validate_event
from tests.response_invariants import check, read_sse

WHOLE = [*THOUGHT, *TEXT, *CALL, STOP]


def test_frames_name_their_types() -> None:
    payloads = streamed(answering_to(), WHOLE)

    assert read_sse(frame(payloads) + DONE) == payloads
    assert frame([]) == b""


@given(st.lists(st.text(min_size=1, max_size=100), min_size=1, max_size=20))
def test_obfuscation_hides_the_lengths_of_deltas(texts: list[str]) -> None:
    answering = answering_to()
    answering.begin()
    payloads = answering.push([TextStarted(), *(TextDelta(text, text) for text in texts)])[2:]

    hidden = obfuscate(payloads)

    assert len({len(payload) % 64 for payload in hidden}) == 1
    for payload, padded in zip(payloads, hidden, strict=True):
        event = json.loads(padded)
        assert len(event.pop("obfuscation")) < 64
        assert event == json.loads(payload)
        validate_event(padded)


def test_obfuscation_touches_nothing_but_deltas() -> None:
    for fields in ({}, SUMMARISED, CUSTOM):
        payloads = streamed(answering_to(**fields), WHOLE)
        hidden = obfuscate(payloads)
        changed = {event_type(payload) for payload in set(hidden) - set(payloads)}

        assert changed == {event_type(payload) for payload in payloads if b'.delta"' in payload[:60]}
        check(hidden)
