"""A request → a turn, and the response's copy of the settings. Every error names the parameter."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Struct

from antiphon.apis.formats import answer_format
from antiphon.apis.request_object import RequestObject
from antiphon.apis.responses.added_tools import carried_tools
from antiphon.apis.responses.approvals import AnsweredApproval, ConversationApprovals, approvals
from antiphon.apis.responses.diagnostics import request_parts
from antiphon.apis.responses.history import Unseal, check_outputs, to_core
from antiphon.apis.responses.input import complete, parse_input, resolved, to_stored
from antiphon.apis.responses.kept_items import NO_ITEMS, KeptItems
from antiphon.apis.responses.notes import item_notes, parameter_notes
from antiphon.apis.responses.output.reasoning import RAW, SUMMARY, ReasoningForm
from antiphon.apis.responses.presenters.registry import NO_PRESENTERS, Presenters
from antiphon.apis.responses.previous import PARAMETER, previous_items
from antiphon.apis.responses.programs import unfinished_programs
from antiphon.apis.responses.reasoning_context import context_notes, keeping_variables, shown_items
from antiphon.apis.responses.resource import ResponseSettings
from antiphon.apis.responses.schema import CreateResponse, PromptParams
from antiphon.apis.responses.settings import response_settings, summary_of, text_format
from antiphon.apis.responses.stored import StoredItem
from antiphon.apis.responses.tool_choice import tool_choice
from antiphon.apis.responses.tools import Toolbox, toolbox
from antiphon.apis.responses.updates import Settings, updates_of
from antiphon.apis.sampling import adapters, check, shared_sampling, stops, token_limit, variables
from antiphon.apis.sealing import NO_SIGNER, Signer
from antiphon.core.cache_trace import RequestParts
from antiphon.core.errors import RequestError
from antiphon.core.hosts import Hosts, Note
from antiphon.core.items import Item, Message, Role, Status, TextPart
from antiphon.core.turn import PromptEnding, Sampling, Turn

LOGPROBS = "message.output_text.logprobs"
LOGPROB_COPIES = 7
"""How often a response holds a log probability: in an event when it is generated, at the end of its text, of
its part, of its item and of the response; and in the stored item and the stored response."""
SEALED_REASONING = "reasoning.encrypted_content"
INCLUDABLE = frozenset(
    {
        "computer_call_output.output.image_url",
        "message.input_image.image_url",
        LOGPROBS,
        SEALED_REASONING,
    }
)
"""The values of `include`, besides those of presenters.

Values without a name here have no effect: the output is always included, or never.
"""


def _sealed_elsewhere(_: str) -> None:
    """For a server without keys: it has sealed nothing."""


ReadMessages = Callable[[str], list[Mapping[str, Any]]]
"""A text of a model → its messages."""


_USUAL_ALTERNATIVES = 20
"""As many alternatives as OpenAI has; clients may request these without log probabilities."""


class ResponseContext(Struct, frozen=True):
    """The context of a request. `id` is that of the new response.

    `owner` is the identity of the request's key. `history` are the payloads of the items before its input,
    oldest first, `referenced_items` those of the items that its input refers to, by id. `raw_reasoning` is
    the form of reasoning if no summary is requested. `hosts` has the server tools, `presenters` show their
    calls. `defaults` is the sampling of the model for parameters that the request does not set.
    The operator has `forced` some of it. `context` is the number of tokens of the model's context,
    0 if that is not known. With the template variables of `kept_reasoning` it is shown the reasoning of
    earlier turns, None if it never is. `read_messages` finds the messages of a text of the model, if it has
    messages. `continued` is the response that `history` is of: the one that the request names, or one that
    follows it by itself. `kept_items` reads the history.
    """

    id: str
    owner: str
    history: Sequence[bytes] = ()
    continued: str | None = None
    referenced_items: Mapping[str, bytes] = {}
    unseal: Unseal = _sealed_elsewhere
    signer: Signer = NO_SIGNER
    raw_reasoning: ReasoningForm = RAW
    hosts: Hosts = Hosts()
    presenters: Presenters = NO_PRESENTERS
    defaults: Mapping[str, float] = {}
    read_messages: ReadMessages | None = None
    forced: frozenset[str] = frozenset()
    context: int = 0
    kept_reasoning: Mapping[str, Any] | None = None
    kept_items: KeptItems = NO_ITEMS


PARAMETERS = {
    "alternatives": "top_logprobs",
    "conversation": "input",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "reasoning_limit": "thinking_token_budget",
    "template": "chat_template",
    "tool_limit": "max_tool_calls",
}
"""This API's names of parameters in errors; see `Turn.parameters`."""


