"""Law: an answer may be cut at any token, on any engine, and what follows is what would have followed."""

from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.core.accumulator import Accumulator, Output
from antiphon.core.chunks import ChatChunk, Chunk, Finish, FinishReason, Piece, PieceKind, Token
from antiphon.core.errors import EngineError
from antiphon.core.events import Usage
from antiphon.core.turn import Sampling
from antiphon.decode.decoder import Decoder
from antiphon.decode.ids import ids_by, openai_call_id
from antiphon.decode.table import Table
from antiphon.dialects.registry import find
from antiphon.engines.engine import Engine
from antiphon.engines.pool import PoolEngine
from antiphon.run.generation import GenerationRun, Interceptors
from antiphon.run.replay import ReplayLog, read_entries, split_unfinished
from tests.contracts.engine import request_of
from tests.engines.byte_servers import KINDS, MARK, NAMING, TEXTUAL, ByteModel, engine_of, spelled
from tests.run.support import Heard, chunk, fold
from tests.search import examples

PROMPT = f"The rules are secret. {MARK}"
TABLE = Table(find("hermes").grammar)
CALLS = (
    "<think>日本… 🎉</think>Sure.\n<tool_call>\n"
    '{"name": "look", "arguments": {"at": "日本 🎉", "n": [1, 2]}}\n</tool_call>'
)
TEXTS = "Hello 🎉 the 日本語: é, 한국 العربية!", "👩‍👩‍👧 🇩🇪🇯🇵 👍🏽e\u0301\u200d", CALLS
"""Emoji of several characters, flags, combined letters, and what dialects find in text."""

texts = st.sampled_from(TEXTS) | st.text("🎉日本語é한ا \u200d👩🇩e\u0301<>\ufffda", max_size=20)
no_texts = st.lists(
    st.sampled_from([b"\x80", b"\xf0", b"\xff", b"\xe6\x97", b" ", "🎉".encode(), b"a"]), max_size=12
).map(b"".join)
"""Among others, bytes that are never a character."""
steps = st.lists(st.integers(1, 9), max_size=40)
cuts = st.lists(st.integers(0, 40), max_size=3)


async def answered(
    engine: Engine, log: ReplayLog | None = None, **options: Any
) -> tuple[Output, list[Token]]:
    """The answer, and its tokens with their log probabilities.

    How many of them are reasoning depends on the steps, if the engine has only the text of each step.
    """
    request = await request_of(engine, PROMPT, **{"max_tokens": 1000, "sampling": Sampling()} | options)
    decoder = Decoder(TABLE, ids=ids_by(openai_call_id, rng=Random(1)))
    run = GenerationRun(engine, request, decoder, Interceptors(replay=log), Accumulator())
    heard = Heard()
    await run.run(heard, 0)  # type: ignore[arg-type]
    output = fold(heard.events)
    tokens = [replace(token, text="") for event in heard.events for token in event.tokens]
    return replace(output, usage=replace(output.usage, reasoning_tokens=0)), tokens


async def answered_by_pool(
    kind: str, model: ByteModel, sizes: Sequence[int], cut: Sequence[int], **options: Any
) -> tuple[Output, list[Token]]:
    """The answer of servers that fail after these numbers of events, one after the other, and one that does not."""
    lists = cut[::2], cut[1::2], ()
    engines = [(str(number), engine_of(kind, model, sizes, each)) for number, each in enumerate(lists)]
    pool = PoolEngine(engines, choose=lambda replicas, blocks: replicas[0])
    await pool.start()
    try:
        output, tokens = await answered(pool, **options)
    finally:
        await pool.stop()
    # Of text that is continued, the tokens are estimated
    return (replace(output, usage=Usage()) if kind in TEXTUAL else output), tokens


def model_of(kind: str, raw: str | bytes, seed: int) -> ByteModel:
    if kind not in NAMING and isinstance(raw, bytes):  # they go on after the text
        raw = raw.decode(errors="replace")
    return ByteModel(spelled(raw, seed), exact=kind in NAMING)


@pytest.mark.parametrize("kind", KINDS)
@given(raw=texts | no_texts, seed=st.integers(0, 30), sizes=steps, cut=cuts)
async def test_servers_may_fail_after_any_token(
    kind: str, raw: str | bytes, seed: int, sizes: list[int], cut: list[int]
) -> None:
    model, options = model_of(kind, raw, seed), dict[str, Any]()
    if kind in NAMING:
        options["sampling"] = Sampling(logprobs=seed % 2 or None)
    if kind not in TEXTUAL and seed % 3:  # their limit is counted in estimated tokens
        options["max_tokens"] = seed
    undisturbed = await answered_by_pool(kind, model, sizes, (), **options)
    assert await answered_by_pool(kind, model, sizes, cut, **options) == undisturbed


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(50))
@given(raw=texts | no_texts, seed=st.integers(0, 9), sizes=steps, cut=cuts)
async def test_a_server_of_ours_may_fail_after_any_token(
    kind: str, raw: str | bytes, seed: int, sizes: list[int], cut: list[int]
) -> None:
    """Another one continues after what was recorded."""
    model = model_of(kind, raw, seed)
    whole = engine_of(kind, model, sizes)
    await whole.start()
    undisturbed, tokens = await answered(whole, ReplayLog())
    stored: list[bytes] = []
    for after in cut:
        log, engine = ReplayLog(read_entries(stored)), engine_of(kind, model, sizes, [after])
        await engine.start()
        with suppress(EngineError):
            await answered(engine, log)
        stored.append(log.new())
    output, found = await answered(whole, ReplayLog(read_entries(stored)))
    if kind in TEXTUAL:
        output, undisturbed = replace(output, usage=Usage()), replace(undisturbed, usage=Usage())
    assert (output, found) == (undisturbed, tokens)


# Where an answer can be continued


def textless(*ids: int) -> Chunk:
    return Chunk("", tuple(Token(token, "") for token in ids))


END = Chunk("", (Token(9, ""),), Finish(FinishReason.STOP))
CHAT = ChatChunk(pieces=(Piece(PieceKind.TEXT, "a"),))


@pytest.mark.parametrize(
    ("chunks", "whole", "unfinished"),
    [
        ([], [], []),
        ([textless(1, 2)], [], [textless(1, 2)]),
        ([chunk("a", 1), textless(2), textless(3)], [chunk("a", 1)], [textless(2), textless(3)]),
        (
            [Chunk("ab", (Token(1, "ab"), Token(2, ""), Token(3, "")), None, 4, 5), textless(6)],
            [Chunk("ab", (Token(1, "ab"),), None, 4, 5)],
            [textless(2, 3), textless(6)],
        ),
        ([textless(1), chunk("é", 2)], [textless(1), chunk("é", 2)], []),
        ([Chunk("text of no tokens")], [Chunk("text of no tokens")], []),
        ([chunk("a", 1), textless(2), END], [chunk("a", 1), textless(2), END], []),
        ([CHAT, ChatChunk()], [CHAT, ChatChunk()], []),
    ],
)
def test_an_answer_can_be_continued_after_its_last_token_with_text(
    chunks: list[Chunk], whole: list[Chunk], unfinished: list[Chunk]
) -> None:
    assert split_unfinished(chunks) == (whole, unfinished)
