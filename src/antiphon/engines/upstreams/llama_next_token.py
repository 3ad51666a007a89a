"""Scores next tokens in one slot of a llama-server, so that a result depends on its own prompt only.

How llama.cpp rounds depends on which tokens it computes together. So the beginning of the prompts is computed
by itself; then its last token once more, alone; then one of the ends. Before each further end, the beginning
is requested again, which computes its last token alone: if two ends begin alike, that part would otherwise be
computed with the first of them; and the slot has nothing but what the next prompt begins with, so llama.cpp
does not look for a better one in its main memory. All of this is one request with several prompts for the
same slot, so nothing else gets the slot between them.

Llama.cpp chooses the slot when it computes the beginning. A beginning that was computed in this way is used
again, as long as nothing else was sent, and nothing else was running while it was computed.

The most likely tokens are returned by their number: if some are missing, all tokens of the vocabulary are
requested, as far as an answer may be that long; and at once, when the same tokens are to be scored again.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.chunks import Candidate, TokenCount, TokenId
from antiphon.core.limits import Limits
from antiphon.engines.engine import NextToken, NextTokenRequest, Prompt
from antiphon.engines.llama_stream import ErrorMessage, failure_of_message
from antiphon.engines.next_token import LIKELIEST, chosen
from antiphon.engines.shared_prompts import SharedPrompts
from antiphon.engines.upstreams.kind import CountTokens, ReadLines, unexpected

COMMON = 3000
"""The number of most likely tokens that is requested first."""

ENTRY_BYTES = 128
"""The size of one of them in an answer, at most on average."""

LINGER = 1.0
"""Seconds for which llama.cpp may still compute what was cancelled."""

REMEMBERED = 256
"""Sets of tokens that are remembered because some were missing among the most likely ones."""

SENT_TOKENS = 128 * 1024
"""Tokens of prompts in a request: more ends make several requests."""


class _Scored(Struct, frozen=True):
    id: TokenId
    token: str
    logprob: float


class _Position(Struct, frozen=True):
    top_logprobs: tuple[_Scored, ...] = ()


class _Progress(Struct, frozen=True):
    total: TokenCount = 0
    cache: TokenCount = 0
    processed: TokenCount = 0


class _Event(Struct, frozen=True):
    index: int = 0
    stop: bool = False
    id_slot: int = -1
    completion_probabilities: tuple[_Position, ...] = ()
    prompt_progress: _Progress | None = None
    error: ErrorMessage | None = None


_decode = msgspec.json.Decoder(_Event).decode


class SlotScorer:
    """Scores next tokens with a llama-server, whose model has `vocabulary` tokens; one request at a time.

    `encoded` makes the form in which prompts are sent.
    """

    path = "/completion"

    def __init__(
        self, prompts: SharedPrompts, vocabulary: int, limits: Limits, encoded: Callable[[Prompt], Any]
    ) -> None:
        self._prompts = prompts
        self._common = min(COMMON, vocabulary)
        self._all = min(vocabulary, limits.cumulative_line_bytes // ENTRY_BYTES)
        self._rare: dict[frozenset[int], None] = {}  # tokens of which some were missing, the latest last
        self._answer_bytes = limits.upstream_bytes
        self._encoded = encoded
        self._computed: dict[int, Any] = {}  # the beginning in a slot, and its adapters
        self._lingers_until = 0.0  # until this time of the event loop, cancelled work may be computed beside
        self._started = 0  # how many other requests had been sent when these were computed

    async def score(
        self, request: NextTokenRequest, fields: Mapping[str, Any], lines: ReadLines, count: CountTokens
    ) -> tuple[NextToken, ...]:
        """The next tokens. `fields` are sent with each request. Raises RequestError, EngineError."""
        if self._started != self._prompts.started:
            self._computed.clear()
        clock = asyncio.get_running_loop().time
        alone = not self._prompts.in_slots and clock() >= self._lingers_until
        self._started = self._prompts.started
        work = _Work(request, fields, self._encoded, lines, count)
        try:
            return await self._score(work, fields, alone=alone)
        except BaseException:
            self._lingers_until = clock() + LINGER
            raise

    async def _score(self, work: "_Work", fields: Mapping[str, Any], *, alone: bool) -> tuple[NextToken, ...]:
        """The same; the beginning is kept if the server does nothing else, if it is `alone`."""
        beginning = (work.beginning, fields)
        slot = next((slot for slot, other in self._computed.items() if other == beginning), None)
        if slot is None:
            kept, self._computed = self._computed, {}  # until it is known whose slot it takes
            await work.begin()
            self._computed = kept
        else:
            work.slot = slot
        self._computed.pop(work.slot, None)
        results = await self._results(work)
        if alone and self._started == self._prompts.started:
            self._computed[work.slot] = beginning
        self._prompts.keep(work.request)
        return tuple(replace(results[end], cached_tokens=work.cached or 0) for end in sorted(results))

    async def _results(self, work: "_Work") -> dict[int, NextToken]:
        tokens = [*map(frozenset, work.request.tokens)]
        usual = [end for end in range(len(tokens)) if tokens[end] not in self._rare]
        results = await self._scored(work, usual, self._common)
        if self._all > self._common:
            for end in usual:
                if not results[end].complete:
                    self._rare[tokens[end]] = None
            rare = [end for end in range(len(tokens)) if tokens[end] in self._rare]
            results |= await self._scored(work, rare, self._all)
        while len(self._rare) > REMEMBERED:
            del self._rare[next(iter(self._rare))]
        return results

    async def _scored(self, work: "_Work", ends: Sequence[int], candidates: int) -> dict[int, NextToken]:
        """The next tokens after these ends, from this number of candidates."""
        results: dict[int, NextToken] = {}
        most = self._answer_bytes // (2 * ENTRY_BYTES * candidates)
        for part in work.parts(ends, most):
            results |= await work.score(part, candidates)
        return results


class _Work:
    """The work for one request, in one `slot`. `cached`: tokens of its beginning that were there before."""

    def __init__(
        self,
        request: NextTokenRequest,
        fields: Mapping[str, Any],
        encoded: Callable[[Prompt], Any],
        lines: ReadLines,
        count: CountTokens,
    ) -> None:
        self.request = request
        self._fields = fields
        self._encoded = encoded
        self._lines = lines
        self._count = count
        self.beginning = encoded(request.beginning)
        self.slot = -1
        self.cached: int | None = None

    async def begin(self) -> None:
        """Compute the beginning, whatever of it may be anywhere, in a slot that is idle."""
        async for event in self._events({"prompt": self.beginning, "cache_prompt": False}):
            if event.stop:
                self.slot = event.id_slot

    def parts(self, ends: Sequence[int], most: int) -> Iterator[Sequence[int]]:
        """The ends in parts for one request each, with at most this number of ends."""
        longest = max((len(self.request.ends[end].ids) for end in ends), default=0)
        size = max(1, min(most, SENT_TOKENS // (2 * len(self.request.beginning.ids) + longest)))
        return (ends[start : start + size] for start in range(0, len(ends), size))

    async def score(self, ends: Sequence[int], candidates: int) -> dict[int, NextToken]:
        """The next tokens after these ends, from this number of candidates."""
        prompts = [prompt for end in ends for prompt in (self.beginning, self._prompt(end))]
        results: dict[int, NextToken] = {}
        async for event in self._events({"prompt": prompts, "id_slot": self.slot, "n_probs": candidates}):
            if event.index % 2 and event.completion_probabilities:
                end = ends[event.index // 2]
                tokens = self.request.tokens[end]
                results[end] = chosen(_candidates(event.completion_probabilities[0], tokens), tokens)
        if len(results) != len(ends):
            raise unexpected()
        return results

    def _prompt(self, end: int) -> Any:
        added = self.request.ends[end]
        return self._encoded(self.request.beginning.followed_by(added))

    async def _events(self, body: Mapping[str, Any]) -> AsyncGenerator[_Event, None]:
        whole = msgspec.json.encode({**_BODY, **self._fields, **body})
        async with aclosing(self._lines(SlotScorer.path, whole)) as lines:
            async for line in lines:
                if not line.startswith(b"data:"):
                    continue
                event = _decode(line[5:])
                if event.error is not None:
                    raise failure_of_message(event.error)
                if event.prompt_progress is not None:
                    self._note(event.prompt_progress)
                yield event

    def _note(self, progress: _Progress) -> None:
        """Count the tokens of a prompt that begins."""
        if progress.processed == progress.cache:
            self._count(progress.total, progress.cache)
            self.cached = progress.cache if self.cached is None else self.cached


_BODY = {
    "n_predict": 1,
    "temperature": 0,
    "cache_prompt": True,
    "stream": True,
    "return_progress": True,  # a message for each prompt batch: the chance to cancel
    "return_tokens": True,
}


def _candidates(position: _Position, tokens: Sequence[int]) -> Iterable[Candidate]:
    """The likeliest tokens, and those that are to be scored: not all of the vocabulary."""
    scored = position.top_logprobs
    kept = (*scored[:LIKELIEST], *(one for one in scored[LIKELIEST:] if one.id in tokens))
    return (Candidate(one.id, one.token, one.logprob) for one in kept)
