"""Decisions of a model whose engine continues prompts: the next token after each question is read.

The conversation is rendered once, with a mark in the place of the question: it gives the beginning that all
questions share, and the end, which starts the answer. Each question is rendered for itself, so that it does
not depend on the others, and the three are tokenized apart: the beginning has the same tokens for any
question, and labels the same after each.

    beginning                          question                       end            prefill
    <user>The box came broken.     |   Question: … A: … B: …     |   <assistant>   |  (

The prefill is the text after which this model most probably writes a label. It is found when the first
decision is made, by asking some questions with each that is known to help, unless an option or the
calibration sets it. It belongs to the version of prompts, as the wording does.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.decision import Decision, Option, Question, QuestionKind, Verdicts
from antiphon.core.errors import EngineError, RequestError, UnsupportedModelError, naming
from antiphon.core.items import Item, Message, Part, Role, TextPart
from antiphon.core.limits import DEFAULTS, Limits
from antiphon.core.turn import Sampling, Turn
from antiphon.decide import wording
from antiphon.decide.calibration import Calibration
from antiphon.decide.labels import LETTERS
from antiphon.decide.probabilities import Reading, read_labels
from antiphon.decide.reads import Read, Reads, reads_of, verdict_of
from antiphon.engines.engine import (
    Engine,
    NextToken,
    NextTokenRequest,
    Prompt,
    check_size,
)
from antiphon.engines.next_token import score_next
from antiphon.render.media import media_in
from antiphon.run.constraints import supported
from antiphon.run.direct_answers import DirectAnswers
from antiphon.run.label_tokens import LabelTokens, texts_of
from antiphon.run.model import characters_in, repaired
from antiphon.run.prompts import PromptReader

PREFILLS = ("", "(", "Answer:")
"""The texts that an answer may be begun with, the preferred one first."""

MARGIN = 0.02
"""How much more label mass a prefill must have than one that is preferred."""

ENDS = 16
"""The ends of prompts whose labels are remembered: a client's variables of the template may change them."""

Prefills = Mapping[QuestionKind, str]
"""The text that begins the answer to a question of each kind."""

Forms = Sequence[Sequence[int]] | Sequence[Sequence[str]]
"""The forms of labels: the ids of their tokens, or the texts."""

_NO_PREFILLS: Prefills = dict.fromkeys(QuestionKind, "")


class DecisionOptions(Struct, frozen=True):
    """How a model decides: the `prefill` of its answers, None to find the best one for each kind of question.

    `orders` is the number of orders in which a choice is asked by default. `reasons`: the model may begin an
    answer with reasoning by itself.
    """

    prefill: str | None = None
    orders: int | None = None
    calibration: Calibration | None = None
    reasons: bool = True


class Answers(Struct, frozen=True):
    """What was read of a question: its reads, and for each of them what the next token says of the labels."""

    question: Question
    reads: Reads
    readings: tuple[tuple[Reading, ...], ...]


class Outcome(Struct, frozen=True):
    """What was read for a decision, and its tokens."""

    answers: tuple[Answers, ...]
    prompt_tokens: int
    cached_tokens: int
    reads: int


class _Frame(Struct, frozen=True):
    """What is around the questions of a decision: its `beginning`, and the text that ends each prompt."""

    beginning: Prompt
    end: str


class _Scored(Struct, frozen=True):
    """The reads of each question; of all reads the prompts, the forms of their labels, and the results."""

    plans: tuple[Reads, ...]
    prompts: tuple[Prompt, ...]
    forms: tuple[Forms, ...]
    results: tuple[NextToken, ...]


