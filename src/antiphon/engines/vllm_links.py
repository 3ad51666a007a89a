"""VLLM with several clients: its core is started once, and each process of a server is a client.

`Host` starts the core, and is a client itself: it ends the requests of clients that have died, and gets what
the core tells nobody else. `client_of` makes the client of a process. The interfaces are those that vLLM's
own server uses for several processes. The sockets are made by the supervisor, more of them than processes,
because the core greets each client once.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from antiphon.core.errors import EngineDiedError, EngineError
from antiphon.core.links import CoreFacts, Link, Notes
from antiphon.engines.vllm_arguments import unloadable
from antiphon.engines.vllm_figures import NoLogger, SharedStatistics
from antiphon.engines.vllm_imports import imported

ID_BYTES = 7
"""Random bytes in the id of a request, as many as keep it in one line of the processor's cache."""
AGAIN_SECONDS = (0.0, 1.0, 5.0)
"""When the requests of a client that has died are ended: some may have been on their way."""


def _configured(args: Any, clients: int, place: int) -> Any:
    """The configuration of the core, place -1, or of one of its clients. Raises EngineError."""
    args._api_process_count, args._api_process_rank = clients, place
    try:
        return args.create_engine_config()
    except (RuntimeError, ValueError, OSError) as error:
        raise unloadable(args.model, error) from error


def _addresses(link: Link) -> dict[str, Any]:
    """The addresses of a client, as vLLM's client takes them."""
    receiving, sending = link.take()
    addresses = {
        "input_address": link.input,
        "output_address": link.output,
        "input_listener": receiving,
        "output_listener": sending,
    }
    return addresses | ({"stats_update_address": link.core.loads} if link.core.loads else {})


def client_of(args: Any, link: Link) -> Any:
    """An `AsyncLLM` for a core that runs, or loads: it waits for that. Raises EngineError."""
    config = _configured(args, link.clients, link.place)
    return imported("vllm.v1.engine.async_llm").AsyncLLM.from_vllm_config(
        config,
        stat_loggers=[NoLogger],
        disable_log_stats=args.disable_log_stats,
        client_addresses=_addresses(link),
        client_count=link.clients,
        client_index=link.number,
    )


def check(parallel: Any, media: Any) -> None:
    """Raise EngineError for what vLLM cannot do with several clients, in arguments or a configuration."""
    size, here = parallel.data_parallel_size, parallel.data_parallel_size_local
    apart = here not in (None, size) or getattr(parallel, "local_engines_only", False)
    refused = {
        "enable_elastic_ep": parallel.enable_elastic_ep,
        "enable_fault_tolerance": parallel.enable_fault_tolerance,
        "distributed_executor_backend=ray": parallel.distributed_executor_backend == "ray",
        "data_parallel_backend=ray": parallel.data_parallel_backend == "ray",
        "data_parallel_size over several machines": size > 1 and apart,
        "mm_tensor_ipc=torch_shm": getattr(media, "mm_tensor_ipc", None) == "torch_shm",
    }
    for argument, given in refused.items():
        if given:
            raise EngineError(
                f"--vllm {argument} needs a server of one process. Leave it out, or leave out --processes."
            )


def adapter_number(name: str, path: str) -> int:
    """The number of an adapter, which is the same in all processes, and another one when its files change.

    VLLM identifies adapters by their numbers, of 31 bits.
    """
    files = sorted(file for file in Path(path).glob("*") if file.is_file()) if Path(path).is_dir() else []
    states = [(file.name, (state := file.stat()).st_mtime_ns, state.st_size) for file in files]
    digest = blake2b(repr((name, path, states)).encode(), digest_size=4).digest()
    return (int.from_bytes(digest) >> 1) or 1


class Host:
    """The core of a model, for so many clients, with these addresses for the links: see `core/links.py`."""

    def __init__(self, args: Any, link: Link, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        check(args, args)
        self._args = args
        self._link = link
        self._addresses = (inputs, outputs)
        self._notes = Notes(link.memory, link.number)
        self._statistics = SharedStatistics(self._notes)
        self._manager: Any = None
        self._coordinator: Any = None
        self._client: Any = None

    def load(self, started: Callable[[CoreFacts], None]) -> None:
        """Start the core, and wait until it has loaded. Raises EngineError.

        `started` is called when its processes run.
        """
        config = _configured(self._args, self._link.clients, -1)
        check(config.parallel_config, config.model_config.multimodal_config)
        utils, executor = imported("vllm.v1.engine.utils"), imported("vllm.v1.executor").Executor
        inputs, outputs = self._addresses
        addresses = utils.EngineZmqAddresses(inputs=[*inputs], outputs=[*outputs])
        try:
            launching = utils.launch_core_engines(config, executor.get_class(config), True, addresses)
            with launching as launched:
                self._manager, self._coordinator = launched.engine_manager, launched.coordinator
                loads = self._coordinator and self._coordinator.get_stats_publish_address()
                started(CoreFacts([process.pid for process in self._manager.processes], loads))
        except (RuntimeError, ValueError, OSError) as error:
            raise unloadable(self._args.model, error) from error
        make = imported("vllm.v1.engine.core_client").EngineCoreClient.make_async_mp_client
        self._client = make(
            vllm_config=config,
            executor_class=executor.get_class(config),
            log_stats=True,
            client_addresses=_addresses(self._link),
            client_count=self._link.clients,
            client_index=self._link.number,
        )

    async def run(self) -> None:
        """Read what the core tells this client. Raises EngineDiedError when it has ended."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for sentinel in self._manager.sentinels():
            loop.add_reader(sentinel, ended.set)
        reading, waiting = asyncio.create_task(self._read()), asyncio.create_task(ended.wait())
        try:
            await asyncio.wait((reading, waiting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for sentinel in self._manager.sentinels():
                loop.remove_reader(sentinel)
            for task in (reading, waiting):
                task.cancel()
            await asyncio.gather(reading, waiting, return_exceptions=True)
        raise EngineDiedError

    async def _read(self) -> None:
        while True:
            self._statistics.add(await self._client.get_output_async())

    async def forget(self, number: int) -> None:
        """End the requests of a client that has died."""
        ids = [f"{request:0{2 * ID_BYTES}x}" for request in self._notes.of(number)]
        kind = imported("vllm.v1.engine").EngineCoreRequestType.ABORT
        for seconds in AGAIN_SECONDS if ids else ():
            await asyncio.sleep(seconds)
            for engine in self._client.core_engines:  # which of them has it, only that client knew
                await self._client._send_input(kind, ids, engine)

    def close(self) -> None:
        """End the core."""
        if self._client is not None:
            self._client.shutdown()
        for part in (self._manager, self._coordinator):
            if part is not None:
                part.shutdown()


def ends_of(processes: Sequence[int]) -> Sequence[int]:
    """Descriptors that become readable when these processes have ended; none where the system has none."""
    ends = []
    with suppress(OSError):
        ends += [os.pidfd_open(process) for process in processes]
    return ends
