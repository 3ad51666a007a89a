"""A request → a turn, and how its answer is shown. Every error names the parameter."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.apis.chat.accept import NO_DEFAULTS, ServerDefaults
from antiphon.apis.chat.schema import ChatOptions
from antiphon.apis.chat.tools import tools_of
from antiphon.apis.envelope import PresentationOptions
from antiphon.apis.formats import Named, answer_format
from antiphon.apis.ollama.errors import PARAMETERS
from antiphon.apis.ollama.history import History, parts_of
from antiphon.apis.ollama.schema import AnswerRequest, ChatRequest, GenerateRequest, KeepAlive, NotedOptions
from antiphon.apis.request import SamplingParams
from antiphon.apis.sampling import check, shared_sampling, stops, token_limit, variables
from antiphon.core.constraint import JsonObject, JsonSchema
from antiphon.core.errors import RequestError
from antiphon.core.hosts import NOTHING, Note
from antiphon.core.items import Item, Message, Role
from antiphon.core.turn import PromptEnding, Turn

_LOADED = "the server has loaded the model with its own setting."
_UNCUT = "prompts are not cut while the model writes."
NOTED: Mapping[str, str] = {
    **dict.fromkeys({*NotedOptions.__struct_fields__} - {*SamplingParams.__struct_fields__}, _LOADED),
    "num_ctx": "the context is the one that the server has loaded the model with.",
    "num_keep": _UNCUT,
    "penalize_newline": "no engine of this server has this sampler.",
    "shift": _UNCUT,
}
"""Parameter without effect → why."""
REFUSED: Mapping[str, str] = {
    "template": "Templates of Ollama cannot be used here; the model's own is used. Leave it out.",
    "context": "Send the earlier messages to /api/chat.",
    **dict.fromkeys(("width", "height", "steps"), "This server does not generate images. Leave it out."),
}
"""Parameter → the remedy."""
_IN_TEMPLATES = ("system", "images", "think")
"""Parameters that need a chat template."""

_NUMBER, _UNIT = r"(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)", "(?:ns|us|µs|ms|s|m|h)"
_DURATION = re.compile(f"[+-]?(?:(?:{_NUMBER}{_UNIT})++|{_NUMBER})")


class Accepted(Struct, frozen=True):
    """A request that can be answered."""

    turn: Turn
    presentation: PresentationOptions


def accept_chat(request: ChatRequest, owner: str, defaults: ServerDefaults = NO_DEFAULTS) -> Accepted:
    """The turn and presentation for a conversation. Raises RequestError."""
    tools = tools_of(with_tools(request), defaults.hosts)
    if tools.custom:
        raise RequestError("Custom tools are not part of Ollama's API. Use functions.", param="tools")
    turn = _turn(request, owner, PARAMETERS)
    turn = _conversation(request, replace(turn, tools=tools.functions, tool_choice=tools.choice))
    turn = _ended(replace(turn, items=(*History(request.messages or ()).items,)))
    return Accepted(turn, _presentation(request, defaults, tools.notes))


def accept_prompt(request: GenerateRequest, owner: str, defaults: ServerDefaults = NO_DEFAULTS) -> Accepted:
    """The turn and presentation for a prompt. Raises RequestError."""
    for name, remedy in REFUSED.items():
        if getattr(request, name) not in NOTHING:
            raise RequestError(f"'{name}' is not supported. {remedy}", param=name)
    turn = _turn(request, owner, PARAMETERS | {"conversation": "prompt", "prompt": "prompt"})
    if request.raw or request.suffix:
        turn = _plain(request, turn)
    else:
        turn = _conversation(request, replace(turn, items=(*_messages(request),)))
    return Accepted(turn, _presentation(request, defaults))


def with_tools(request: ChatRequest) -> ChatOptions:
    """The tools of a request, as Chat Completions has them."""
    return ChatOptions(model=request.model, tools=request.tools)


def unloads(keep_alive: KeepAlive | None) -> bool:
    """Whether the model is to be unloaded after the request. Raises RequestError."""
    if not isinstance(keep_alive, str):
        return keep_alive == 0
    if not _DURATION.fullmatch(keep_alive):
        message = (
            f"'{keep_alive[:64]}' is not a duration. Use for example '5m', a number of seconds, 0 or -1."
        )
        raise RequestError(message, param="keep_alive")
    return not re.search("[1-9]", keep_alive)


def notes_on(request: Any) -> tuple[Note, ...]:
    """Notes on the parameters of a request without effect. Raises RequestError."""
    notes = [
        Note(name, f"'{name}' has no effect: {why}")
        for name, why in NOTED.items()
        if getattr(request, name, None) not in NOTHING
    ]
    if request.keep_alive is not None and not unloads(request.keep_alive):
        message = "'keep_alive' has no effect: the model stays loaded until others need its memory."
        notes.append(Note("keep_alive", message))
    return (*notes,)


def _turn(request: AnswerRequest, owner: str, parameters: Mapping[str, str]) -> Turn:
    """All of the turn but what the model reads."""
    check(request)
    logprobs = _logprobs(request)
    format_source, format_ = answer_format(request, *_format(request.format))
    return Turn(
        model=request.model,
        format=format_,
        sampling=shared_sampling(request, max_tokens=_limit(request.num_predict), logprobs=logprobs),
        stop=stops(request),
        stop_shown=bool(request.include_stop_str_in_output),
        copies=1 if request.stream else 2,
        prompt_limit=request.truncate_prompt_tokens,
        owner=owner,
        parameters={**parameters, "format": format_source},
    )


def _limit(num_predict: int | None) -> int | None:
    return None if num_predict == -2 else token_limit(num_predict)


def _format(format_: Any) -> Iterator[Named]:
    """The form that `format` demands: JSON, or a schema. Raises RequestError."""
    match format_:
        case None | "":
            pass
        case "json":
            yield "format", JsonObject()
        case dict():
            yield "format", JsonSchema(format_)
        case _:
            raise RequestError(
                "'format' is not a known format. Use 'json', or a JSON Schema.", param="format"
            )


def _logprobs(request: AnswerRequest) -> int | None:
    """The number of alternatives to each token, None for no log probabilities."""
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs:
        raise RequestError("'top_logprobs' is only allowed with 'logprobs': true.", param="top_logprobs")
    return None


def _conversation(request: AnswerRequest, turn: Turn) -> Turn:
    """The turn of a conversation: with the variables of its template, and cut if the request says so."""
    return replace(turn, variables=_variables(request.think), shorten=bool(request.truncate))


def _variables(think: bool | str | None) -> dict[str, Any]:
    """The variables of the chat template for reasoning, which is on, off, or of an effort."""
    if isinstance(think, str):
        return variables(think, None)
    return {} if think is None else {"enable_thinking": think, "thinking": think}


def _ended(turn: Turn) -> Turn:
    """The turn, which continues a last message of the assistant that has text."""
    match turn.items:
        case [*_, Message(role=Role.ASSISTANT) as last] if last.text:
            return replace(turn, ending=PromptEnding.CONTINUED)
    return turn


def _messages(request: GenerateRequest) -> Iterator[Item]:
    """The prompt as a conversation."""
    if request.system:
        yield Message(Role.SYSTEM, (*parts_of(request.system, ()),))
    yield Message(Role.USER, (*parts_of(request.prompt, request.images),))


def _plain(request: GenerateRequest, turn: Turn) -> Turn:
    """The turn of a prompt that the model reads as it is. Raises RequestError."""
    how = "raw" if request.raw else "suffix"
    for name in _IN_TEMPLATES:
        if getattr(request, name) not in NOTHING:
            message = f"'{name}' needs a chat template, and with '{how}' there is none. Leave it out."
            raise RequestError(message, param=name)
    return replace(turn, prompt=request.prompt or "", suffix=request.suffix or None)


def _presentation(
    request: AnswerRequest, defaults: ServerDefaults, notes: Sequence[Note] = ()
) -> PresentationOptions:
    noted = (*notes_on(request), *notes)
    return replace(defaults.presentation, logprobs=_logprobs(request), notes=noted)
