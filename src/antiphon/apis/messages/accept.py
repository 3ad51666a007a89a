"""A request → a turn, and how its answer is shown. Every error names the parameter."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.apis.formats import Named, answer_format
from antiphon.apis.messages.citations import FileText
from antiphon.apis.messages.context import ContextPlan, context_plan
from antiphon.apis.messages.errors import PARAMETERS
from antiphon.apis.messages.history import History, HistoryOptions, Unseal, sealed_elsewhere
from antiphon.apis.messages.notes import parameter_notes
from antiphon.apis.messages.presentation import Presentation, ThinkingShown
from antiphon.apis.messages.programs import check_container
from antiphon.apis.messages.schema import CountTokens, CreateMessage, Thinking
from antiphon.apis.messages.server_tools import NO_VIEWS, ToolViews
from antiphon.apis.messages.tool_changes import definitions_in
from antiphon.apis.messages.tools import tool_choice, tools_of, without_removed
from antiphon.apis.sampling import check, shared_sampling, stops
from antiphon.apis.sealing import NO_SIGNER, Signer
from antiphon.core.call_results import is_answer
from antiphon.core.constraint import JsonSchema
from antiphon.core.edits import ClearReasoning
from antiphon.core.errors import RequestError
from antiphon.core.hosts import Hosts, Note
from antiphon.core.items import FunctionCall, Item, Message, Role
from antiphon.core.turn import PromptEnding, Turn

REFUSED: Mapping[str, str] = {
    "thread": "This API does not store conversations. Send all messages.",
}
"""Parameter → the remedy."""
_CODES = {"thread": "thread_unsupported_request"}
"""The codes of refusals, by which Anthropic's clients go on without: they send all messages."""


class MessageContext(Struct, frozen=True):
    """The context of a request. `owner` is the identity of its key.

    `hosts` has the server tools, `views` show their calls. `unseal` decrypts what was sealed for this owner,
    `signer` knows what was signed for it.
    `files` are the texts of `cited_files`, by the places of their documents. `context` is the number of
    tokens of the model's context, 0 if that is not known. With the template variables of `kept_reasoning` it
    is shown the thinking of earlier turns, None if it never is.
    """

    owner: str = ""
    hosts: Hosts = Hosts()
    unseal: Unseal = sealed_elsewhere
    signer: Signer = NO_SIGNER
    files: Mapping[str, FileText] = {}
    views: ToolViews = NO_VIEWS
    context: int = 0
    kept_reasoning: Mapping[str, Any] | None = None


class AcceptedMessage(Struct, frozen=True):
    """A request that can be answered. `changes` are the blocks of its tools that have changed."""

    turn: Turn
    presentation: Presentation
    changes: tuple[Mapping[str, Any], ...] = ()


def accept(request: CreateMessage, context: MessageContext) -> AcceptedMessage:
    """The request as a turn. Raises RequestError."""
    history = _history(request, context)
    plan = context_plan(request, history.tools.names, context.context)
    unfinished = history.programs.unfinished(history.tools)
    notes = (
        *history.tools.notes,
        *history.programs.notes,
        *parameter_notes(request),
        *_note_on_thinking(plan, context),
    )
    tools = replace(history.tools, functions=history.changes.functions, notes=notes)
    turn = replace(
        _turn(request, context, history, plan),
        sampling=shared_sampling(request, max_tokens=request.max_tokens or None, logprobs=None),
        warms=request.max_tokens == 0,
        stop=(*(request.stop_sequences or ()), *stops(request)),
        stop_shown=bool(request.include_stop_str_in_output),
        reasoning_limit=_budget(request.thinking),
        tool_limit=tools.limit,
        unfinished=unfinished,
    )
    shown = Presentation(
        _shown(request.thinking),
        request.max_tokens,
        tools,
        plan,
        tuple(history.citable),
        request.diagnostics is not None,
        warms=turn.warms,
        unfinished=unfinished,
    )
    if unfinished and turn.warms:
        message = (
            "With the results, a program continues and the model answers. Leave the "
            "results out, or raise 'max_tokens'."
        )
        raise RequestError(message, param="max_tokens")
    if shown.context.summarises is not None:
        _check_summarised(turn.items, goes_on=bool(unfinished))
    return AcceptedMessage(turn, shown, history.changes.made)