class ConversationItems(NamedTuple):
    """The items before a request, and those that it adds. `triggered`: it wants all of them compacted."""

    history: Sequence[RequestObject]
    items: list[RequestObject]
    triggered: bool


class AcceptedResponse(Struct, frozen=True):
    """A request that was read and checked.

    `items` are those of its input, as they are stored. `compacts`: the client wants a compaction instead of
    an answer. `compact_from`: the number of tokens of the prompt from which on there is a compaction before
    the answer, and `carried` are the items with the tools that it keeps. `include` lists further fields to
    return, `reasoning` is the form of reasoning, None to hide it. With `messages` the response has the texts
    that the model read and wrote: their messages, if there is `read_messages`. `parts` are those of its
    prompt.
    """

    id: str
    turn: Turn
    items: tuple[StoredItem, ...]
    settings: ResponseSettings
    tools: Toolbox
    presenters: Presenters
    include: frozenset[str]
    reasoning: ReasoningForm | None
    messages: bool = False
    read_messages: ReadMessages | None = None
    compacts: bool = False
    signer: Signer = NO_SIGNER
    answered: tuple[AnsweredApproval, ...] = ()
    compact_from: int | None = None
    notes: tuple[Note, ...] = ()
    carried: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    parts: RequestParts = RequestParts()


def accept(request: CreateResponse, context: ResponseContext) -> AcceptedResponse:
    """The request as a turn. Raises RequestError."""
    _refuse(request)
    conversation = parse_conversation(request, context)
    given = [*conversation.history, *conversation.items]
    tools, include = _toolbox(request, context, given), _include(request, context.presenters)
    asked = approvals(conversation.history, conversation.items, tools, context.signer)
    logprobs = (request.top_logprobs or 0) if LOGPROBS in include else None
    if logprobs is None and (request.top_logprobs or 0) > _USUAL_ALTERNATIVES:
        message = f"'top_logprobs' has an effect with 'include': ['{LOGPROBS}'] only. Add it."
        raise RequestError(message, param="top_logprobs")
    max_tokens = token_limit(request.max_output_tokens)
    unfinished = unfinished_programs(conversation.history, conversation.items, tools)
    if request.warms:
        _check_warming(request, conversation, bool(asked.approved or unfinished))
    turn = _turn(request, context, conversation, tools, asked)
    turn = msgspec.structs.replace(
        turn,
        items=_with_beginning(turn.items) if request.warms else turn.items,
        approved=asked.approved,
        unfinished=unfinished,
        sampling=shared_sampling(request, max_tokens=max_tokens, logprobs=logprobs),
        stop=stops(request),
        stop_shown=bool(request.include_stop_str_in_output),
        reasoning_limit=request.thinking_token_budget,
        tool_limit=request.max_tool_calls,
        copies=LOGPROB_COPIES,
        token_ids="enable_response_messages" if request.enable_response_messages else "",
        warms=request.warms,
    )
    return AcceptedResponse(
        id=context.id,
        turn=turn,
        items=to_stored(conversation.items),
        settings=_settings(request, context),
        tools=tools,
        presenters=context.presenters,
        include=include,
        reasoning=_reasoning_form(request, context),
        messages=bool(request.enable_response_messages),
        read_messages=context.read_messages,
        compacts=conversation.triggered,
        signer=context.signer,
        answered=asked.answered,
        compact_from=None if request.warms else _compact_from(request),
        carried=tuple(carried_tools(given)),
        parts=request_parts(request, conversation.history, conversation.items),
        notes=(
            *tools.notes,
            *parameter_notes(request),
            *context_notes(request.reasoning, context.kept_reasoning),
            *item_notes(conversation.items, conversation.history, context.presenters),
            *_notes_on_steers(request, context),
        ),
    )


def _settings(request: CreateResponse, context: ResponseContext) -> ResponseSettings:
    settings = response_settings(request, context.defaults, context.forced, context.kept_reasoning)
    if context.continued is None:
        return settings
    return msgspec.structs.replace(settings, previous_response_id=context.continued)


