"""The data that are collected about a request, for its log line, the metrics and its trace.

There is one `Observation` for each request, for each turn on a WebSocket, and for each background response. A
context variable holds it: all code can add to it. `http/observing.py` and `app/worker.py` read it once, at
the end. Nothing is collected per token: a generation is added when it is over, with the counts of its last
event.

Times are those of `perf_counter`, in seconds.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from time import perf_counter, time_ns
from typing import Any, Protocol

from msgspec import Struct, field

from antiphon.core.accounts import ANYONE, Account
from antiphon.core.chunks import FinishReason
from antiphon.core.decision import Question, Verdicts
from antiphon.core.events import Finished


class ObservedGeneration(Struct, frozen=True):
    """One generation. `prompt_tokens` include those that the engine had cached."""

    model: str
    """The canonical name: clients can invent any number of other names."""
    started: float
    ended: float
    first: float | None
    """The time of its first event."""
    prompt_tokens: int
    end: Finished
    malformed: int = 0
    """Places of broken markup."""


class ObservedCall(Struct, frozen=True):
    """One call of a server tool, by the tool's type and the action."""

    type: str
    action: str
    started: float
    ended: float
    failed: bool


class ObservedDecision(Struct, frozen=True):
    """The answers to the questions of a decision, by the canonical name of the model that gave them."""

    model: str
    started: float
    ended: float
    questions: tuple[Question, ...]
    answers: Verdicts

    @property
    def unlabelled(self) -> int:
        """The number of answers for which the likeliest token was no label."""
        return sum(verdict.label_is_likeliest is False for verdict in self.answers.verdicts)

    @property
    def least_mass(self) -> float | None:
        """The least label mass of an answer, in [0, 1]; None if none is known."""
        masses = (verdict.label_mass for verdict in self.answers.verdicts)
        return min((mass for mass in masses if mass is not None), default=None)

    def summary(self) -> dict[str, Any]:
        """The fields of a log line."""
        verdicts, mass = self.answers.verdicts, self.least_mass
        return {
            "questions": len(verdicts),
            "reads": self.answers.reads,
            "orders": max(verdict.orders for verdict in verdicts),
            "label_mass": None if mass is None else round(mass, 3),
            "unlabelled": self.unlabelled,
            "truncated": sum(verdict.truncated for verdict in verdicts),
            "prompt_version": self.answers.prompt_version,
            "calibration": self.answers.calibration,
        }


class ObservedModeration(Struct, frozen=True):
    """What the guard of this name said of a text: of a request, an answer, or of /v1/moderations."""

    model: str
    subject: str
    """`input`, `output` or `request`."""
    outcome: str
    """`passed`, `flagged` or `failed`."""
    tokens: int
    """Tokens of the guard's prompts."""


