"""The minimum cost of a layer in front of vLLM's engine, for comparison: `bench/vllm.py` starts it.

The engine's client is Antiphon's (`VllmCore`), in the process; in front of it is a bare uvloop protocol.
Only the number of tokens of a request is parsed, and the prompt was tokenized beforehand. The written bytes
are constant, those that Antiphon would send, one write for each of the engine's outputs: the text of a token
is ignored. So no layer costs less that gets requests by HTTP and streams the engine's outputs. It serves
until it is terminated.
"""

import argparse
import asyncio
import gc
import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
import uvloop
from msgspec.structs import replace

from antiphon.core.chunks import Chunk, Finish, FinishReason, Token
from antiphon.core.turn import Sampling
from antiphon.engines.engine import GenerationRequest, Prompt
from antiphon.engines.vllm_arguments import engine_args
from antiphon.engines.vllm_core import RequestExtras, VllmCore
from antiphon.engines.vllm_imports import installed_version
from antiphon.http.server import GC_THRESHOLD
from bench.floor import stream_of
from bench.scenario import MODEL

WANTED = re.compile(rb'"max_tokens": ?(\d+)')
PROMPT = "<|im_start|>user\nSing.<|im_end|>\n<|im_start|>assistant\n"
HEALTH = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


def asked(tokens: int) -> bytes:
    """The body of a request for this number of tokens."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Sing."}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "ignore_eos": True,
        "max_tokens": tokens,
    }
    return msgspec.json.encode(body)


def words(tokens: int) -> list[Chunk]:
    """This number of tokens, each of which is visible at once: space would wait for the text after it."""
    texts = [f" w{number}" for number in range(tokens)]
    chunks = [Chunk(text, (Token(number, text),)) for number, text in enumerate(texts)]
    return [*chunks[:-1], replace(chunks[-1], finish=Finish(FinishReason.LENGTH))]


class Floor(asyncio.Protocol):
    """One connection."""

    def __init__(self, playing: "Playing") -> None:
        self._playing = playing
        self._steps: tuple[bytes, ...] = ()
        self._next = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is registered nowhere

    def data_received(self, data: bytes) -> None:
        """Request an answer from the engine; a request without tokens is a readiness probe."""
        wanted = WANTED.search(data)
        if wanted is None:
            self._transport.write(HEALTH)
            return
        tokens = int(wanted[1])
        self._steps, self._next = self._playing.answers[tokens], 0
        self._playing.begin(self, tokens)

    def step(self) -> None:
        """Write the next bytes."""
        self._transport.write(self._steps[self._next])
        self._next += 1


class Playing:
    """The connections with a running answer, by the engine's request id.

    `answers` have the bytes of each step, by the number of tokens.
    """

    def __init__(self, core: VllmCore, answers: Mapping[int, tuple[bytes, ...]]) -> None:
        self.answers = answers
        self._core = core
        self._ids = tuple(core.vocabulary.encode(PROMPT))
        self._connections: dict[str, Floor] = {}
        self._tasks: set[asyncio.Future[None]] = set()

    def begin(self, connection: Floor, tokens: int) -> None:
        """Request this number of tokens from the engine."""
        sampling = Sampling(temperature=0, ignore_eos=True)
        made = self._core.request(GenerationRequest(Prompt("", self._ids), tokens, sampling), RequestExtras())
        self._connections[made.request_id] = connection
        task = asyncio.ensure_future(self._core.add(made))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def take(self, outputs: Sequence[Any]) -> None:
        """Write for each output of a step."""
        for output in outputs:
            self._connections[output.request_id].step()
            if output.finish_reason is not None:
                del self._connections[output.request_id]


async def serve(
    core: VllmCore, answers: Mapping[int, tuple[bytes, ...]], port: int | None, unix_socket: str | None
) -> None:
    """Serve until it is terminated, or the engine ends."""
    playing = Playing(core, answers)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, cast("asyncio.Task[None]", asyncio.current_task()).cancel)
    if unix_socket is None:
        server = await loop.create_server(lambda: Floor(playing), "127.0.0.1", port, backlog=2048)
    else:
        server = await loop.create_unix_server(lambda: Floor(playing), unix_socket, backlog=2048)
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    try:
        await core.read(playing.take)
    except asyncio.CancelledError:
        pass
    finally:
        server.close()
        core.leave()


def main() -> None:
    """Load the model, and serve it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--port", type=int)
    parser.add_argument("--unix-socket")
    parser.add_argument("--tokens", type=int, nargs="+", required=True)
    parser.add_argument("--vllm", action="append", default=[])
    options = parser.parse_args()
    answers = {tokens: stream_of(asked(tokens), words(tokens)) for tokens in options.tokens}
    version = installed_version(untested=True)
    core = VllmCore(engine_args(options.model, options.vllm, {}), version)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(core, answers, options.port, options.unix_socket))
    finally:
        core.close()


if __name__ == "__main__":
    main()
