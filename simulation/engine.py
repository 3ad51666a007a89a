"""The model of the servers, which generates the requested text, and laws on the work of engines.

A request names the kind of its answer, its owner, and itself: `slow for alpha, number 12.` So the expected
text is known, and the request that an engine works on, in any server.
"""

import re
from collections.abc import Iterator, Mapping
from contextvars import Context
from functools import cache
from random import Random
from typing import TYPE_CHECKING

from msgspec.structs import replace

from antiphon.apis.summaries import SUMMARY_REQUEST
from antiphon.core.chunks import Chunk, Token
from antiphon.core.errors import EngineDiedError, EngineNotReadyError
from antiphon.engines.engine import Engine, GenerationRequest, Receiver, Work
from antiphon.engines.pool import PoolEngine
from antiphon.engines.script import Line, ScriptedAnswer, answer_of
from antiphon.engines.scripted import ScriptedEngine
from antiphon.engines.scripted import _Generation as Generation
from antiphon.engines.upstream import _Generation as UrlGeneration
from simulation.laws import Histories, LawError, law
from simulation.loop import PROCESS, Process, SimulatedLoop
from simulation.tools import asked_to_act, call_of, is_told, said_after

if TYPE_CHECKING:
    from simulation.clients import Asked

SLACK = 0.1
"""Seconds that a server may take to notice that a time is over."""

NOTICED = 0.3
"""Seconds after which a server has noticed that a client has disconnected."""

KINDS: Mapping[str, tuple[int, int, int | None]] = {
    "short": (5, 0, None),
    "steady": (15, 30, None),
    "slow": (12, 200, None),
    "breaks": (10, 30, 5),
    "never": (3, 10, 0),
}
"""Kinds of answers: words, milliseconds between them, and after how many the engine fails."""
BEGUN = Token(1, "")
"""A token that only begins a character."""
RECALL = "recall"
"""The answer says whether the model was shown a summary of earlier text."""

_WISH = re.compile(rf"({'|'.join((*KINDS, RECALL))}) for (\w+), number (\w+)\.")


def wish(kind: str, name: str, number: object) -> str:
    """The text of a request."""
    return f"{kind} for {name}, number {number}."


def whole_text(name: str, kind: str) -> str:
    """The complete answer: for each owner, different words, numbered."""
    if kind == RECALL:
        return f"{name} remembers"
    return " ".join(f"{name}{number}" for number in range(KINDS[kind][0]))


class _Answer(ScriptedAnswer, frozen=True):
    """As of vLLM with several tokens in each step: the last only begins the character that comes next.

    After a prompt that ends with such a token, its detokenizer returns the prompt, too.
    """

    def play(self, request: GenerationRequest) -> Iterator[Chunk]:
        repeated = request.prompt.text if request.prompt.ids[-1:] == (BEGUN.id,) else ""
        for chunk in super().play(request):
            tokens = chunk.tokens if chunk.finish else (*chunk.tokens, BEGUN)
            yield replace(chunk, text=repeated + chunk.text, tokens=tokens)
            repeated = ""


@cache
def _played(line: Line) -> ScriptedAnswer:
    answer = answer_of(line)
    return _Answer(answer.line, answer.chunks, answer.length)


@cache
def _answer(name: str, kind: str) -> Line:
    _, delay, fails = KINDS.get(kind, (2, 10, None))
    return Line(whole_text(name, kind), delay_ms=delay, fail_after=fails)


def _said(text: str) -> Line:
    return Line(text, delay_ms=20)


def _summary(name: str) -> str:
    return f"{name} was here"


def line_of(prompt: str) -> Line:
    """The answer of the model to a prompt."""
    if (effect := asked_to_act(prompt)) is not None:
        return _said(said_after(effect) if is_told(prompt, effect) else call_of(effect))
    kind, name, _ = _WISH.findall(prompt)[-1]
    if SUMMARY_REQUEST in prompt:
        return _said(_summary(name))
    if kind == RECALL and _summary(name) not in prompt:
        return _said(f"{name} forgot")
    return _answer(name, kind)


Working = Generation | UrlGeneration
"""An answer that an engine works on."""


