"""Records the chunks of a stream, and answers again without sending what was sent.

A stream whose process has died is resumed by answering its request again (`http/resuming.py`): each choice
replays its chunks (`StreamLog`), and goes on generating. The events of the replay were sent: `ResumedJournal`
leaves them out.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from antiphon.core.chunks import Chunk
from antiphon.core.plain_tokens import DeltaEncoder
from antiphon.core.stream_record import CALLS, StreamRecord
from antiphon.engines.engine import Prompt
from antiphon.run.drive import Journal, Output, PassedOutput
from antiphon.run.endings import Ending
from antiphon.run.replay import (
    PromptEntry,
    ReplayEntry,
    ReplayLog,
    ToolPrintedEntry,
    ToolResultEntry,
    counted_after,
    encode_entries,
    read_entries,
)


class StreamLog(ReplayLog):
    """The chunks of one choice, for the record of its stream."""

    takes_plain = True

    def __init__(self, record: StreamRecord, choice: int) -> None:
        recorded = list[ReplayEntry]()
        for piece in record.entries_of(choice):
            recorded += read_entries([piece], record.details_types) if isinstance(piece, bytes) else [piece]
        super().__init__(recorded)
        self._record = record
        self._choice = choice
        self._shown = 0
        self._continued = False
        self._replay()

    def _replay(self) -> None:
        """Events of chunks that were recorded were sent."""
        if self.chunks:
            self._record.replaying.add(self._choice)
        else:
            self._record.replaying.discard(self._choice)

    def record(self, chunks: list[Chunk], before: int = 0) -> list[Chunk]:
        """Record chunks, which are pending until bytes are written."""
        if before:
            chunks = counted_after(chunks, before)
        if chunks:
            self.chunks += chunks
            self._record.pending.append((self._choice, chunks))
        return chunks

    def next_prompt(self) -> tuple[int, ...] | None:
        prompt, self._continued = super().next_prompt(), True
        self._replay()
        return prompt

    def write(self, entry: ToolResultEntry | ToolPrintedEntry | PromptEntry) -> None:
        encoded = self._choice, encode_entries([entry])
        if isinstance(entry, ToolResultEntry):  # it counts by its number, not by its place
            self._record.note(encoded)
        else:
            self._record.pending.append(encoded)

    def between(self, output: Output) -> Output:
        return _Between(output, self)

    def shows(self) -> None:
        """An event that is not made of chunks is emitted."""
        self._shown += 1
        if self._shown <= self._record.shown_of(self._choice):
            self._record.replaying.add(self._choice)
        else:
            self._record.replaying.discard(self._choice)
            self._record.pending.append((self._choice, None))

    def calls_begin(self, count: int) -> None:
        """So many calls of tools may have had an effect, before the last of them begin."""
        self._record.note((CALLS, count))

    def replayed(self) -> None:
        self._record.replaying.discard(self._choice)

    def emits_last(self, left: int) -> None:
        if self._continued:  # of which generation is not told
            self._record.give_up()
        before = self._record.last_of(self._choice)
        if before is not None and left >= before:
            self._record.replaying.add(self._choice)
        else:
            self._record.replaying.discard(self._choice)
            self._record.pending.append((self._choice, left))


class _Between(PassedOutput):
    """An output between two generations: its events are counted."""

    def __init__(self, output: Output, log: StreamLog) -> None:
        super().__init__(output)
        self._log = log

    def push(self, choice: int, events: Any) -> None:
        self._log.shows()
        super().push(choice, events)

    async def calls_begin(self, count: int) -> None:
        self._log.calls_begin(count)
        await super().calls_begin(count)


class ResumedJournal(Journal):
    """Leaves out the wire events of recorded chunks, which were sent. `journal` stores the answer, if any."""

    def __init__(self, journal: Journal | None, record: StreamRecord) -> None:
        self._journal = journal
        self._record = record
        self.background = journal is not None and journal.background

    def set_prompts(self, prompts: Sequence[Prompt]) -> None:
        if self._journal is not None:
            self._journal.set_prompts(prompts)

    def open(self, stop: Callable[[Exception], None]) -> Awaitable[None] | None:
        return None if self._journal is None else self._journal.open(stop)

    def record(self, choice: int, events: Any, lines: list[bytes]) -> list[bytes]:
        if self._journal is not None:
            lines = self._journal.record(choice, events, lines)
        return [] if choice in self._record.replaying else lines

    def delta_encoder(self, encode: DeltaEncoder) -> DeltaEncoder | None:
        """Events are made: chunks are recorded."""
        return None

    async def calls_begin(self, count: int) -> None:
        if self._journal is not None:
            await self._journal.calls_begin(count)

    async def close(self, ending: Ending, reason: BaseException | None, lines: list[bytes]) -> list[bytes]:
        return lines if self._journal is None else await self._journal.close(ending, reason, lines)

    async def release(self) -> None:
        if self._journal is not None:
            await self._journal.release()
