"""Chunks of a server that separates the parts of an answer → events. Total, like `Decoder`: it never raises.

Such a server may send the parts in any order, and arguments of calls in fragments. Here items do not
interleave: a call ends when its arguments are complete and something else follows. Other parts wait until
then.
"""

from collections.abc import Iterable, Sequence
from math import inf

from msgspec.structs import replace

from antiphon.core.chunks import ChatChunk, Chunk, Finish, FinishReason, Piece, PieceKind
from antiphon.core.events import Event, Finished, TextDelta, Usage
from antiphon.core.grammar import SpanKind
from antiphon.core.json_scanner import JsonScanner
from antiphon.decode.event_builder import EventBuilder
from antiphon.decode.ids import CallIds, ids_by, openai_call_id
from antiphon.decode.lexer import NEVER_PLAIN
from antiphon.decode.stops import StopMatcher
from antiphon.decode.token_map import TokenMap

BYTES_PER_TOKEN = 4
"""The approximate size of a token, if tokens are not counted."""

_KINDS = {PieceKind.TEXT: SpanKind.TEXT, PieceKind.REASONING: SpanKind.REASONING}


class ChatDecoder:
    """Decodes one answer. A decoder is used once.

    `stop` strings end visible text, and are part of it if `include_stop`. `ids` makes the ids of calls that
    have none. If the server reports no counts, the prompt had about `prompt_tokens`. An answer of more than
    `max_bytes` bytes ends there, with the finish reason of the length limit.
    """

    open_delta = None
    """No chunk is plain: each has parts."""
    plain = NEVER_PLAIN
    in_reasoning = False
    reasoning_tokens = 0
    """Unknown before the end, so nothing can be limited by this number."""

    def __init__(
        self,
        *,
        stop: Iterable[str] = (),
        include_stop: bool = False,
        ids: CallIds | None = None,
        prompt_tokens: int = 0,
        max_bytes: float = inf,
    ) -> None:
        stops = tuple(stop)
        matcher = StopMatcher(stops, include_stop) if stops else None
        self._token_map = TokenMap()
        self._builder = EventBuilder(self._token_map, ids or ids_by(openai_call_id), matcher, {})
        self._prompt_tokens = prompt_tokens
        self._max_bytes = max_bytes
        self._bytes = {PieceKind.TEXT: 0, PieceKind.REASONING: 0, PieceKind.CALL: 0}
        self._call: _OpenCall | None = None  # the open call
        self._ended_calls: set[str] = set()  # the keys of calls that have ended
        self._waiting: dict[str, list[Piece]] = {}  # parts after an incomplete call, by the key of the item
        self._cut = False
        self.stopped = False

    @property
    def can_end(self) -> bool:
        """Whether an answer that ends here is whole up to here: no call is open."""
        return self._call is None or (self._call.scanner.done and not self._waiting)

    @property
    def completion_tokens(self) -> int:
        """The approximate number of tokens so far: the exact one is unknown before the end."""
        return -(-self._written // BYTES_PER_TOKEN)

    def count_plain(self, texts: Sequence[str]) -> None:
        """No chunk is plain."""

    def feed(self, chunk: Chunk) -> list[Event]:
        """The events that this chunk completes."""
        pieces = chunk.pieces if isinstance(chunk, ChatChunk) else ()
        self._builder.cached_tokens += chunk.cached_tokens
        if len(pieces) == 1 and self._is_plain_delta(pieces[0]):
            piece = pieces[0]
            self._count(piece)
            return [TextDelta(piece.text, piece.text, piece.tokens)]
        for piece in pieces:
            self._count(piece)
            self._read(piece)
        self.stopped = self._cut or self._builder.stopped is not None
        return self._builder.drain()

    def _is_plain_delta(self, piece: Piece) -> bool:
        """Whether it is text of the same kind as before, and needs only a delta."""
        plain = piece.kind is PieceKind.TEXT and piece.text and self._call is None
        return bool(plain) and self._builder.passes(SpanKind.TEXT)

    def _count(self, piece: Piece) -> None:
        self._bytes[piece.kind] += len(piece.text.encode())
        if self._written > self._max_bytes:
            self._cut = self.stopped = True

    @property
    def _written(self) -> int:
        return sum(self._bytes.values())

    def _read(self, piece: Piece) -> None:
        if self._builder.stopped is not None:
            self._builder.markup(piece.text)
        elif self._call is None:
            self._begin(piece)
        elif piece.kind is PieceKind.CALL and piece.call == self._call.key:
            self._continue(self._call, piece)
        elif self._call.scanner.done and not self._waiting:
            self._end_call()
            self._begin(piece)
        else:
            self._wait(piece)

    def _wait(self, piece: Piece) -> None:
        """Hold it until the open call is complete."""
        # Pieces of one call are joined, in any order of arrival; text and reasoning only with the directly
        # preceding piece: between two calls they are separate items.
        key = piece.call if piece.kind is PieceKind.CALL else f"{piece.kind} {len(self._waiting)}"
        if piece.kind is not PieceKind.CALL and self._waiting:
            last = next(reversed(self._waiting))
            if self._waiting[last][0].kind is piece.kind:
                key = last
        self._waiting.setdefault(key, []).append(piece)

    def _begin(self, piece: Piece) -> None:
        """Read a piece while no call is open."""
        if piece.kind is not PieceKind.CALL:
            self._show(_KINDS[piece.kind], piece)
        elif piece.call in self._ended_calls:
            self._skip(piece.text, "arguments after the end of a call")
        else:
            self._call = _OpenCall(piece.call)
            self._continue(self._call, piece)

    def _show(self, kind: SpanKind, piece: Piece) -> None:
        if piece.text:
            self._builder.enter(kind)
            self._token_map.add(Chunk(piece.text, piece.tokens))
            self._builder.text(kind, piece.text)

    def _skip(self, text: str, why: str) -> None:
        """Hide text that is not part of any item."""
        if text.strip():
            self._builder.malformed(why)
        self._builder.markup(text)

    # Calls

    def _continue(self, call: "_OpenCall", piece: Piece) -> None:
        """A further fragment of the open call.

        It is shown when its name is known, with its first argument.
        """
        call.id = call.id or piece.id
        call.unread.append(piece.text)
        if not call.name and piece.name:
            call.name = piece.name
            self._builder.begin_provisional("")
            self._builder.name_call(call.name, call.id or None)
        if call.name:
            text, call.unread = "".join(call.unread), []
            self._arguments(call, text)
            if self._waiting and call.scanner.done:
                self._end_call()
                self._resume()

    def _arguments(self, call: "_OpenCall", text: str) -> None:
        out: list[str] = []
        end = 0 if call.scanner.broken else call.scanner.feed(text, 0, out)
        arguments, rest = "".join(out), text[end:]
        if arguments or call.scanner.broken:
            call.has_arguments = True
            self._builder.arguments(arguments, text[:end])
        if call.scanner.broken:  # the client gets what the model wrote
            self._builder.broken_arguments(rest, rest, call.scanner.broken)
        elif rest:
            self._skip(rest, "text after the arguments of a call")

    def _end_call(self, *, cut: bool = False) -> None:
        """End the open call; `cut`: the answer ended before its arguments were complete."""
        call, self._call = self._call, None
        assert call is not None
        self._ended_calls.add(call.key)
        builder = self._builder
        if not call.name:
            builder.malformed("a call without a name")
            self._show(SpanKind.TEXT, Piece(PieceKind.TEXT, "".join(call.unread)))
        elif not call.has_arguments and cut:
            builder.malformed("the call was truncated")
            builder.discard_call()
        elif not call.has_arguments:
            builder.arguments("{}", "")  # of a function without parameters
            builder.end_call()
        elif call.scanner.done:
            builder.end_call()
        else:
            builder.fail_call(call.scanner.broken or "the call was truncated")

    def _resume(self) -> None:
        """Decode the held parts, until another call is open."""
        waiting, self._waiting = self._waiting, {}
        for pieces in waiting.values():
            for piece in pieces:
                self._read(piece)

    # The end

    def finish(self, finish: Finish) -> list[Event]:
        """The last events, with all that was held back."""
        while self._call is not None:
            self._end_call(cut=finish.reason is not FinishReason.STOP)
            self._resume()
        self._builder.finish(finish)
        *events, end = self._builder.drain()
        assert isinstance(end, Finished)
        reason = FinishReason.LENGTH if self._cut and end.stop is None else end.reason
        return [*events, replace(end, reason=reason, usage=self._usage(finish, end.usage.cached_tokens))]

    def _usage(self, finish: Finish, cached: int) -> Usage:
        """As the server counted; else an estimate."""
        if finish.completion_tokens is None:
            reasoning = -(-self._bytes[PieceKind.REASONING] // BYTES_PER_TOKEN)
            return Usage(-(-self._written // BYTES_PER_TOKEN), reasoning, cached, self._prompt_tokens)
        return Usage(finish.completion_tokens, finish.reasoning_tokens, cached, finish.prompt_tokens)


class _OpenCall:
    """A call that is open."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.id = ""
        self.name = ""
        self.unread: list[str] = []  # before its name is known
        self.has_arguments = False
        self.scanner = JsonScanner(only_object=True)