class Decider:
    """Reads decisions of one model. `render` renders a turn, in a thread if it is long."""

    def __init__(
        self,
        engine: Engine,
        render: Callable[[Turn], Awaitable[str]],
        direct: DirectAnswers,
        options: DecisionOptions,
        limits: Limits = DEFAULTS,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._render = render
        self._direct = direct
        self._options = options
        self._prompts = PromptReader(engine)
        self._labels: dict[str, LabelTokens] = {}
        self._prefills: Prefills | None = None
        self._version: str | None = None
        self._choosing = asyncio.Lock()

    async def decide(self, decision: Decision) -> Verdicts:
        """The answers to all questions. Raises RequestError, before any work of the engine; EngineError."""
        outcome = await self.read(decision)
        return verdicts_of(outcome, await self.version(), self._options.calibration)

    async def read(self, decision: Decision) -> Outcome:
        """What is read for a decision, without its probabilities. Raises as `decide` does."""
        check_tells(self._engine)
        with naming(decision.parameters):
            frame = await self._frame(decision)
            if not self._knows_prefills:  # which are found by work of the engine
                await self._prompts_of(decision, frame, _NO_PREFILLS)
            await self.check_calibration()
            return await self._outcome(decision, frame, await self.prefills())

    async def version(self) -> str:
        """The version of prompts. Raises EngineError, UnsupportedModelError."""
        if self._version is None:
            frame = await self._frame(_PROBE)
            facts = msgspec.json.encode((wording.VERSION, frame.end, sorted((await self.prefills()).items())))
            self._version = f"{wording.VERSION}-{sha256(facts).hexdigest()[:8]}"
        return self._version

    async def check_calibration(self) -> None:
        """Raise EngineError if the calibration was made for other prompts."""
        if self._options.calibration is not None:
            self._options.calibration.check_version(await self.version())

    async def prefills(self) -> Prefills:
        """The prefill of each kind of question."""
        if (given := self._given_prefills) is not None:
            return given
        async with self._choosing:
            if self._prefills is None:
                self._prefills = _best(await self.masses())
            return self._prefills

    @property
    def _given_prefills(self) -> Prefills | None:
        options = self._options
        if options.prefill is not None:
            return dict.fromkeys(QuestionKind, options.prefill)
        return (options.calibration and options.calibration.prefills) or None

    @property
    def _knows_prefills(self) -> bool:
        return (self._given_prefills or self._prefills) is not None

    async def masses(self) -> Mapping[str, Mapping[QuestionKind, float]]:
        """The label mass of plain questions of each kind after each prefill, 0 where it has no labels."""
        check_tells(self._engine)
        frame = await self._frame(_PROBE)
        return {prefill: await self._masses_after(prefill, frame) for prefill in PREFILLS}

    async def _masses_after(self, prefill: str, frame: _Frame) -> Mapping[QuestionKind, float]:
        end = frame.end + prefill
        questions = [one for one in _PROBE.questions if await self._has_labels(one, end)]
        prefills = dict.fromkeys(QuestionKind, prefill)
        scored = await self._scored(replace(_PROBE, questions=(*questions,)), frame, prefills)
        masses: dict[QuestionKind, list[float]] = {kind: [] for kind in QuestionKind}
        for question, forms, result in zip(questions, scored.forms, scored.results, strict=True):
            masses[question.kind].append(mass_of(forms, result))
        return {kind: sum(values) / len(values) if values else 0.0 for kind, values in masses.items()}

    async def _has_labels(self, question: Question, end: str) -> bool:
        """The labels of a question of the probe are tokens after this end."""
        ((read,),) = reads_of(question, 1)
        try:
            await self._forms(read, end)
        except UnsupportedModelError:
            return False
        return True

    async def _frame(self, decision: Decision) -> _Frame:
        """The conversation with a mark for the question, rendered."""
        mark, start = f"question:{secrets.token_hex(8)};", f"answer:{secrets.token_hex(8)};"
        variables = {**decision.variables, **self._direct.variables}
        turn = repaired(
            Turn(
                decision.model,
                with_question(decision.items, (TextPart(mark),)),
                variables=variables,
                prefix=start,
                sampling=decision.sampling,
                parameters=decision.parameters,
            )
        )
        context, capabilities = self._engine.card.context, self._engine.card.capabilities
        supported(turn, capabilities)
        with naming({"prompt": "conversation"}):
            if context:
                check_size(characters_in(turn.items), context)
            text = await self._render(turn)
            before, *after = text.split(mark)
            if len(after) != 1 or after[0].count(start) != 1:
                raise _not_shown()
            end = after[0].partition(start)[0]
            beginning = await self._prompts.rendered(before, media_in(turn.items), context)
        return _Frame(beginning, end + self._direct.beginning(end))

    async def _outcome(self, decision: Decision, frame: _Frame, prefills: Prefills) -> Outcome:
        scored = await self._scored(decision, frame, prefills)
        readings = iter(read_answers(scored.forms, scored.results))
        answers = (
            Answers(question, plan, tuple(tuple(next(readings) for _ in order) for order in plan))
            for question, plan in zip(decision.questions, scored.plans, strict=True)
        )
        shared = len(frame.beginning.ids)
        return Outcome(
            answers=(*answers,),
            prompt_tokens=shared + sum(len(prompt.ids) for prompt in scored.prompts),
            cached_tokens=min(shared, *(result.cached_tokens for result in scored.results)),
            reads=len(scored.prompts),
        )

    async def _scored(self, decision: Decision, frame: _Frame, prefills: Prefills) -> _Scored:
        """The next tokens after all reads of a decision."""
        plans, prompts = await self._prompts_of(decision, frame, prefills)
        reads = [read for plan in plans for order in plan for read in order]
        forms = [await self._forms(read, frame.end + prefills[read.kind]) for read in reads]
        request = NextTokenRequest(
            beginning=frame.beginning,
            ends=prompts,
            tokens=tuple(_ids(labels) for labels in forms),
            sampling=shared_sampling(decision.sampling),
        )
        return _Scored(plans, prompts, (*forms,), await score_next(self._engine, request))

    async def _prompts_of(
        self, decision: Decision, frame: _Frame, prefills: Prefills
    ) -> tuple[tuple[Reads, ...], tuple[Prompt, ...]]:
        """The reads of each question, and the prompts of all reads after the beginning.

        Raises RequestError if one is too long, or all are over a limit.
        """
        pairs = await self._pairs(decision, frame, prefills)
        plans, prompts = [], list[Prompt]()
        tokens = len(frame.beginning.ids)
        endings = {
            kind: await self._prompts.continuation(frame.end + prefills[kind]) for kind in QuestionKind
        }
        for question in decision.questions:
            plan = reads_of(question, orders_for(question, decision, self._options), pairs)
            ending = endings[question.kind]
            reads = [read for order in plan for read in order]
            check_reads(self._limits, len(prompts) + len(reads), tokens)
            new = [await self._prompt(question, read, ending, frame.beginning) for read in reads]
            tokens += sum(len(prompt.ids) for prompt in new)
            prompts += new
            plans.append(plan)
            await asyncio.sleep(0)  # the event loop may do other work
        check_reads(self._limits, len(prompts), tokens)
        return (*plans,), (*prompts,)

    async def _prompt(self, question: Question, read: Read, ending: Prompt, beginning: Prompt) -> Prompt:
        """The part of a prompt after the beginning. Raises RequestError if all of it is too long."""
        mark = f"question:{secrets.token_hex(8)};"
        turn = Turn("", (Message(Role.USER, _marked(read.parts, mark)),), variables=self._direct.variables)
        context = self._engine.card.context
        with naming(dict.fromkeys(("prompt", "conversation"), question.source)):
            if context:
                check_size(characters_in(turn.items), context)
            pieces = (await self._render(turn)).split(mark)
            if len(pieces) != 3:
                raise _not_shown()
            text = await self._prompts.continuation(pieces[1], media_in(turn.items), context)
        size = len(beginning.ids) + len(text.ids) + len(ending.ids)
        if context and size >= context:
            raise _too_long(size, context, question, beginning)
        return text.followed_by(ending)

    async def _pairs(self, decision: Decision, frame: _Frame, prefills: Prefills) -> Sequence[str]:
        """The labels of two letters, if there is a question that needs them."""
        many = any(len(question.options) > len(LETTERS) for question in decision.questions)
        if not many or not self._tells_ids:
            return ()
        return await self._labels_after(frame.end + prefills[QuestionKind.CHOICE]).pairs()

    @property
    def _tells_ids(self) -> bool:
        return self._engine.card.capabilities.token_ids

    def _labels_after(self, end: str) -> LabelTokens:
        if end not in self._labels:
            self._labels[end] = LabelTokens(self._engine, end)
            if len(self._labels) > ENDS:
                del self._labels[next(iter(self._labels))]
        return self._labels[end]

    async def _forms(self, read: Read, end: str) -> Forms:
        """The tokens of each label of a read, or their texts. Raises UnsupportedModelError without any."""
        if not self._tells_ids:
            return texts_of(read.labels)
        tokens = await self._labels_after(end).of(read.labels)
        if not all(tokens):
            label = read.labels[[bool(own) for own in tokens].index(False)]
            message = (
                f"The label '{label}' is not a token of this model, so it cannot decide. Name another model."
            )
            raise UnsupportedModelError(message, param="model")
        return tokens


class NoLabelError(EngineError):
    """The server of the model reported no probability for any answer to the question. Ask in another way."""


def check_reads(limits: Limits, reads: int, tokens: int) -> None:
    """Raise RequestError for more than may be read: counted, where the API could only estimate."""
    if reads > limits.reads:
        limits.refuse("reads", "questions", f"The questions would be read {reads} times")
    if tokens > limits.read_tokens:
        limits.refuse("read_tokens", None, f"The request has {tokens} tokens to read")


def check_tells(engine: Engine) -> None:
    """Raise UnsupportedModelError for an engine that tells no log probabilities."""
    card = engine.card
    if "logprobs" not in card.capabilities.sampling:
        message = f"The server of the model '{card.name}' reports no log probabilities, so it cannot decide. "
        raise UnsupportedModelError(message + "Name another model.", param="model")


def read_answers(labels: Sequence[Forms], results: Sequence[NextToken]) -> list[Reading]:
    """What the next tokens say of labels with these forms. Raises NoLabelError if one says nothing."""
    return [reading_of(forms, result) for forms, result in zip(labels, results, strict=True)]


def reading_of(forms: Forms, result: NextToken) -> Reading:
    """The same of one: forms are ids, or texts, of which more may be possible than are known."""
    reading = _read(forms, result)
    if reading is None:
        raise NoLabelError
    return reading


def mass_of(forms: Forms, result: NextToken) -> float:
    """The label mass of one; 0 if it says nothing."""
    reading = _read(forms, result)
    return 0.0 if reading is None else reading.label_mass


def _read(forms: Forms, result: NextToken) -> Reading | None:
    by_text = any(isinstance(form, str) for label in forms for form in label)
    candidates = [
        (candidate.text if by_text else candidate.id, candidate.logprob) for candidate in result.candidates
    ]
    return read_labels(candidates, forms, complete=result.complete and not by_text)


def verdicts_of(outcome: Outcome, version: str, calibration: Calibration | None) -> Verdicts:
    """The answers by what was read."""
    temperatures = calibration.temperatures if calibration else {}
    verdicts = (
        verdict_of(
            answers.reads,
            answers.readings,
            len(answers.question.options),
            temperatures.get(answers.question.kind, 1.0),
        )
        for answers in outcome.answers
    )
    return Verdicts(
        verdicts=(*verdicts,),
        prompt_tokens=outcome.prompt_tokens,
        cached_tokens=outcome.cached_tokens,
        reads=outcome.reads,
        prompt_version=version,
        calibration=calibration.name if calibration else "",
    )


def orders_for(question: Question, decision: Decision, options: DecisionOptions) -> int | None:
    """The number of orders of a question; the server's default is one of choices."""
    if decision.orders is None and question.kind is QuestionKind.CHOICE:
        return options.orders
    return decision.orders


def _not_shown() -> UnsupportedModelError:
    message = "The chat template of this model does not show a question as it is. Name another model."
    return UnsupportedModelError(message, param="model")


def shared_sampling(sampling: Sampling) -> Sampling:
    """The fields that a decision may set."""
    return Sampling(lora=sampling.lora, cache_salt=sampling.cache_salt, priority=sampling.priority)


def _ids(forms: Forms) -> tuple[int, ...]:
    return tuple(form for label in forms for form in label if isinstance(form, int))


def _best(masses: Mapping[str, Mapping[QuestionKind, float]]) -> Prefills:
    """The prefill of each kind with the most label mass; the preferred one, if it has nearly as much."""
    best = {}
    for kind in QuestionKind:
        chosen = PREFILLS[0]
        for prefill in PREFILLS[1:]:
            if masses[prefill][kind] > masses[chosen][kind] + MARGIN:
                chosen = prefill
        best[kind] = chosen
    return best


def with_question(items: tuple[Item, ...], parts: tuple[Part, ...]) -> tuple[Item, ...]:
    """The conversation with these parts at the end of the user's last message, or in a new one."""
    last = items[-1] if items else None
    if not isinstance(last, Message) or last.role is not Role.USER or last.template_role is not None:
        return (*items, Message(Role.USER, parts))
    end, first = last.parts[-1] if last.parts else None, parts[0]
    if isinstance(end, TextPart) and isinstance(first, TextPart):
        joined = (*last.parts[:-1], TextPart(end.text + first.text), *parts[1:])
    else:
        joined = (*last.parts, *parts)
    return (*items[:-1], replace(last, parts=joined))


def _marked(parts: Sequence[Part], mark: str) -> tuple[Part, ...]:
    """The parts of a question, which begin and end with text, between two marks."""
    first, *others = parts
    assert isinstance(first, TextPart)
    *inner, last = TextPart(mark + first.text), *others
    assert isinstance(last, TextPart)
    return (*inner, TextPart(last.text + mark))


def _too_long(size: int, context: int, question: Question, beginning: Prompt) -> RequestError:
    """The error for a question that does not fit the context after the beginning."""
    alone = len(beginning.ids) >= context
    message = (
        f"The prompt is too long: with this question it has {size} tokens, but the context of this model is "
        f"{context} tokens, answer included. Shorten {'the conversation' if alone else 'one of them'}."
    )
    param = "conversation" if alone else question.source
    return RequestError(message, param=param, code="context_length_exceeded")


def _question(kind: QuestionKind, instructions: str, *options: str) -> Question:
    return Question(kind, (TextPart(instructions),), tuple(map(Option, options)), source="questions")


_PROBE = Decision(
    model="",
    items=(
        Message(
            Role.USER,
            (TextPart("The parcel came two weeks late, and the box was torn. I want my money back."),),
        ),
    ),
    questions=(
        _question(QuestionKind.CHOICE, "Which team handles it?", "billing", "shipping", "sales"),
        _question(
            QuestionKind.CHOICE,
            "What is it about?",
            "an order",
            "a password",
            "a visit",
            "the weather",
            "a job",
        ),
        _question(QuestionKind.SCORE, "How urgent is it?", "can wait", "this week", "today", "at once"),
        _question(QuestionKind.SCORE, "How content is the writer?", "not at all", "so so", "very"),
        _question(QuestionKind.PREDICATE, "Does the writer want money?", "", ""),
        _question(QuestionKind.PREDICATE, "Is the writer asking for a job?", "", ""),
    ),
    orders=1,
)
"""Plain questions of all kinds, with which prefills are compared."""