def accept_prompt(request: CountTokens, context: MessageContext) -> tuple[Turn, ContextPlan]:
    """The turn of a request that wants no answer, only the prompt, and what is left out of it.

    Raises RequestError.
    """
    history = _history(request, context)
    plan = context_plan(request, history.tools.names, context.context)
    return _turn(request, context, history, plan), plan


def _note_on_thinking(plan: ContextPlan, context: MessageContext) -> Iterator[Note]:
    """A note that thinking is not kept, which the request wants."""
    kept = [edit.turns for edit in plan.edits if isinstance(edit, ClearReasoning)]
    if context.kept_reasoning is None and kept and kept[0] > 1:
        where = "context_management.edits[0].keep"
        message = "The chat template of this model leaves out the thinking of earlier turns anyway."
        yield Note(where, f"'{where}' has no effect. {message}")


def _check_summarised(items: Sequence[Item], *, goes_on: bool) -> None:
    """Refuse a conversation that has nothing to be summarised, or is in the middle of something."""
    if all(isinstance(item, Message) and item.role is Role.SYSTEM for item in items):
        message = "There is nothing to summarise: neither the user nor the model has said anything."
        raise RequestError(message, param="messages", code="compaction_nothing_to_summarize")
    if goes_on or any(isinstance(item, FunctionCall) for item in takewhile(is_answer, reversed(items))):
        message = "Its last calls have no results yet. Send these first, or leave out the calls."
        raise RequestError(message, param="messages", code="compaction_incomplete_turn")


def _history(request: CountTokens, context: MessageContext) -> History:
    inline = {definition.where: definition.tool for definition in definitions_in(request.messages)}
    tools = tools_of(
        request.tools, request.mcp_servers, context.hosts, context.views, inline, context.context
    )
    for name, remedy in REFUSED.items():
        if getattr(request, name):
            raise RequestError(f"'{name}' is not supported. {remedy}", param=name, code=_CODES.get(name))
    check_container(request.container)
    check(request)
    reading = HistoryOptions(context.unseal, context.signer, tools, context.files, _effort(request))
    return History(request.system, request.messages, reading)


def _effort(request: CountTokens) -> str | None:
    return None if request.output_config is None else request.output_config.effort


def _turn(request: CountTokens, context: MessageContext, history: History, plan: ContextPlan) -> Turn:
    items, functions = history.items, history.changes.functions
    choice = tool_choice(request.tool_choice, replace(history.tools, functions=functions))
    own = request.chat_template_kwargs or {}
    later = {} if history.effort == history.first_effort else {"reasoning_effort": history.effort}
    kept, variables = context.kept_reasoning, _variables(request, history.first_effort)
    format_source, form = answer_format(request, *_formats(request))
    return Turn(
        model=request.model,
        items=tuple(items),
        tools=functions,
        tool_choice=without_removed(choice, functions, history.changes.removed),
        format=form,
        variables={**(kept if plan.keeps_thinking and kept else {}), **variables},
        later_variables={name: later[name] for name in later if name not in own},
        ending=_ending(items),
        in_programs=tuple(
            function for function in history.tools.in_programs if function.name not in history.changes.removed
        ),
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


def _variables(request: CountTokens, effort: str | None) -> dict[str, Any]:
    """The variables of the chat template. Without `thinking` there is no reasoning, as at Anthropic."""
    reasons = _shown(request.thinking) is not ThinkingShown.NOTHING
    values: dict[str, Any] = {"enable_thinking": reasons, "thinking": reasons}
    if effort is not None:
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