class Observation(Struct):
    """One request. `trace` holds the headers of W3C Trace Context that are passed on to tools and engines."""

    request_id: str = ""
    started: float = field(default_factory=perf_counter)
    trace: Mapping[str, str] = {}
    content: bool = False
    """Prompts and answers are logged, too."""
    account: Account = ANYONE
    """The account of the request's key."""
    reserved: int = 0
    """Tokens that were taken from the account before."""
    record: Callable[[str, Any], None] | None = None
    """Receives the records of its generations, each with its owner; None if they are not recorded."""
    span: Any = None
    """The span of the tracing library, if there is one."""
    answer: str | None = None
    """The id of the answer."""
    model: str | None = None
    """As the request names it."""
    served: str | None = None
    """The canonical name of that model."""
    dialect: str | None = None
    first: float | None = None
    """The time of the first event of the answer."""
    loading: float = 0.0
    """The seconds that it waited for its model to be loaded."""
    generations: list[ObservedGeneration] = []
    read: int = 0
    """Tokens of texts that were embedded, ranked or decided on."""
    decision: ObservedDecision | None = None
    """What it decided."""
    moderations: list[ObservedModeration] = []
    """What a guard said of its texts."""
    ended: FinishReason | None = None
    """Why an answer of several generations ended: the last of them may have ended for another reason."""
    calls: list[ObservedCall] = []
    failovers: int = 0
    """Replicas of a model that failed, and were replaced by another in the middle."""
    given_back: int = 0
    """How often a slot of the engine was given to others, who waited for one, in the middle."""
    closed: int = 0
    """Generations that were cut, and whose form was closed."""
    missed: str | None = None
    """The part of the request for which the engine's cache has less of the prompt than of the one before."""
    missed_tokens: int = 0
    """So many tokens of that."""
    unmet: list[str] = []
    """Demands of the request that the answer does not meet."""
    failure: str | None = None
    """Why the answer was ended from outside, as one word: `client_left`."""

    @property
    def finish(self) -> str | None:
        """How the answer ended: the model's finish reason, or why it was ended from outside."""
        reason = self.ended or (self.generations[-1].end.reason if self.generations else None)
        return self.failure or (None if reason is None else str(reason))

    @property
    def used(self) -> int:
        """The tokens read and written for it."""
        tokens = 0
        for generation in self.generations:
            tokens += generation.prompt_tokens + generation.end.usage.completion_tokens
        return tokens

    def summary(self, known: Mapping[str, object]) -> dict[str, Any]:
        """The fields of its log line: the `known` ones, and those of its own that are not empty.

        Times are in milliseconds, with one decimal.
        """
        started, first, generations = self.started, self.first, len(self.generations)
        prompt, cached, completion, reasoning, malformed = self.read, 0, 0, 0, 0
        if self.decision is not None:
            cached = self.decision.answers.cached_tokens
        for generation in self.generations:
            usage = generation.end.usage
            prompt += generation.prompt_tokens
            cached += usage.cached_tokens
            completion += usage.completion_tokens
            reasoning += usage.reasoning_tokens
            malformed += generation.malformed
        fields = {
            "answer": self.answer,
            "model": self.model,
            "dialect": self.dialect,
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "completion_tokens": completion,
            "reasoning_tokens": reasoning,
            "generations": generations if generations > 1 else None,
            "tool_calls": len(self.calls),
            "first_ms": None if first is None else round((first - started) * 10_000) / 10,
            "total_ms": round((perf_counter() - started) * 10_000) / 10,
            "finish": self.finish,
            "failovers": self.failovers,
            "given_back": self.given_back,
            "malformed": malformed,
            "closed": self.closed,
            "cache_missed": self.missed,
            "cache_missed_tokens": self.missed_tokens,
            "unmet": len(self.unmet),
            "moderation_tokens": sum(one.tokens for one in self.moderations),
            "flagged": sum(one.outcome == "flagged" for one in self.moderations),
            "unmoderated": sum(one.outcome == "failed" for one in self.moderations),
        }
        if self.decision is not None:
            fields |= self.decision.summary()
        line = {**known}
        for name, value in fields.items():
            if value:
                line[name] = value  # noqa: PERF403 - no second dictionary
        return line

    def fail(self, reason: BaseException) -> None:
        """The answer was ended from outside, for this reason."""
        self.failure = getattr(reason, "code", None) or _word(reason)


class Tracing(Protocol):
    """Makes spans of observations."""

    def begin(self, observation: Observation, name: str) -> None:
        """Begin the span of a request; from now on its `trace` is what is passed on."""
        ...

    def end(self, observation: Observation, known: Mapping[str, object]) -> None:
        """End the span, with the collected data and the `known` values `method`, `route` and `status`."""
        ...

    def close(self) -> None:
        """Send what is not sent yet. This blocks."""
        ...


class NoTracing:
    """Makes no spans. See `Tracing`."""

    def begin(self, observation: Observation, name: str) -> None:
        """See `Tracing`."""

    def end(self, observation: Observation, known: Mapping[str, object]) -> None:
        """See `Tracing`."""

    def close(self) -> None:
        """See `Tracing`."""


OBSERVATION: ContextVar[Observation | None] = ContextVar("observation", default=None)


def observed() -> Observation:
    """The observation of the current request; outside of a request, one that is never read."""
    observation = OBSERVATION.get()
    return Observation() if observation is None else observation


def unix_nanoseconds(moment: float) -> int:
    """A time of `perf_counter` as nanoseconds since 1970."""
    return time_ns() - int((perf_counter() - moment) * 1e9)


def _word(reason: BaseException) -> str:
    """`ClientLeftError` → `client_left`."""
    name = type(reason).__name__.removesuffix("Error")
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
