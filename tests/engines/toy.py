"""An engine with what every engine must have and nothing else, and with an option of its own.

It continues the alphabet from the prompt's last character. One character is one token,
and one step.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.core.chunks import Chunk, Finish, FinishReason
from antiphon.core.errors import AntiphonError, EngineBusyError, EngineNotReadyError, RequestError
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.engines.admission import Admission
from antiphon.engines.engine import GenerationRequest, Load, ModelCard, Receiver, Work


@dataclass(frozen=True, kw_only=True)
class Options:
    stride: int = 1
    """How many letters each one is after the one before it."""

    def build(self, limits: Limits = DEFAULTS) -> "ToyEngine":
        return ToyEngine(self.stride, limits=limits)


class ToyEngine:
    def __init__(self, stride: int = 1, parallel: int = 2, limits: Limits = DEFAULTS) -> None:
        self.card = ModelCard(name="toy", context=4096)
        self.memory = 0
        self.stride = stride
        self.admission = Admission(parallel, limits)
        self.generations: set[Generation] = set()
        self._ready = False

    @property
    def load(self) -> Load:
        return self.admission.load

    async def start(self) -> None:
        self._ready = True

    async def stop(self) -> None:
        self._ready = False
        for generation in [*self.generations]:
            generation.fail(EngineNotReadyError())

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        return [ord(character) for piece in pieces for character in piece]

    async def token_texts(self, ids: Sequence[int]) -> list[str]:
        for token in ids:
            if not 0 <= token < 0x110000:
                raise RequestError(f"There is no token {token}.", param="tokens")
        return [*map(chr, ids)]

    async def detokenize(self, ids: Sequence[int]) -> str:
        return "".join(await self.token_texts(ids))

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        loop = asyncio.get_running_loop()
        if not self._ready:
            return loop.call_soon(receiver.fail, EngineNotReadyError())
        try:
            return Generation(self, request, receiver)
        except EngineBusyError as error:
            return loop.call_soon(receiver.fail, error)


class Generation:
    def __init__(self, engine: ToyEngine, request: GenerationRequest, receiver: Receiver) -> None:
        self._engine, self._receiver = engine, receiver
        self._letter, self._limit = request.prompt.text[-1], request.max_tokens
        self._count, self._over = 0, False
        self._permit = engine.admission.enter(self._wait)
        engine.generations.add(self)

    def _wait(self) -> None:
        asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        if self._over:
            return
        text = ""
        if self._count < self._limit:
            self._count += 1
            text = self._letter = chr(97 + (ord(self._letter) - 97 + self._engine.stride) % 26)
        finish = None
        if self._count == self._limit:
            finish = Finish(FinishReason.LENGTH, completion_tokens=self._count)
            self.cancel()
        else:
            self._wait()
        self._receiver.push([Chunk(text, finish=finish)])

    def fail(self, error: AntiphonError) -> None:
        if not self._over:
            self.cancel()
            self._receiver.fail(error)

    def cancel(self) -> None:
        if not self._over:
            self._over = True
            self._engine.generations.discard(self)
            self._permit.leave()
