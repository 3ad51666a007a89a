"""Token-in, token-out, without HTTP: ids of a prompt are continued with ids."""

from msgspec.structs import replace

from antiphon.apis.envelope import Envelope
from antiphon.apis.generate.accept import accept
from antiphon.apis.generate.answer import GenerateBuilder, GenerateStream, TokenOptions
from antiphon.apis.generate.schema import GenerateTokens
from antiphon.app.app import App
from antiphon.app.ids import answer_id, created_now
from antiphon.core.observation import observed
from antiphon.run.answer_source import AnswerSource
from antiphon.run.drive import Driver, Projection

PREFIX = "generate-tokens-"


async def create(app: App, request: GenerateTokens, owner: str, header_id: str | None) -> Driver:
    """Continue the ids of a prompt with ids. Raises RequestError."""
    request = replace(request, model=app.models.named(request.model))
    model = await app.models.model(request.model)
    accepted = accept(request, owner, model.card.capabilities.sampling)
    observed().answer = answer = answer_id(PREFIX, request.request_id, header_id)
    envelope = Envelope(answer, request.model, int(created_now()))
    options = TokenOptions.of(
        accepted.presentation, text=accepted.text, prompt_ids=bool(request.return_token_ids)
    )
    projection: Projection = (
        GenerateStream(envelope, options)
        if request.stream
        else GenerateBuilder(envelope, options, accepted.turn.choices)
    )
    return app.driver(AnswerSource([accepted.turn], model), projection, seconds=request.deadline_seconds)
