"""Completions, and prompts as tokens, without HTTP."""

from msgspec.structs import replace

from antiphon.apis.chat.accept import accept as accept_chat
from antiphon.apis.completions.accept import AcceptedCompletion, accept
from antiphon.apis.completions.answer import CompletionBuilder
from antiphon.apis.completions.errors import INFILL_PARAMETERS, PARAMETERS
from antiphon.apis.completions.infill import InfillBuilder, InfillRequest, InfillStream, completion_of
from antiphon.apis.completions.schema import CompletionRequest
from antiphon.apis.completions.stream import CompletionStream
from antiphon.apis.envelope import Envelope
from antiphon.apis.tokens import (
    Detokenized,
    DetokenizeRequest,
    TokenizeChatRequest,
    Tokenized,
    TokenizeTextRequest,
)
from antiphon.app.app import App
from antiphon.app.chat import defaults
from antiphon.app.ids import answer_id, created_now, fingerprint
from antiphon.core.observation import observed
from antiphon.core.turn import Turn
from antiphon.decode.chat_decoder import BYTES_PER_TOKEN
from antiphon.run.answer_source import AnswerSource
from antiphon.run.drive import Driver, Projection


async def create(app: App, request: CompletionRequest, owner: str, header_id: str | None) -> Driver:
    """Go on with texts. Raises RequestError."""
    model = await app.models.model(request.model)
    accepted = accept(request, owner, app.presentation(model))
    if request.echo and (size := _echoed(accepted)) > app.limits.answer_bytes:
        app.limits.refuse("answer_bytes", "echo", f"The echoes of the prompts would have {size} bytes")
    observed().answer = answer = answer_id("cmpl-", accepted.request_id, header_id)
    envelope = Envelope(
        answer, request.model, int(created_now()), system_fingerprint=fingerprint(request.model)
    )
    layout, presentation = accepted.layout, accepted.presentation
    projection: Projection = (
        CompletionStream(envelope, layout, presentation)
        if request.stream
        else CompletionBuilder(envelope, layout, presentation)
    )
    return app.driver(AnswerSource(accepted.turns, model), projection, seconds=request.deadline_seconds)


def _echoed(accepted: AcceptedCompletion) -> int:
    """The approximate bytes of the prompts in all choices that show them: four for each token id."""
    prompts = [turn.prompt or "" for turn in accepted.turns]
    sizes = (len(prompt) if isinstance(prompt, str) else BYTES_PER_TOKEN * len(prompt) for prompt in prompts)
    return accepted.layout.n * sum(sizes)


async def infill(app: App, request: InfillRequest, owner: str, header_id: str | None) -> Driver:
    """Fill the gap between two texts, as llama-server does. Raises RequestError."""
    accepted = accept(completion_of(request), owner, app.default_presentation)
    observed().answer = answer = answer_id("cmpl-", accepted.request_id, header_id)
    envelope = Envelope(
        answer, request.model, int(created_now()), system_fingerprint=fingerprint(request.model)
    )
    kind = InfillStream if request.stream else InfillBuilder
    turn = replace(accepted.turns[0], parameters=INFILL_PARAMETERS)
    model = await app.models.model(request.model)
    projection = kind(envelope, request.response_fields)
    return app.driver(AnswerSource([turn], model), projection, seconds=request.deadline_seconds)


async def tokenize(app: App, request: TokenizeTextRequest | TokenizeChatRequest, owner: str) -> Tokenized:
    """The tokens of a text, or of a conversation as the model reads it. Raises RequestError."""
    model = await app.models.model(request.model)
    if isinstance(request, TokenizeTextRequest):
        turn = Turn(request.model, prompt=request.prompt, owner=owner, parameters=PARAMETERS)
    else:
        turn = accept_chat(request, owner, await defaults(app, model, request, owner)).turn
    app.check_template(turn.template)
    ids = (await model.compose(await app.attached(model, turn))).ids
    tokens = Tokenized(len(ids), model.card.context, ids)
    if request.return_token_strs:
        tokens.token_strs = await model.token_texts(ids)
    return tokens


async def detokenize(app: App, request: DetokenizeRequest) -> Detokenized:
    """The text of tokens. Raises RequestError."""
    model = await app.models.model(app.models.named(request.model))
    text = await model.detokenize(request.tokens)
    return Detokenized(text, text)
