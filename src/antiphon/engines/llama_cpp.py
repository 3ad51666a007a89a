"""GGUF models, run by llama.cpp inside this process.

Each generation holds one of llama.cpp's slots until the work has really ended,
and has a thread, which sits in llama.cpp's blocking call and hands chunks to the
event loop. Who asked for it waits for neither: `cancel` returns at once, and
the slot is free when the thread has ended. llama.cpp takes no more requests
than it has slots, because what waits in there cannot be cancelled.

Not known here: chat, tools, stop strings. `llama_server` is the binding,
`llama_stream` the messages.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path

from cyclopts.types import PositiveInt

from antiphon.core.chunks import Chunk, Finish, FinishReason
from antiphon.core.constraint import Gbnf
from antiphon.core.errors import AntiphonError, EngineError, EngineNotReadyError
from antiphon.engines.admission import Admission, Ticket
from antiphon.engines.engine import (
    Capabilities,
    GenerationRequest,
    Load,
    ModelCard,
    Receiver,
    Work,
    check_size,
)
from antiphon.engines.gguf import names, read_metadata
from antiphon.engines.llama_request import SUPPORTED, check, check_ids, defaults_of, request_of
from antiphon.engines.llama_server import LlamaServer
from antiphon.engines.llama_stream import CachedTokenizer, ChunkReader, reader_of
from antiphon.engines.models import resolve, response_template
from antiphon.engines.thread_bridge import ThreadBridge

DEFAULT_CONTEXT = 8192
"""Tokens, if the model was trained for so many: memory grows with context times slots."""


@dataclass(frozen=True)
class Options:
    """The options of llama.cpp."""

    model: str | None = None
    """The model: a GGUF file, or hf:ORG/REPO[:FILE.gguf] from the Hugging Face hub
    (needs the extra `hub`). Without one, the small bundled model."""

    _: KW_ONLY

    context: PositiveInt | None = None
    """The most tokens that a prompt and its answer may have together. Without it,
    what the model was trained for, at most 8192."""

    parallel: PositiveInt = 4
    """How many answers are generated at the same time; further requests wait."""

    threads: PositiveInt | None = None
    """How many threads compute. Without it, one for each core that the server may use."""

    def build(self) -> "LlamaCppEngine":
        """Find the model's file, which may have to be downloaded."""
        path = resolve(self.model)
        return LlamaCppEngine(path, context=self.context, parallel=self.parallel, threads=self.threads)


class LlamaCppEngine:
    """The model in the GGUF file at `path`, answering `parallel` requests at a time.

    `name` is its public name, by default that of the file. `context`, in tokens, is
    what each request may use; by default what the model was trained for, at most
    `DEFAULT_CONTEXT`. `threads` compute, by default one for each core that this
    process may use.
    The same seed gives the same text while nothing else runs; beside others, whose
    tokens share its batches, rounding may differ and now and then draw another.
    """

    def __init__(
        self,
        path: Path,
        *,
        name: str | None = None,
        context: int | None = None,
        parallel: int = 4,
        threads: int | None = None,
    ) -> None:
        self._path = path
        self._name = name
        self._context = context
        self._parallel = parallel
        self._threads = threads
        self._admission = Admission(parallel)
        self._generations: dict[_Generation, None] = {}
        self._loading: asyncio.Future[None] | None = None
        self._server: LlamaServer | None = None
        self._card: ModelCard | None = None

    @property
    def card(self) -> ModelCard:
        """The model. Raises EngineNotReadyError before `start`."""
        if self._card is None:
            raise EngineNotReadyError
        return self._card

    @property
    def load(self) -> Load:
        """How many generations hold a slot of llama.cpp, and how many want one."""
        return Load(self._admission.running, self._admission.waiting)

    async def start(self) -> None:
        """Load the model. Raises EngineError if the file or the memory do not allow it."""
        self._bridge = ThreadBridge(asyncio.get_running_loop())
        self._loading = asyncio.ensure_future(asyncio.to_thread(self._load))
        # Shielded: a thread cannot be cancelled. `stop` waits for it, and frees what it loaded.
        await asyncio.shield(self._loading)

    def _load(self) -> None:
        facts = read_metadata(self._path)
        trained = facts.get(f"{facts.get('general.architecture')}.context_length", DEFAULT_CONTEXT)
        context = self._context or min(int(trained), DEFAULT_CONTEXT)
        server = LlamaServer(self._path, context=context, parallel=self._parallel, threads=self._threads)
        props = server.props()
        template = facts.get("tokenizer.chat_template")
        self._card = ModelCard(
            name=self._name or self._path.stem,
            context=min(context, props.default_generation_settings.n_ctx),
            chat_template=str(template) if template else None,
            bos=props.bos_token,
            eos=props.eos_token,
            created=int(time.time()),
            known_as=names(facts, self._path),
            response_template=response_template(self._path),
            opening=server.opening_token(),
            capabilities=Capabilities(token_ids=True, sampling=SUPPORTED, constraints=(Gbnf,)),
            defaults=defaults_of(props.default_generation_settings.params),
        )
        self._vocabulary = server.vocabulary()
        self._tokenizer = CachedTokenizer(server)
        self._server = server

    async def stop(self) -> None:
        """Free the model, once what runs has been stopped: within one step, or one prompt batch."""
        if self._loading is not None:
            await asyncio.wait((self._loading,))
        server, self._server = self._server, None
        if server is None:
            return
        generations = [*self._generations]
        for generation in generations:
            generation.fail(EngineNotReadyError())
        await asyncio.gather(*(generation.ended for generation in generations))
        await asyncio.to_thread(server.close)

    def _running(self) -> LlamaServer:
        if self._server is None:
            raise EngineNotReadyError
        return self._server

    async def tokenize(self, pieces: Sequence[str]) -> list[int]:
        """The ids of all pieces, each tokenized by itself. Raises RequestError for too much text."""
        server = self._running()
        check_size(pieces, self.card.context)
        return await asyncio.to_thread(server.tokenize, pieces)

    async def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each of these tokens, half a character as `\ufffd`."""
        return await asyncio.to_thread(self._token_texts, self._running(), ids)

    def _token_texts(self, server: LlamaServer, ids: Sequence[int]) -> list[str]:
        """Most are found by reading their text once more; the rest is asked for one by one."""
        read = server.pieces(server.detokenize(ids))
        known = {piece.id: piece.raw.decode(errors="replace") for piece in read}
        return [known[token] if token in known else self._tokenizer.text(token) for token in ids]

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of these tokens, special ones written out. Raises RequestError if one does not exist."""
        server = self._running()
        check_ids(ids, self._vocabulary, "tokens")
        return await asyncio.to_thread(server.detokenize, ids)

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        """Begin one generation. Text comes whole characters at a time, lost ids as `UNKNOWN_ID`."""
        loop = asyncio.get_running_loop()
        try:
            server = self._running()
            check(request, self._vocabulary)
            if request.max_tokens < 1:  # llama.cpp would give one token all the same
                return loop.call_soon(receiver.push, [Chunk("", (), Finish(FinishReason.LENGTH))])
            reader = reader_of(request.sampling, self._tokenizer)
            generation = _Generation(request, receiver, reader, self._bridge)
            begin = partial(generation.begin, server)
            generation.ticket = self._admission.enter(begin, request.sampling.priority or 0)
        except AntiphonError as error:
            return loop.call_soon(receiver.fail, error)
        self._generations[generation] = None
        generation.ended.add_done_callback(lambda _: self._generations.pop(generation))
        return generation


