"""Why an engine had to compute a prompt again that begins like an earlier one.

A trace is kept with an answer: the token ids of its prompt in blocks, each with a hash of all tokens up to
its end, and hashes of the parts of its request. Two traces are compared: the hashes find the block in which
the prompts differ first, its ids the very token, and the first part of the request that differs is the
reason. Prompts of one conversation share their blocks.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

BLOCK = 512
"""Tokens of a block. A turn of an agent is longer; smaller ones cost more than all else that is done here."""
OPENING = 16
"""So many tokens at the end of a prompt may begin the answer. Templates write them otherwise later on."""
TEMPLATE = "chat_template"
"""The part that makes the difference if the request has only grown: the template has written it otherwise."""

_HASH_BYTES = 16
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[int]).decode


class RequestParts(Struct, frozen=True):
    """Hashes of what a prompt is made of.

    `settings` are by name, in the order of their place in prompts. `items` are those of the conversation, the
    first `history` of them from before the request, and `listed` is the name of the others in the request.
    `compactions` counts those among them. `leaves_out` is the parameter by which the server may have left out
    some of the conversation, if there is one.
    """

    settings: Mapping[str, bytes] = {}
    items: tuple[bytes, ...] = ()
    listed: str = "messages"
    history: int = 0
    compactions: int = 0
    leaves_out: str = ""

    def item(self, index: int) -> str:
        """The name of an item."""
        here = index >= self.history
        return f"{self.listed}[{index - self.history}]" if here else f"history[{index}]"


class PromptTrace(Struct, frozen=True):
    """A prompt of so many tokens: blocks of their encoded ids, and for each the hash of all up to its end."""

    tokens: int
    blocks: tuple[bytes, ...]
    hashes: tuple[bytes, ...]
    media: tuple[str, ...] = ()
    parts: RequestParts = RequestParts()


class CacheHit(Struct, frozen=True):
    """The prompt begins with the earlier one."""


class CacheMiss(Struct, frozen=True):
    """It does not: the first `reusable` tokens are the same.

    `part` is the part of the request that makes the difference. After the first difference the earlier prompt
    has `lost` tokens, and this one has `missed`.
    """

    part: str
    reusable: int
    lost: int
    missed: int


class NotCompared(Struct, frozen=True):
    """There is no trace of the other answer: it is `unknown`, or its trace was not kept."""

    unknown: bool = False


CacheResult = CacheHit | CacheMiss | NotCompared


def hash_of(value: Any) -> bytes:
    """The hash of a JSON value."""
    return blake2b(msgspec.json.encode(value, order="sorted"), digest_size=_HASH_BYTES).digest()


def settings_of(**values: Any) -> Mapping[str, bytes]:
    """The hashes of settings, in their order."""
    return {name: hash_of(value) for name, value in values.items()}


def trace_of(
    ids: Sequence[int], media: Iterable[str], parts: RequestParts, earlier: PromptTrace | None = None
) -> PromptTrace:
    """The trace of a prompt with these token ids, and media of these digests.

    The blocks with which an `earlier` one begins, too, are not hashed again.
    """
    blocks = [_encode(ids[start : start + BLOCK]) for start in range(0, len(ids), BLOCK)]
    hashes = [] if earlier is None else [*earlier.hashes[: _same(earlier.blocks, blocks)]]
    for block in blocks[len(hashes) :]:
        before = hashes[-1] if hashes else b""
        hashes.append(blake2b(before + block, digest_size=_HASH_BYTES).digest())
    return PromptTrace(len(ids), tuple(blocks), tuple(hashes), tuple(media), parts)


def _same(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many values two sequences begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))


def common_tokens(one: PromptTrace, other: PromptTrace) -> int:
    """How many tokens two prompts begin with alike."""
    same = _same(one.hashes, other.hashes)
    if same == min(len(one.blocks), len(other.blocks)):
        return min(one.tokens, other.tokens)
    return same * BLOCK + _same(_decode(one.blocks[same]), _decode(other.blocks[same]))


def compared(earlier: PromptTrace, now: PromptTrace) -> CacheResult:
    """Whether a prompt begins with an earlier one, and else why not."""
    if not (earlier.tokens and now.tokens):
        return NotCompared()  # a server of conversations makes the prompt
    reusable = common_tokens(earlier, now)
    part = _changed(earlier.parts, now.parts)
    if part in _ELSEWHERE:
        reusable = 0  # another model has another cache, and so has another salt
    elif reusable < earlier.tokens:
        if (not part or part in _AT_END) and earlier.tokens - reusable <= OPENING:
            return CacheHit()
        part = part or now.parts.leaves_out or TEMPLATE
    elif now.media[: len(earlier.media)] != earlier.media:
        return NotCompared()  # the tokens around media do not say where they differ
    else:
        return CacheHit()
    return CacheMiss(part, reusable, earlier.tokens - reusable, now.tokens - reusable)


_ELSEWHERE = frozenset({"model", "cache_salt"})


def _changed(earlier: RequestParts, now: RequestParts) -> str:
    """The first part that differs, other than by items at the end; empty if none does."""
    names = dict.fromkeys((*now.settings, *earlier.settings))
    changed = [name for name in names if now.settings.get(name) != earlier.settings.get(name)]
    before = [name for name in changed if name in _HEAD]
    after = [name for name in changed if name not in _HEAD]
    return next(iter((*before, *_changed_items(earlier, now), *after)), "")


def _changed_items(earlier: RequestParts, now: RequestParts) -> Iterator[str]:
    """The first item that differs, if one does."""
    if now.compactions > earlier.compactions:
        yield "compaction"
    count = len(earlier.items)
    if now.items[:count] != earlier.items:
        yield now.item(_same(earlier.items, now.items))


_AT_END = frozenset(
    {
        "compaction",  # which the earlier answer has made itself
        "output_config",
        "reasoning.effort",
        "text.format",
        "text.verbosity",
        "thinking",
        "tool_choice",
    }
)
"""Parts that may change only how an answer begins."""
_HEAD = frozenset({"model", "cache_salt", "tools", "system", "instructions"})
"""Parts that come before the conversation. Of others, most templates write nothing there: if an item differs,
too, that is the reason.
"""
