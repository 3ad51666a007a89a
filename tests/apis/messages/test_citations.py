"""Citations of parts of a request: each has the place of its text, streamed or not."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.apis.messages.citations import MAX_PIECES, MAX_QUOTED, Heading, text_document
from antiphon.core.chunks import FinishReason
from antiphon.core.events import Event, Finished, TextDelta, TextEnded, TextStarted, Usage
from antiphon.core.items import FunctionOutput
from tests.apis.messages.support import (
    ANTHROPIC,
    accepted,
    accumulated,
    answered,
    check_stream,
    essence,
    streamed,
)
from tests.openai_schema import validate

ENABLED = {"enabled": True}
TEXT = "An antiphon is old. 👍 Is it?\nTwo choirs sing it! Yes"
PIECES = ["An antiphon is old. ", "👍 Is it?\n", "Two choirs sing it! ", "Yes"]


def document(source: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, "title": "Of A", "citations": ENABLED, **fields}


def of_text(text: str = TEXT, **fields: Any) -> dict[str, Any]:
    return document({"type": "text", "media_type": "text/plain", "data": text}, **fields)


def of_blocks(*texts: str) -> dict[str, Any]:
    return document({"type": "content", "content": [{"type": "text", "text": text} for text in texts]})


def found(*texts: str, citations: Any = ENABLED) -> dict[str, Any]:
    content = [{"type": "text", "text": text} for text in texts]
    return {
        "type": "search_result",
        "source": "u:1",
        "title": "Of B",
        "content": content,
        "citations": citations,
    }


def citations(said: str, *blocks: dict[str, Any]) -> list[dict[str, Any]]:
    """The citations of an answer that says this, to a request with these blocks."""
    return cited_in(said, [{"role": "user", "content": [*blocks]}])


def cited_in(said: str, messages: Any) -> list[dict[str, Any]]:
    presentation = accepted(messages).presentation
    events: list[Event] = [TextStarted(), TextDelta(said, said), TextEnded()]
    events.append(Finished(FinishReason.STOP, Usage()))
    payloads, body = streamed(events, presentation), answered(events, presentation)
    validate("Message", body, ANTHROPIC)
    check_stream(payloads)
    assert essence(accumulated(payloads))["content"] == body["content"]
    [block] = body["content"]
    assert block["text"] == said  # marks stay
    read: list[dict[str, Any]] = block["citations"]
    return read


def test_a_document_is_shown_in_pieces_that_can_be_cited() -> None:
    [said] = accepted([{"role": "user", "content": [of_text(context="old")]}]).turn.items

    assert said.parts[0].text == (
        "<document>\nOf A\nold\n"
        "Cite what you take from it by its lines, as in 【doc0†L0】 or 【doc0†L0-L1】.\n"
        "L0: An antiphon is old.\nL1: 👍 Is it?\nL2: Two choirs sing it!\nL3: Yes\n</document>"
    )


def test_a_part_of_a_text_is_cited_by_its_characters() -> None:
    whole, part = citations("Old 【doc0†L0-L1】, and sung 【doc0†L2】.", of_text())

    assert whole == {
        "type": "char_location",
        "cited_text": "An antiphon is old. 👍 Is it?\n",
        "document_index": 0,
        "document_title": "Of A",
        "start_char_index": 0,
        "end_char_index": 29,
        "file_id": None,
    }
    assert TEXT[part["start_char_index"] : part["end_char_index"]] == part["cited_text"] == PIECES[2]


def test_blocks_are_cited_by_their_numbers() -> None:
    plain = {"type": "document", "source": {"type": "text", "data": "Not cited."}}

    [of_document] = citations("So 【doc0†L1-2】.", plain, of_blocks("A. B.", "C.", "D."))
    [of_result] = citations("So 【doc1†L0】.", of_text(), found("E.", citations=None), found("F. G."))

    assert of_document == {
        "type": "content_block_location",
        "cited_text": "C.D.",
        "document_index": 1,
        "document_title": "Of A",
        "start_block_index": 1,
        "end_block_index": 3,
        "file_id": None,
    }
    assert of_result == {
        "type": "search_result_location",
        "cited_text": "F. G.",
        "source": "u:1",
        "title": "Of B",
        "search_result_index": 1,
        "start_block_index": 0,
        "end_block_index": 1,
    }


def test_what_a_tool_of_the_client_found_is_cited() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [found("A.", "B.")]}
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": [call]}]
    messages += [{"role": "user", "content": [result]}]

    [citation] = cited_in("B 【doc0†L1】", messages)

    assert (citation["type"], citation["cited_text"]) == ("search_result_location", "B.")
    output = accepted(messages).turn.items[-1]
    assert isinstance(output, FunctionOutput)
    assert "L1: B." in output.parts[0].text


@pytest.mark.parametrize(
    "mark", ["【doc1†L0】", "【doc0†L4】", "【doc0†L2-L1】", "【doc0】", "【doc0†L0", "【0†L0】", "[doc0†L0]"]
)
def test_a_mark_of_nothing_that_was_shown_is_text(mark: str) -> None:
    assert citations(f"So {mark}.", of_text()) == []


def test_an_answer_comes_back_with_its_citations() -> None:
    block = {"type": "text", "text": "Old 【doc0†L0】.", "citations": citations("【doc0†L0】", of_text())}
    asked = {"role": "user", "content": [of_text()]}

    *_, said, _ = accepted(
        [asked, {"role": "assistant", "content": [block]}, {"role": "user", "content": "And?"}]
    ).turn.items

    assert said.parts[0].text == "Old 【doc0†L0】."


@given(st.lists(st.sampled_from(["word ", "3.14", ".", "!", "? ", "\n", "。", "é", "👍"])).map("".join))
def test_sentences_make_up_the_text(text: str) -> None:
    document = text_document(Heading(0, None), text)
    pieces, starts = document.pieces, document.starts

    assert starts is not None
    assert [text[start:end] for start, end in pairwise(starts)] == pieces
    assert "".join(pieces) == text
    assert all(pieces)
    assert not any("\n" in piece.rstrip() for piece in pieces)


def test_pieces_are_sentences_and_lines() -> None:
    assert text_document(Heading(0, None), TEXT).pieces == PIECES
    assert text_document(Heading(0, None), "Pi is 3.14. 好。是。\n\nEnd").pieces == [
        "Pi is 3.14. ",
        "好。",
        "是。\n\n",
        "End",
    ]


def test_what_an_answer_quotes_is_bounded() -> None:
    text = "word. " * (MAX_PIECES + 5)
    pieces = text_document(Heading(0, None), text).pieces
    whole = f"【doc0†L0-L{MAX_PIECES - 1}】"

    assert (len(pieces), pieces[-1]) == (MAX_PIECES, "word. " * 6)
    found = citations(whole * 9 + "【doc0†L1】", of_text(text))
    quoted = sum(len(citation["cited_text"]) for citation in found)
    assert MAX_QUOTED - len(text) < quoted <= MAX_QUOTED
    assert found[-1]["cited_text"] == "word. "  # there is room for that
