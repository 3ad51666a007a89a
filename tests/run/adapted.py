"""Scripted engines that count how often they are loaded, and that take adapters."""

import asyncio
from typing import Any

from msgspec.structs import replace

from antiphon.core.errors import EngineError, RequestError
from antiphon.engines.engine import GenerationRequest, Receiver, Work
from antiphon.engines.scripted import ScriptedEngine


class Engine(ScriptedEngine):
    """Says how often it was loaded; may wait before it is, or fail."""

    def __init__(self, output: str = "Hi", *, memory: int = 1, **options: Any) -> None:
        super().__init__([{"output": output, "split": "chars", **options}], memory=memory)
        self.starts = self.stops = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: EngineError | None = None

    async def start(self) -> None:
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        self.starts += 1
        await super().start()

    async def stop(self) -> None:
        self.stops += 1
        await super().stop()


class Adapted(Engine):
    """Takes adapters."""

    def __init__(self, output: str = "Hi", *, scales_adapters: bool = True, **options: Any) -> None:
        super().__init__(output, **options)
        able = self.card.capabilities
        able = replace(able, sampling=able.sampling | {"lora"}, scales_adapters=scales_adapters)
        self.card = replace(self.card, capabilities=able)
        self.adapters: dict[str, str] = {}

    async def load_adapter(self, name: str, path: str) -> None:
        if path == "bad":
            raise RequestError("There is no adapter file bad.", param="lora_path")
        self.adapters[name] = path

    async def unload_adapter(self, name: str) -> None:
        del self.adapters[name]

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        assert all(adapter.name in self.adapters for adapter in request.sampling.lora or ())
        return super().generate(request, receiver)
