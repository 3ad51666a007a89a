"""The events of an answer → its token ids, as chunks of a stream, or as one body.

The ids of all generated tokens are shown, also of those without text. Both ways make choices with one
function, so that they cannot differ.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from antiphon.apis.completion_body import ChoiceError, CompletionUsage, finish_reason, total
from antiphon.apis.ending import notes_at_end
from antiphon.apis.envelope import Envelope, PresentationOptions, UsageReports
from antiphon.apis.framing import DONE, untyped_event
from antiphon.apis.generate.resource import (
    Generated,
    GeneratedChoice,
    GeneratedChunk,
    NamedCandidate,
    NamedToken,
    ScoredToken,
    ScoredTokens,
    TokenCandidate,
)
from antiphon.apis.logprobs import bytes_of, logprob_of, prompt_logprobs, text_of
from antiphon.apis.projection import BodyProjection, StreamProjection
from antiphon.core.chunks import Candidate, FinishReason, Token
from antiphon.core.events import Event, Finished, TextDelta, Usage

_encode = msgspec.json.Encoder().encode


class TokenOptions(Struct, frozen=True):
    """What an answer shows: its `text`, the ids of its prompt; how often its usage; log probabilities."""

    text: bool
    prompt_ids: bool
    usage: UsageReports
    logprobs: bool
    prompt_logprobs: bool

    @classmethod
    def of(cls, shown: PresentationOptions, *, text: bool, prompt_ids: bool) -> "TokenOptions":
        """Those of a request."""
        return cls(text, prompt_ids, shown.usage, shown.logprobs is not None, shown.prompt_logprobs)

    @property
    def mode(self) -> str:
        """The name of what is shown."""
        return "text" if self.text else "tokens"


class _Part(Struct):
    """What one choice has, or what a chunk adds to it."""

    texts: list[str] = []
    ids: list[int] = []
    scored: list[Raw] = []
    end: Finished | None = None

    def push(self, events: Iterable[Event], options: TokenOptions) -> None:
        for event in events:
            if options.text and type(event) is TextDelta:
                self.texts.append(event.text)
            if type(event) is Finished:
                self.end = event
            for token in event.tokens:
                self.ids.append(token.id)
                if options.logprobs:
                    self.scored.append(Raw(_encode(_scored(token, named=options.text))))

    def choice(self, index: int, options: TokenOptions) -> GeneratedChoice:
        """The wire type of it."""
        choice = GeneratedChoice(
            index,
            token_ids=self.ids,
            text="".join(self.texts) if options.text else UNSET,
            logprobs=ScoredTokens(self.scored) if options.logprobs else None,
        )
        if self.end is not None:
            choice.finish_reason = finish_reason(self.end.reason, calls=0)
            choice.stop_reason = self.end.stop
            choice.error = ChoiceError(self.end.error) if self.end.error else UNSET
            choice.unmet = self.end.unmet or UNSET
            choice.notes = notes_at_end(self.end, "sampling_params.max_tokens") or UNSET
        return choice


class GenerateStream(StreamProjection):
    """Projects the events of an answer to server-sent events."""

    def __init__(self, envelope: Envelope, options: TokenOptions) -> None:
        self._envelope = envelope
        self._options = options
        self._usages: dict[int, Usage] = {}
        self._counts: dict[int, int] = {}
        self._prompt_shown = not options.prompt_ids

    def begin(self) -> list[bytes]:
        """There is nothing before the first event of a choice."""
        return []

    def push(self, choice: int, events: list[Event]) -> list[bytes]:
        """The chunk for the next events of a choice, if they have anything to show."""
        part = _Part()
        part.push(events, self._options)
        self._counts[choice] = self._counts.get(choice, 0) + len(part.ids)
        if part.end is not None:
            self._usages[choice] = part.end.usage
            if part.end.reason is FinishReason.ERROR and part.end.error is None:
                return []  # the error of all choices ends the stream itself
        if not (part.ids or any(part.texts) or part.end is not None):
            return []
        return [self._chunk([part.choice(choice, self._options)], self._usage_so_far(choice))]

    def delta_encoder(self, choice: int, delta: type[Event]) -> None:
        """Each event is folded."""
        return

    def finish(self) -> list[bytes]:
        """Usage, if it was requested, and the end mark."""
        if self._options.usage is UsageReports.NONE:
            return [DONE]
        usage = total(self._envelope.prompt_tokens, self._usages.values(), len(self._envelope.prompts))
        return [self._chunk([], usage), DONE]

    def _usage_so_far(self, choice: int) -> CompletionUsage | None:
        if self._options.usage is not UsageReports.EACH:
            return None
        used = self._usages.get(choice) or Usage(completion_tokens=self._counts[choice])
        return total(self._envelope.prompt_tokens, [used])

    def _chunk(self, choices: list[GeneratedChoice], usage: CompletionUsage | None) -> bytes:
        ids: Sequence[int] | UnsetType = UNSET
        if not self._prompt_shown:
            self._prompt_shown, ids = True, self._envelope.prompts[0].ids
        return untyped_event(
            _encode(
                GeneratedChunk(
                    request_id=self._envelope.id,
                    usage=usage,
                    prompt_token_ids=ids,
                    output_mode=self._options.mode,
                    choices=choices,
                )
            )
        )


class GenerateBuilder(BodyProjection):
    """Builds the full answer from the events of all choices."""

    shows_tokens = True

    def __init__(self, envelope: Envelope, options: TokenOptions, choices: int) -> None:
        self._envelope = envelope
        self._options = options
        self._parts = [_Part() for _ in range(choices)]
        self._prompt_scored: Any = None

    def set_prompts(self, prompts: Iterable[Any]) -> None:
        super().set_prompts(prompts)
        if self._options.prompt_logprobs:
            self._prompt_scored = prompt_logprobs(self._envelope.prompts[0].tokens)

    def push(self, choice: int, events: list[Event]) -> list[bytes]:
        """Take the next events of a choice."""
        self._parts[choice].push(events, self._options)
        return []

    def body(self) -> bytes:
        """The JSON body."""
        envelope, ends = self._envelope, [part.end for part in self._parts]
        transfer = next((end.kv_transfer_params for end in ends if end and end.kv_transfer_params), None)
        return _encode(
            Generated(
                request_id=envelope.id,
                model=envelope.model,
                created=envelope.created,
                usage=total(envelope.prompt_tokens, (end.usage for end in ends if end is not None)),
                prompt_logprobs=self._prompt_scored,
                prompt_token_ids=envelope.prompts[0].ids if self._options.prompt_ids else None,
                kv_transfer_params=transfer,
                output_mode=self._options.mode,
                choices=[part.choice(index, self._options) for index, part in enumerate(self._parts)],
            )
        )


def _scored(token: Token, *, named: bool) -> ScoredToken | NamedToken:
    """The log probabilities at the place of a token: its own first, then those of the candidates."""
    others = [other for other in token.top if other.id != token.id or other.id < 0]
    if named:
        candidates = [_named(token), *map(_named, others)] if token.top else []
        return NamedToken(text_of(token), logprob_of(token), bytes_of(token), top_logprobs=candidates)
    ranks = {other.id: rank for rank, other in enumerate(token.top, start=1)}
    own = TokenCandidate(token.id, logprob_of(token), ranks.get(token.id))
    listed = [TokenCandidate(other.id, logprob_of(other), ranks[other.id]) for other in others]
    return ScoredToken(own.token_id, own.logprob, own.rank, top_logprobs=[own, *listed])


def _named(token: Token | Candidate) -> NamedCandidate:
    return NamedCandidate(text_of(token), logprob_of(token), bytes_of(token))
