"""What llama-server tells beside its answers, without HTTP."""

from msgspec.structs import replace

from antiphon import __version__
from antiphon.apis.completions.errors import PARAMETERS
from antiphon.apis.llama_server import (
    AppliedTemplate,
    ApplyTemplateRequest,
    GenerationSettings,
    Modalities,
    Props,
    Slot,
    TokenizeContentRequest,
    TokenizedContent,
    TokenPiece,
    check,
    slots,
)
from antiphon.app import rendering
from antiphon.app.app import App
from antiphon.app.siblings import Call
from antiphon.core.items import MediaKind
from antiphon.core.turn import Turn
from antiphon.engines.engine import ModelCard


async def props(app: App, name: str | None) -> Props:
    """The properties of a model, by default of the one for requests that name none. Raises NotFoundError."""
    name = app.models.named(name or "")
    model = await app.models.model(name)
    card, media = model.card, model.card.capabilities.media
    return Props(
        default_generation_settings=GenerationSettings(card.context, card.defaults),
        total_slots=model.load.slots,
        model_alias=name,
        model_path=name,
        modalities=Modalities(
            *(kind in media for kind in (MediaKind.IMAGE, MediaKind.AUDIO, MediaKind.VIDEO))
        ),
        chat_template=card.chat_template or "",
        bos_token=card.bos,
        eos_token=card.eos,
        build_info=f"antiphon {__version__}",
    )


async def slots_of(app: App, name: str | None) -> list[Slot]:
    """The places for answers of a model. Raises NotFoundError."""
    name = app.models.named(name or "")
    model = await app.models.model(name)
    running = min(sum(await app.ask(RUNNING, name)), model.load.slots)
    return [*slots(model.load.slots, running, model.card.context)]


async def _running_here(app: App, name: str) -> int:
    return (await app.models.model(name)).load.running


RUNNING = Call("running", _running_here, str, int)


async def apply_template(app: App, request: ApplyTemplateRequest, owner: str) -> AppliedTemplate:
    """The prompt of a conversation. Raises RequestError."""
    request = replace(request, model=app.models.named(request.model))
    return AppliedTemplate((await rendering.chat(app, request, owner)).prompt)


async def tokenize(app: App, request: TokenizeContentRequest, owner: str) -> TokenizedContent:
    """The tokens of a text. Raises RequestError."""
    check(request)
    name = app.models.named(request.model)
    model = await app.models.model(name)
    if not request.content:
        return TokenizedContent([])
    parameters = {**PARAMETERS, "prompt": "content"}
    ids = (await model.compose(Turn(name, prompt=request.content, owner=owner, parameters=parameters))).ids
    if not request.add_special and _is_opened(model.card, request.content, ids):
        ids = ids[1:]
    if not request.with_pieces:
        return TokenizedContent([*ids])
    texts = await model.token_texts(ids)
    return TokenizedContent([TokenPiece(*token) for token in zip(ids, texts, strict=True)])


def _is_opened(card: ModelCard, text: str, ids: tuple[int, ...]) -> bool:
    """Whether the first token is one that a prompt has to begin with, and that the text does not have."""
    return (
        card.opening is not None
        and ids[:1] == (card.opening,)
        and not (card.bos and text.startswith(card.bos))
    )