class _Generation:
    """One generation in llama.cpp: its thread on one side, the receiver on the event loop on the other.

    `ended` is done when the thread has ended, or will never begin.
    """

    ticket: Ticket

    def __init__(
        self, request: GenerationRequest, receiver: Receiver, reader: ChunkReader, bridge: ThreadBridge
    ) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request_of(request)
        self._receiver = receiver
        self._reader = reader
        self._bridge = bridge
        self._chunks: deque[Chunk] = deque()  # what the receiver did not get yet
        self._begun = False
        self._over = False  # the receiver is not called any more

    def begin(self, server: LlamaServer) -> None:
        """There is a slot: work in a thread, until that thread ends."""
        self._begun = True
        # Not a daemon: llama.cpp must not be torn down around it. It cannot keep the
        # process alive either, see `_unwanted`.
        thread = threading.Thread(target=self._work, args=(server,), name="antiphon-llama")
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads
            self._post(partial(self._leave, _public(error)))

    def cancel(self) -> None:
        """Stop: at once if still waiting for a slot, else at the next message from llama.cpp."""
        self._over = True
        if not self._begun:
            self._end()

    def fail(self, error: AntiphonError) -> None:
        """Stop, and tell the receiver why."""
        if not self._over:
            self.cancel()
            self._receiver.fail(error)

    # In the thread

    def _unwanted(self) -> bool:
        return self._over or not threading.main_thread().is_alive()

    def _work(self, server: LlamaServer) -> None:
        failure: AntiphonError = EngineError()  # unless the last chunk came: then it is not told
        try:
            server.complete(self._request, self._receive)
        except Exception as error:
            failure = _public(error)
        self._post(partial(self._leave, failure))

    def _receive(self, raw: bytes) -> bool:
        """Take a message from llama.cpp; True tells it to stop. It swallows what is raised here."""
        if self._unwanted():
            return True
        try:
            chunk = self._reader.read(raw)
        except Exception as error:
            self._post(partial(self.fail, _public(error)))
            return True
        if chunk is None:
            return False
        self._chunks.append(chunk)
        self._post(self._push)
        return chunk.finish is not None

    def _post(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the event loop is closed: nobody is left to tell
            self._bridge.post(call)

    # On the event loop

    def _push(self) -> None:
        """Hand over what has come. One call may take the chunks of several posts."""
        chunks = []
        while self._chunks:
            chunks.append(self._chunks.popleft())
        if chunks and not self._over:
            self._over = chunks[-1].finish is not None
            self._receiver.push(chunks)

    def _leave(self, failure: AntiphonError) -> None:
        """The thread has ended, behind all that it posted."""
        self._end()
        self.fail(failure)

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
            self.ticket.leave()


def _public(error: Exception) -> AntiphonError:
    """What the receiver of a generation is told of a failure."""
    if isinstance(error, AntiphonError):
        return error
    failure = EngineError()
    failure.__cause__ = error
    return failure
