"""Decisions without HTTP: questions about a text, answered with probabilities, in either API."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from time import perf_counter
from types import MappingProxyType

from msgspec.structs import replace

from antiphon.apis.decisions import accept as openai
from antiphon.apis.decisions import answer as openai_body
from antiphon.apis.decisions.schema import CreateDecision
from antiphon.apis.questions import tokens_of
from antiphon.apis.systemone import accept as systemone
from antiphon.apis.systemone import answer as systemone_body
from antiphon.apis.systemone.schema import SystemOneRequest
from antiphon.app.app import App
from antiphon.app.attachments import count_attachments
from antiphon.core.decision import Decision, Verdicts
from antiphon.core.errors import RequestError, naming
from antiphon.core.items import WITH_PARTS, Item, Message, Part, Role
from antiphon.core.observation import ObservedDecision, observed
from antiphon.core.turn import Turn
from antiphon.engines.engine import Capabilities, Task
from antiphon.run.model import Model

ALIASES = frozenset({"jev-latest", "jev-preview", "gpt-6-luna"})
"""Names by which clients ask for whichever model decides here, unless one is called so."""
_NO_PARTS: Mapping[str, str] = MappingProxyType({})


async def decide(app: App, request: CreateDecision, owner: str, *, large: bool = False) -> bytes:
    """The body with the answers to questions about an input. Raises RequestError, EngineError.

    A `large` request is read in a thread.
    """
    decision = await _accepted(app, partial(openai.accept, request, app.limits, owner), large=large)
    name, verdicts = await _decided(app, decision)
    return openai_body.answer(request, name, verdicts)


async def system_one(
    app: App,
    request: SystemOneRequest,
    owner: str,
    uploads: Mapping[str, str] = _NO_PARTS,
    *,
    large: bool = False,
) -> bytes:
    """The body with the answers to questions about a state, in the form of System One.

    `uploads` are the images of a form, in base64. A `large` request is read in a thread. Raises RequestError,
    EngineError.
    """
    work = partial(systemone.accept, request, app.limits, owner, uploads)
    decision = await _accepted(app, work, large=large)
    name, verdicts = await _decided(app, decision)
    return systemone_body.answer(request, name, verdicts)


def decides(able: Capabilities) -> bool:
    """Whether a model with these capabilities answers questions."""
    return able.answers_questions or (Task.GENERATE in able.tasks and "logprobs" in able.sampling)


async def _accepted(app: App, accept: Callable[[], Decision], *, large: bool) -> Decision:
    return await app.large.run(accept) if large else accept()


async def _decided(app: App, decision: Decision) -> tuple[str, Verdicts]:
    """The name of the model, and its answers, whose tokens are counted for the key."""
    with naming(decision.parameters):
        name = model_name(app, decision.model)
        model = await app.models.model(name)
        decision = await _attached(app, model, replace(decision, model=name))
        async with observed().account.charge(tokens_of(decision)) as charge:
            started = perf_counter()
            verdicts = await model.decide(decision)
            charge.tokens = verdicts.prompt_tokens
        canonical = app.models.canonical(name)
        observed().read += verdicts.prompt_tokens
        observed().decision = ObservedDecision(
            canonical, started, perf_counter(), decision.questions, verdicts
        )
    return canonical, verdicts


def model_name(app: App, requested: str) -> str:
    """The name of the model of a request, which may leave it to the server. Raises RequestError."""
    models = app.models
    if requested and (requested not in ALIASES or models.knows(requested)):
        return requested
    deciding = (
        entry.name for entry in models.entries() if entry.card is None or decides(entry.card.capabilities)
    )
    name = models.default or next(deciding, None) or models.default_name()
    if name is None:
        message = "Missing required parameter: 'model'."
        raise RequestError(message, param="model", code="missing_required_parameter")
    return name


async def _attached(app: App, model: Model, decision: Decision) -> Decision:
    """The decision with its attachments, as far as the model takes their media. Raises RequestError."""
    asked = tuple(Message(Role.USER, question.instructions) for question in decision.questions)
    turn = Turn(
        decision.model,
        items=(*decision.items, *asked),
        owner=decision.owner,
        media_fallback=decision.media_fallback,
        parameters=decision.parameters,
    )
    if not count_attachments(turn):
        return decision
    read = (await app.attached(model, turn)).items
    shown = read[len(decision.items) :]
    questions = (
        replace(question, instructions=parts)
        for question, parts in zip(decision.questions, _parts_of(shown), strict=True)
    )
    return replace(decision, items=read[: len(decision.items)], questions=tuple(questions))


def _parts_of(items: tuple[Item, ...]) -> Iterator[tuple[Part, ...]]:
    return (item.parts for item in items if isinstance(item, WITH_PARTS))
