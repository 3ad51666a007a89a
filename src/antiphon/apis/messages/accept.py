"""A request → a turn, and how its answer is shown. Every error names the parameter."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.apis.formats import Named, answer_format
from antiphon.apis.messages.citations import FileText
from antiphon.apis.messages.errors import PARAMETERS
from antiphon.apis.messages.history import History, HistoryOptions, Unseal, sealed_elsewhere
from antiphon.apis.messages.notes import parameter_notes
from antiphon.apis.messages.presentation import Presentation, ThinkingShown
from antiphon.apis.messages.schema import CountTokens, CreateMessage, Thinking
from antiphon.apis.messages.server_tools import NO_VIEWS, ToolViews
from antiphon.apis.messages.tool_changes import definitions_in
from antiphon.apis.messages.tools import tool_choice, tools_of, without_removed
from antiphon.apis.sampling import check, shared_sampling, stops
from antiphon.core.constraint import JsonSchema
from antiphon.core.errors import RequestError
from antiphon.core.hosts import Hosts
from antiphon.core.items import Item, Message, Role
from antiphon.core.turn import PromptEnding, Turn

REFUSED: Mapping[str, str] = {
    "compaction": "Conversations are not summarised in this API. Use POST /v1/responses/compact.",
    "container": "Sandboxes are not kept, and there are no skills. Leave it out.",
    "thread": "Conversations are not stored. Send all messages.",
}
"""Parameter → the remedy."""
_CODES = {"compaction": "compaction_unavailable", "thread": "thread_unsupported_request"}
"""The codes of refusals, by which Anthropic's clients go on without: they send all messages."""


class MessageContext(Struct, frozen=True):
    """The context of a request. `owner` is the identity of its key.

    `hosts` has the server tools, `views` show their calls. `unseal` decrypts what was sealed for this owner.
    `files` are the texts of `cited_files`, by the places of their documents. `context` is the number of
    tokens of the model's context, 0 if that is not known.
    """

    owner: str = ""
    hosts: Hosts = Hosts()
    unseal: Unseal = sealed_elsewhere
    files: Mapping[str, FileText] = {}
    views: ToolViews = NO_VIEWS
    context: int = 0


class AcceptedMessage(Struct, frozen=True):
    """A request that can be answered."""

    turn: Turn
    presentation: Presentation


def accept(request: CreateMessage, context: MessageContext) -> AcceptedMessage:
    """The request as a turn. Raises RequestError."""
    history = _history(request, context)
    notes = (*history.tools.notes, *parameter_notes(request))
    tools = replace(history.tools, functions=history.changes.functions, notes=notes)
    turn = replace(
        _turn(request, context, history),
        sampling=shared_sampling(request, max_tokens=request.max_tokens or None, logprobs=None),
        warms=request.max_tokens == 0,
        stop=(*(request.stop_sequences or ()), *stops(request)),
        stop_shown=bool(request.include_stop_str_in_output),
        reasoning_limit=_budget(request.thinking),
        tool_limit=tools.limit,
    )
    shown = Presentation(
        _shown(request.thinking),
        request.max_tokens,
        tools,
        bool(request.context_management),
        tuple(history.citable),
        warms=turn.warms,
    )
    return AcceptedMessage(turn, shown)


def prompt_turn(request: CountTokens, context: MessageContext) -> Turn:
    """The turn of a request that wants no answer, only the prompt. Raises RequestError."""
    return _turn(request, context, _history(request, context))


def _history(request: CountTokens, context: MessageContext) -> History:
    inline = {definition.where: definition.tool for definition in definitions_in(request.messages)}
    tools = tools_of(
        request.tools, request.mcp_servers, context.hosts, context.views, inline, context.context
    )
    for name, remedy in REFUSED.items():
        if getattr(request, name):
            raise RequestError(f"'{name}' is not supported. {remedy}", param=name, code=_CODES.get(name))
    check(request)
    reading = HistoryOptions(context.unseal, tools, context.files, _effort(request))
    return History(request.system, request.messages, reading)


def _effort(request: CountTokens) -> str | None:
    return None if request.output_config is None else request.output_config.effort


def _turn(request: CountTokens, context: MessageContext, history: History) -> Turn:
    items, functions = history.items, history.changes.functions
    choice = tool_choice(request.tool_choice, replace(history.tools, functions=functions))
    own = request.chat_template_kwargs or {}
    later = {} if history.effort == _effort(request) else {"reasoning_effort": history.effort}
    format_source, form = answer_format(request, *_formats(request))
    return Turn(
        model=request.model,
        items=tuple(items),
        tools=functions,
        tool_choice=without_removed(choice, functions, history.changes.removed),
        format=form,
        variables=_variables(request),
        later_variables={name: later[name] for name in later if name not in own},
        ending=_ending(items),
        prompt_limit=request.truncate_prompt_tokens,
        owner=context.owner,
        media_fallback=request.media_fallback,
        parameters=PARAMETERS | {"format": format_source},
    )


def _formats(request: CountTokens) -> Iterator[Named]:
    config = request.output_config
    if config is not None and config.format is not None:
        yield "output_config.format", JsonSchema(config.format.schema)
    if request.output_format is not None:  # its older name
        yield "output_format", JsonSchema(request.output_format.schema)


def _variables(request: CountTokens) -> dict[str, Any]:
    """The variables of the chat template. Without `thinking` there is no reasoning, as at Anthropic."""
    reasons = _shown(request.thinking) is not ThinkingShown.NOTHING
    values: dict[str, Any] = {"enable_thinking": reasons, "thinking": reasons}
    if (effort := _effort(request)) is not None:
        values["reasoning_effort"] = effort
    return values | (request.chat_template_kwargs or {})


def _ending(items: Sequence[Item]) -> PromptEnding:
    """Whether the answer continues a message of the assistant."""
    match items:
        case [*_, Message(role=Role.ASSISTANT)]:
            return PromptEnding.CONTINUED
    return PromptEnding.ANSWER


def _shown(thinking: Thinking | None) -> ThinkingShown:
    if thinking is None or thinking.type == "disabled":
        return ThinkingShown.NOTHING
    return ThinkingShown.SIGNATURE if thinking.display == "omitted" else ThinkingShown.ALL


def _budget(thinking: Thinking | None) -> int | None:
    if thinking is None or thinking.type != "enabled":
        return None
    if thinking.budget_tokens is None:
        param = "thinking.budget_tokens"
        raise RequestError(
            f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
        )
    return thinking.budget_tokens