class EngineLaws:
    """What a server may have its engine work on, according to the stored state.

    `asked` are the responses, and `deadlines` the time limits of requests in seconds, by number.
    """

    def __init__(self, histories: Histories, loop: SimulatedLoop, asked: "list[Asked]") -> None:
        self._histories = histories
        self._loop = loop
        self._asked = asked
        self.slack = SLACK
        self.deadlines: dict[str, float] = {}
        self._works: dict[str, list[tuple[Process, Working]]] = {}
        self._left: set[str] = set()

    def leave(self, number: str) -> None:
        """The client of this request has disconnected, and nobody else waits for it."""
        self._left.add(number)
        for process, work in self._works.get(number, []):
            self._watch_end(process, work, NOTICED, f"number {number} is worked on without its client")

    def check(self, request: GenerationRequest, work: Work) -> None:
        """An engine has begun to work on this."""
        wishes = _WISH.findall(request.prompt.text)
        process = PROCESS.get()
        assert process is not None
        if not wishes:
            return
        number = wishes[-1][2]
        try:
            self._check(process, request, number)
        except LawError as error:  # the server would treat it as a failure of the engine
            self._loop.call_exception_handler({"message": str(error), "exception": error})
        if isinstance(work, Working):
            self._works.setdefault(number, []).append((process, work))
            if number in self.deadlines:
                self._watch_deadline(process, number, work)
            if number in self._left:
                self.leave(number)

    def _check(self, process: Process, request: GenerationRequest, number: str) -> None:
        batch = self._histories.answered.get(number)
        law(
            batch is None or not self._histories.is_held(batch, process),
            f"{number} is answered again by a server that knows its result",
        )
        if not number.isdecimal():
            return
        prompt = request.prompt.text
        for seen in self._asked[int(number)].sees:
            law(f"number {seen}." in prompt, f"number {number} is answered without what was said before it")
        history = self._histories.by_number.get(number)
        if history is None or not self._histories.is_held(history, process):
            return
        if SUMMARY_REQUEST in prompt:
            law(not history.compacted, f"number {number} is summarised again, though its summary is stored")
        else:
            stored = len(history.text)
            law(
                len(request.answer_start) >= stored,
                f"number {number} is started again, though {stored} characters are stored",
            )

    def _watch_deadline(self, process: Process, number: str, work: Working) -> None:
        now, seconds = self._loop.time(), self.deadlines[number]
        history = self._histories.by_number.get(number)
        if history is not None and history.background:
            seconds -= process.clock(now) - history.created_at
        after = max(0.0, seconds) + self.slack
        self._watch_end(process, work, after, f"number {number} is worked on after its deadline")

    def _watch_end(self, process: Process, work: Working, after: float, what: str) -> None:
        """It has ended by then. A paused server continues later, and stops at once."""
        now = self._loop.time()

        def look() -> None:
            over = work.over if isinstance(work, Generation) else work._over
            law(over or not process.alive or process.held_until > now, what)

        self._loop.call_at(now + after, look, context=Context())


class SimulatedEngine(ScriptedEngine):
    """Generates the requested text; calls the tool if requested, and confirms the result."""

    def __init__(self, laws: EngineLaws, parallel: int) -> None:
        super().__init__((), parallel=parallel)
        self._laws = laws

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        work = super().generate(request, receiver)
        self._laws.check(request, work)
        return work

    async def die(self) -> None:
        """End in the middle of all answers."""
        for generation in [*self.playing]:
            generation.fail(EngineDiedError())
        await self.stop()

    async def probe(self) -> None:
        """See `Probed`."""
        if not self._ready:
            raise EngineNotReadyError

    def answer_to(self, prompt: str) -> ScriptedAnswer | None:
        return _played(line_of(prompt))


def engine_of(laws: EngineLaws, parallel: int, replicas: int) -> tuple[Engine, list[SimulatedEngine]]:
    """A scripted engine with this number of replicas, and the replicas."""
    engines = [SimulatedEngine(laws, parallel) for _ in range(replicas)]
    if replicas == 1:
        return engines[0], engines
    named = [(f"replica {number}", engine) for number, engine in enumerate(engines)]
    return PoolEngine(named, draw=Random(0).random), engines
