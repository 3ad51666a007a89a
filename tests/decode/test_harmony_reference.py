"""Well-formed harmony, decoded as the reference decodes it, token for token and in any chunks."""

import json
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.chunks import Finish, FinishReason
from antiphon.core.items import FunctionCall, Message, OutputItem, Reasoning
from antiphon.decode.decoder import Decoder
from antiphon.decode.table import Table
from antiphon.dialects.openai import OPENAI
from tests.detokenizer import Detokenizer
from tests.harmony_vocabulary import encoding, needs_vocabulary, vocabulary
from tests.laws import fold
from tests.search import examples

pytestmark = needs_vocabulary

table = Table(OPENAI.grammar)
SPECIAL = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>")
STOP = Finish(FinishReason.STOP)

texts = st.text(max_size=40).map(str.strip).filter(lambda text: text and "<|" not in text)
names = st.from_regex(r"[a-z_][a-z_0-9.-]{0,20}", fullmatch=True)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts, lambda inner: st.lists(inner, max_size=3)
)
objects = st.dictionaries(texts, values, max_size=3)


@st.composite
def calls(draw: st.DrawFn) -> str:
    """A call: its recipient after the role or the channel, its type with a token, without or not at all."""
    recipient, channel = f" to=functions.{draw(names)}", draw(st.sampled_from(["commentary", "analysis"]))
    type_ = draw(st.sampled_from([" <|constrain|>json", " json", "", "<|constrain|>json"]))
    header = draw(st.sampled_from([f"{recipient}<|channel|>{channel}", f"<|channel|>{channel}{recipient}"]))
    given_ = json.dumps(
        draw(objects), ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 2]))
    )
    return f"{header}{type_}<|message|>{given_}"


analyses = texts.map("<|channel|>analysis<|message|>{}".format)
preambles = texts.map("<|channel|>commentary<|message|>{}".format)
finals = texts.map("<|channel|>final<|message|>{}".format)


@st.composite
def answers(draw: st.DrawFn) -> str:
    """Messages as a model writes them after `<|start|>assistant`; the last may lack its end."""
    bodies = draw(st.lists(analyses | preambles | calls() | finals, min_size=1, max_size=4))
    end = draw(st.sampled_from(["<|return|>", "<|call|>", "<|end|>", ""]))
    return "<|end|><|start|>assistant".join(bodies) + end


def ours(ids: Sequence[int], cuts: Iterable[int]) -> tuple[OutputItem, ...]:
    special = {encoding().encode(text, allowed_special="all")[0]: text for text in SPECIAL}
    detokenizer = Detokenizer(vocabulary(), special, OPENAI.grammar.markers)
    decoder, events = Decoder(table), []
    borders = sorted({0, len(ids), *(cut % len(ids) for cut in cuts)})
    for start, end in pairwise(borders):
        events += decoder.feed(detokenizer.feed(ids[start:end]))
    events += decoder.feed(detokenizer.finish(STOP))
    return fold([*events, *decoder.finish(STOP)]).items


def theirs(ids: Sequence[int]) -> Iterable[Any]:
    harmony = import_module("openai_harmony")
    parser = harmony.StreamableParser(encoding(), harmony.Role.ASSISTANT)
    for id_ in ids:
        parser.process(id_)
    parser.process_eos()
    return parser.messages


def of_message(message: Any) -> tuple[object, ...]:
    """What a message of the reference means, in the words of `of_item`."""
    text = "".join(content.text for content in message.content)
    if message.recipient:
        return "call", message.recipient.removeprefix("functions."), json.loads(text)
    if message.channel == "analysis":
        return "reasoning", text.strip()
    return "text", {"commentary": "commentary", "final": "final_answer"}[message.channel], text.strip()


def of_item(item: OutputItem) -> tuple[object, ...]:
    match item:
        case Reasoning():
            return "reasoning", item.text
        case Message():
            return "text", item.phase, item.text
        case FunctionCall():
            assert item.status == "completed"
            return "call", item.name, json.loads(item.arguments)


@given(text=answers(), cuts=st.lists(st.integers(0, 400), max_size=30))
@settings(max_examples=examples(200))
def test_reads_what_the_reference_reads(text: str, cuts: list[int]) -> None:
    ids = encoding().encode(text, allowed_special="all")

    assert [of_item(item) for item in ours(ids, cuts)] == [of_message(message) for message in theirs(ids)]
