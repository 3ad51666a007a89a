"""A replica as one server's engine: real slots, and a connection to the machine for each generation.

A prompt names its answer in its text, `answer 7 of 40:`. So the machine knows what to write, and laws whose
the tokens are.
"""

import asyncio
import re
from collections.abc import Callable, Sequence

from antiphon.core.chunks import Chunk
from antiphon.core.errors import AntiphonError, EngineBusyError, EngineNotReadyError
from antiphon.core.limits import Limits
from antiphon.core.shared_queue import SharedQueue
from antiphon.engines.admission import Admission, Slot
from antiphon.engines.engine import (
    Capabilities,
    GenerationRequest,
    Load,
    ModelCard,
    Receiver,
    Work,
)
from antiphon.engines.figures import CacheFigures
from antiphon.engines.kv_sources import Source
from antiphon.engines.shared_admission import admission
from simulation.fleet.machine import Machine, Stream, written_tokens
from simulation.loop import PROCESS, Process

CONTEXT = 131_072
_NAMED = re.compile(r"answer (\d+) of (\d+):")


def name_of(number: int, length: int) -> str:
    """The text of a prompt."""
    return f"answer {number} of {length}:"


class RemoteEngine:
    """The engine of one replica in one server. See `Engine`."""

    memory = 0

    def __init__(self, machine: Machine, limits: Limits) -> None:
        self.machine = machine
        self.card = ModelCard("model", CONTEXT, capabilities=Capabilities(token_ids=True))
        self.expected = 0
        """Tokens of the next prompt that the server expects in the cache."""
        self._limits = limits
        self._sent: set[int] = set()  # blocks of prompts since it was last known to fail
        self._admission = Admission(machine.speed.slots, limits)
        process = PROCESS.get()
        assert process is not None
        self.process: Process = process

    @property
    def load(self) -> Load:
        return self._admission.load

    async def start(self) -> None:
        """See `Engine`."""
        await self.probe()

    async def stop(self) -> None:
        """See `Engine`."""

    async def probe(self) -> None:
        """See `Probed`."""
        if not self.machine.up:
            self.note_failure()
            raise EngineNotReadyError

    async def event_sources(self) -> Sequence[Source]:
        """See `TellsEvents`."""
        return (Source(self.machine.name),)

    async def cache_figures(self) -> CacheFigures:
        """See `Measured`."""
        return CacheFigures(block_size=self.machine.speed.block, blocks=self.machine.speed.blocks)

    def note_failure(self) -> None:
        """The server learns that the replica is gone, and its cache with it."""
        self._sent.clear()

    def share(self, permits: Callable[[], SharedQueue]) -> None:
        """See `SharesSlots`."""
        self._admission = admission(self.machine.speed.slots, self._limits, permits())

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        """See `Engine`: prompts are ids already."""
        raise NotImplementedError

    token_texts = detokenize = tokenize  # type: ignore[assignment]

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        """See `Engine`."""
        work = _Connection(self, request, receiver)
        self.machine.laws.expects(self.machine.name, work.stream, self._sent)
        self._sent.update(work.stream.hashes)
        try:
            work.slot = self._admission.enter(work.begin, tokens=request.tokens)
        except AntiphonError as error:
            return asyncio.get_running_loop().call_soon(receiver.fail, error)
        return work


class _Connection:
    """One generation: a stream of the machine, and a slot."""

    slot: Slot | None = None

    def __init__(self, engine: RemoteEngine, request: GenerationRequest, receiver: Receiver) -> None:
        named = _NAMED.match(request.prompt.text)
        assert named is not None
        number, length = int(named[1]), int(named[2])
        begin = written_tokens(request.prompt.text)
        self._engine, self._machine = engine, engine.machine
        self._receiver = receiver
        self._over = False
        chosen = asyncio.get_running_loop().time()
        self.stream = Stream(
            number, chosen, request.prompt.ids, begin, length, self._push, self._fail, engine.process
        )
        self.stream.block = engine.machine.speed.block
        self.stream.hashes = engine.machine.cache.hashes(request.prompt.ids)
        self.stream.expected = engine.expected
        self.stream.foreseen = not engine.load.waiting

    def begin(self) -> None:
        """It has a slot."""
        asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        if not self._over:
            self._machine.begin(self.stream)

    def _push(self, chunks: list[Chunk]) -> None:
        if self._over:
            return
        if self.slot is not None:
            self.slot.generated += sum(len(chunk.tokens) for chunk in chunks)
        if chunks[-1].finish is not None:
            self._close()
        self._receiver.push(chunks)

    def _fail(self, error: AntiphonError) -> None:
        if not self._over:
            self._close()
            if not isinstance(error, EngineBusyError):
                self._engine.note_failure()
            self._receiver.fail(error)

    def cancel(self) -> None:
        """See `Work`."""
        if not self._over:
            self._close()

    def _close(self) -> None:
        self._over = True
        self._machine.cancel(self.stream)
        if self.slot is not None:
            self.slot.leave()
