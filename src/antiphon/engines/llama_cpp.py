"""GGUF models, run by llama.cpp inside this process.

Each generation has a task, which waits for one of llama.cpp's slots and holds
it until the work has really ended, and a thread, which sits in llama.cpp's
blocking call and hands chunks to the event loop. The reader of a generation
waits for neither: when it goes away it leaves word and is gone. llama.cpp
takes no more requests than it has slots, because what waits in there cannot
be cancelled.

Not known here: chat, tools, stop strings. `llama_server` is the binding,
`llama_stream` the messages.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from antiphon.core.chunks import Chunk, Finish, FinishReason
from antiphon.core.constraint import Gbnf
from antiphon.core.errors import AntiphonError, EngineError, EngineNotReadyError
from antiphon.engines.admission import Admission
from antiphon.engines.engine import Capabilities, Generation, ModelCard
from antiphon.engines.gguf import names, read_metadata
from antiphon.engines.llama_request import HONOURED, check, check_ids, request_of
from antiphon.engines.llama_server import LlamaServer
from antiphon.engines.llama_stream import Lexicon, reader_of
from antiphon.engines.mailbox import Mailbox, Mailroom
from antiphon.engines.models import response_template

DEFAULT_CONTEXT = 8192
"""Tokens, if the model was trained for so many: memory grows with context times slots."""


class LlamaCppEngine:
    """The model in the GGUF file at `path`, answering `parallel` requests at a time.

    `name` is its public name, by default that of the file. `context`, in tokens, is
    what each request may use; by default what the model was trained for, at most
    `DEFAULT_CONTEXT`. `threads` compute, by default one for each core that this
    process may use.
    The same seed gives the same text while nothing else runs; beside others, whose
    tokens share its batches, rounding may differ and now and then draw another.
    `active` generations hold a slot of llama.cpp now, `waiting` want one.
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
        self._work: dict[asyncio.Task[None], _Work] = {}
        self._loading: asyncio.Future[None] | None = None
        self._server: LlamaServer | None = None
        self._card: ModelCard | None = None
        self.active = 0

    @property
    def card(self) -> ModelCard:
        """The model. Raises EngineNotReadyError before `start`."""
        if self._card is None:
            raise EngineNotReadyError
        return self._card

    @property
    def waiting(self) -> int:
        """Generations that wait for a slot."""
        return self._admission.waiting

    async def start(self) -> None:
        """Load the model. Raises EngineError if the file or the memory do not allow it."""
        self._mailroom = Mailroom(asyncio.get_running_loop())
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
            capabilities=Capabilities(token_ids=True, sampling=HONOURED, constraints=(Gbnf,)),
        )
        self._vocabulary = server.vocabulary()
        self._lexicon = Lexicon(server)
        self._server = server

    async def stop(self) -> None:
        """Free the model, once what runs has been stopped: within one step, or one prompt batch."""
        if self._loading is not None:
            await asyncio.wait((self._loading,))
        server, self._server = self._server, None
        if server is None:
            return
        for work in self._work.values():
            work.fail(EngineNotReadyError())
        await asyncio.gather(*self._work, return_exceptions=True)
        await asyncio.to_thread(server.close)

    def _running(self) -> LlamaServer:
        if self._server is None:
            raise EngineNotReadyError
        return self._server

    async def tokenize(self, text: str) -> list[int]:
        """The ids of a text; special tokens in it become their ids, and none are added."""
        return await asyncio.to_thread(self._running().tokenize, text)

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The text of these tokens, special ones written out. Raises RequestError if one does not exist."""
        server = self._running()
        check_ids(ids, self._vocabulary, "tokens")
        return await asyncio.to_thread(server.detokenize, ids)

    async def generate(self, generation: Generation) -> AsyncGenerator[list[Chunk], None]:
        """Generate one answer. Text comes whole characters at a time, lost ids as `UNKNOWN_ID`."""
        server = self._running()
        check(generation, self._vocabulary)
        if generation.max_tokens < 1:  # llama.cpp would give one token all the same
            yield [Chunk("", (), Finish(FinishReason.LENGTH))]
            return
        work = _Work(generation, self._lexicon, self._mailroom)
        work.task = asyncio.create_task(self._admit(work, server))
        self._work[work.task] = work
        work.task.add_done_callback(self._work.pop)
        try:
            finished = False
            while not finished:
                batch = await work.mailbox.get()
                finished = batch[-1].finish is not None
                yield batch
        finally:
            work.cancel()

    async def _admit(self, work: "_Work", server: LlamaServer) -> None:
        """Wait for a slot and hold it for as long as the work's thread runs."""
        try:
            async with self._admission.slot(work.priority):
                self.active += 1
                try:
                    await work.run(server)
                finally:
                    self.active -= 1
        except Exception as error:
            work.mailbox.fail(_told(error))


class _Work:
    """One generation in llama.cpp: its thread on one side, the event loop on the other."""

    task: "asyncio.Task[None]"

    def __init__(self, generation: Generation, lexicon: Lexicon, mailroom: Mailroom) -> None:
        self.mailbox: Mailbox[Chunk] = Mailbox()
        self.priority = generation.sampling.priority or 0
        self._request = request_of(generation)
        self._reader = reader_of(generation.sampling, lexicon)
        self._mailroom = mailroom
        self._ended: asyncio.Future[None] | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Stop: at once if still waiting for a slot, else at the next message from llama.cpp."""
        self._cancelled = True
        if self._ended is None:
            self.task.cancel()

    def fail(self, failure: EngineError) -> None:
        """Stop, and let the reader know why."""
        self.mailbox.fail(failure)
        self.cancel()

    async def run(self, server: LlamaServer) -> None:
        """Work in a thread of its own, until that thread ends."""
        self._ended = asyncio.get_running_loop().create_future()
        # Not a daemon: llama.cpp must not be torn down around it. It cannot keep the
        # process alive either, see `_unwanted`.
        threading.Thread(target=self._thread, args=(server,), name="antiphon-llama").start()
        try:
            await asyncio.shield(self._ended)
        finally:
            self._cancelled = True

    def _unwanted(self) -> bool:
        return self._cancelled or not threading.main_thread().is_alive()

    def _thread(self, server: LlamaServer) -> None:
        try:
            server.complete(self._request, self._receive)
        except Exception as error:
            self._post(partial(self.mailbox.fail, _told(error)))
        self._post(self._end)

    def _receive(self, raw: bytes) -> bool:
        """Take a message from llama.cpp; True tells it to stop. It swallows what is raised here."""
        if self._unwanted():
            return True
        try:
            chunk = self._reader.read(raw)
        except Exception as error:
            self._post(partial(self.mailbox.fail, _told(error)))
            return True
        if chunk is None:
            return False
        self._post(partial(self.mailbox.put, chunk))
        return chunk.finish is not None

    def _end(self) -> None:
        # Behind all that the thread has put: a reader that still waits would wait for ever.
        self.mailbox.fail(EngineError())
        assert self._ended is not None
        if not self._ended.done():
            self._ended.set_result(None)

    def _post(self, delivery: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the event loop is closed: nobody is left to tell
            self._mailroom.post(delivery)


def _told(error: Exception) -> AntiphonError:
    """What the reader of a generation gets to know of a failure."""
    if isinstance(error, AntiphonError):
        return error
    failure = EngineError()
    failure.__cause__ = error
    return failure