def _notes_on_steers(request: CreateResponse, context: ResponseContext) -> Sequence[Note]:
    """The note on input that was waiting for this request."""
    named, continued = request.previous_response_id, context.continued
    if continued is None or continued == named:
        return ()
    about = f"'{named}' was steered. This response continues '{continued}', which has the input."
    return (Note("previous_response_id", about),)


def prompt_turn(request: PromptParams, context: ResponseContext) -> Turn:
    """The turn of a request that wants no answer, only the prompt. Raises RequestError."""
    return conversation_turn(request, context, parse_conversation(request, context))


def conversation_turn(
    request: PromptParams, context: ResponseContext, conversation: ConversationItems
) -> Turn:
    """The same, of a conversation that is read. Raises RequestError."""
    tools = _toolbox(request, context, [*conversation.history, *conversation.items])
    asked = approvals(conversation.history, conversation.items, tools, context.signer)
    return _turn(request, context, conversation, tools, asked)


def _toolbox(request: PromptParams, context: ResponseContext, items: Sequence[RequestObject]) -> Toolbox:
    return toolbox(request.tools, context.hosts, items, context.context)


def parse_conversation(request: PromptParams, context: ResponseContext) -> ConversationItems:
    """All items that the request is about. Raises RequestError."""
    check_conflicts(request)
    history = context.kept_items.read(context.owner, context.history, history_parameter(request))
    readers = context.presenters.readers
    given = [
        *previous_items(request.previous_input_messages),
        *resolved(parse_input(request.input, readers), context.referenced_items),
    ]
    items = complete(given, context.id)
    check_outputs(history, items)
    return ConversationItems(history, items, len(items) < len(given))


def history_parameter(request: PromptParams) -> str:
    """The parameter that names the history of a request."""
    return "conversation" if request.conversation is not None else "previous_response_id"


def _turn(
    request: PromptParams,
    context: ResponseContext,
    conversation: ConversationItems,
    tools: Toolbox,
    asked: ConversationApprovals,
) -> Turn:
    given = [*conversation.history, *conversation.items]
    effort = request.reasoning.effort if request.reasoning else None
    updates = updates_of(given, Settings(effort, text_format(request.text)))
    said = {**tools.texts, **updates.texts}
    shown = (
        *_instructions(request.instructions),
        *_instructions(tools.catalogue),
        *to_core(given, context.unseal, tools, context.presenters, asked.shown, said=said),
    )
    if not shown:
        message = "There is nothing to answer. Send 'input' with at least one message."
        raise RequestError(message, param="input")
    format_source, form = answer_format(request, *updates.last.format)
    kept = keeping_variables(request.reasoning, context.kept_reasoning)
    first, last = (_variables(request, settings.effort, kept) for settings in (updates.first, updates.last))
    choice = tool_choice(request.tool_choice, tools, request.parallel_tool_calls)
    return Turn(
        model=request.model,
        items=shown_items(request.reasoning, shown),
        tools=tools.functions,
        tool_choice=choice,
        in_programs=tuple(
            function for function in tools.in_programs if choice.named or choice.admits(function.name)
        ),
        format=form,
        first_format=UNSET if updates.first.form == updates.last.form else updates.first.form,
        variables=first,
        later_variables={name: value for name, value in last.items() if first.get(name) != value},
        template=request.chat_template,
        ending=_ending(shown),
        prompt_limit=request.truncate_prompt_tokens,
        sampling=Sampling(lora=adapters(request.lora)),
        shorten=request.truncation == "auto",
        owner=context.owner,
        id=context.id,
        media_fallback=request.media_fallback,
        parameters=PARAMETERS | {"format": format_source},
    )


def _instructions(text: str | None) -> tuple[Item, ...]:
    """Instructions, which come first. Those of earlier responses are not used."""
    return (Message(Role.SYSTEM, (TextPart(text),)),) if text else ()


def _ending(items: Sequence[Item]) -> PromptEnding:
    """Whether the answer continues an incomplete message of the assistant."""
    match items:
        case [*_, Message(role=Role.ASSISTANT, status=Status.INCOMPLETE)]:
            return PromptEnding.CONTINUED
    return PromptEnding.ANSWER


def _variables(request: PromptParams, effort: str | None, kept: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of the template for this effort. The client's own win."""
    verbosity = request.text.verbosity if request.text else None
    values = {**kept, **variables(effort, verbosity)}
    if request.documents is not None:
        values["documents"] = request.documents
    return values | (request.chat_template_kwargs or {})


# Prompts that are computed for later


def _check_warming(request: CreateResponse, conversation: ConversationItems, has_calls: bool) -> None:
    """Refuse a request for no output that demands work. Raises RequestError."""
    param = "generate" if request.generate is False else "prompt_cache_options.prewarm"
    if has_calls:
        message = "Calls that are approved are run, then answered, and so are programs. Leave it out."
        raise RequestError(message, param=param)
    if conversation.triggered:
        message = f"A compaction needs output. Leave out '{param}', or the compaction."
        raise RequestError(message, param=param)


def _with_beginning(items: tuple[Item, ...]) -> tuple[Item, ...]:
    """The items with the beginning of a message of the user, if there are only instructions.

    Many templates refuse a conversation without one.
    """
    roles = {item.role if isinstance(item, Message) else None for item in items}
    return items if roles - {Role.SYSTEM, Role.DEVELOPER} else (*items, Message(Role.USER, ()))


# Refusals


def _check_window(request: CreateResponse) -> None:
    """A client that gives a response hours does not wait for it. Raises RequestError."""
    standard = request.service_tier in (None, "auto", "default")
    remedies = {
        "Send it with 'background': true.": bool(request.background),
        "Leave out 'stream', and retrieve the response later.": not request.stream,
        "Leave out 'service_tier'.": standard,
    }
    for remedy, met in remedies.items():
        if not met:
            message = f"'background_options.completion_window' is for responses that may take hours. {remedy}"
            raise RequestError(message, param="background_options.completion_window")


def _refuse(request: CreateResponse) -> None:
    """Refuse contradictions, and unsupported parameters."""
    check_conflicts(request)
    check(request)
    if request.background and request.store is False:
        message = "A background response has to be stored. Leave out 'store' or 'background'."
        raise RequestError(message, param="background")
    if request.background_options is not None and request.background_options.seconds is not None:
        _check_window(request)
    if request.enable_response_messages and request.include_reasoning is False:
        message = "'enable_response_messages' also returns reasoning. Leave it out, or 'include_reasoning'."
        raise RequestError(message, param="enable_response_messages")
    if request.stream_options is not None and not request.stream:
        raise RequestError("'stream_options' is only allowed with 'stream': true.", param="stream_options")


def check_conflicts(request: PromptParams) -> None:
    """Refuse contradictions that do not depend on the history. Raises RequestError."""
    earlier = request.previous_response_id is not None
    if earlier and request.conversation is not None:
        message = "'conversation' and 'previous_response_id' cannot both be used. Leave one of them out."
        raise RequestError(message, param="conversation")
    if request.previous_input_messages and (earlier or request.conversation is not None):
        other = "previous_response_id" if earlier else "conversation"
        message = f"'{PARAMETER}' and '{other}' cannot both be used. Leave one of them out."
        raise RequestError(message, param=PARAMETER)
    if request.input is None and not earlier and request.conversation is None:
        raise RequestObject({}, "").missing("input")


def _include(request: CreateResponse, presenters: Presenters) -> frozenset[str]:
    for index, value in enumerate(request.include or ()):
        if value not in INCLUDABLE and value not in presenters.includes:
            known = ", ".join(sorted(INCLUDABLE | presenters.includes))
            message = f"'{value}' cannot be included. Use one of: {known}."
            raise RequestError(message, param=f"include[{index}]")
    return frozenset(request.include or ())


def _compact_from(request: CreateResponse) -> int | None:
    limits = []
    for index, management in enumerate(request.context_management or ()):
        if management.type != "compaction":
            message = f"'{management.type}' is not supported. Use 'compaction'."
            raise RequestError(message, param=f"context_management[{index}].type")
        limits += [management.compact_threshold] if management.compact_threshold else []
    return min(limits, default=None)


def _reasoning_form(request: CreateResponse, context: ResponseContext) -> ReasoningForm | None:
    if request.include_reasoning is False:
        return None
    return SUMMARY if summary_of(request) else context.raw_reasoning
