"""Chat request → turn. Every error names the parameter."""

from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.apis.chat.errors import PARAMETERS
from antiphon.apis.chat.history import History
from antiphon.apis.chat.schema import (
    BatchChatRequest,
    ChatOptions,
    ChatRequest,
    RequestMessage,
    ThinkingSwitch,
)
from antiphon.apis.chat.tools import Tools, added_tools, tools_of
from antiphon.apis.envelope import DEFAULT_PRESENTATION, PresentationOptions, shared_presentation
from antiphon.apis.formats import answer_format
from antiphon.apis.sampling import check, copies, ids_parameter, sampling, stops, token_limit, variables
from antiphon.core.errors import RequestError
from antiphon.core.hosts import Hosts
from antiphon.core.items import WITH_PARTS, Item, Message, Role, text_in
from antiphon.core.turn import PromptEnding, Turn

_NOT_IN_BATCHES = ("moderation", "stream", "echo", "store", "return_prompt_text", "use_beam_search")
_SWITCHES = {"enabled": True, "disabled": False}


class AcceptedChat(Struct, frozen=True):
    """A request that can be answered: the turn, and how to present the answer.

    `repairs` lists what was repaired in the history, for the log. `store` and `request_id` are parameters of
    the request.
    """

    turn: Turn
    presentation: PresentationOptions = DEFAULT_PRESENTATION
    repairs: tuple[str, ...] = ()
    store: bool = False
    request_id: str | None = None


class AcceptedBatch(Struct, frozen=True):
    """Conversations that can be answered: choices of the answer are those of the turns, in their order."""

    turns: tuple[Turn, ...]
    presentation: PresentationOptions
    repairs: tuple[str, ...] = ()
    request_id: str | None = None


class ServerDefaults(Struct, frozen=True):
    """The server's part of every request: the presentation of answers, and the server tools."""

    presentation: PresentationOptions = DEFAULT_PRESENTATION
    hosts: Hosts = Hosts()


NO_DEFAULTS = ServerDefaults()
"""A server without tools."""


def accept(request: ChatRequest, owner: str, defaults: ServerDefaults = NO_DEFAULTS) -> AcceptedChat:
    """The turn and presentation for a request of `owner`. Raises RequestError."""
    return accept_messages(request, request.messages, "messages", owner, defaults)


def accept_messages(
    options: ChatOptions, messages: list[RequestMessage], where: str, owner: str, defaults: ServerDefaults
) -> AcceptedChat:
    """The turn and presentation for these options and this conversation, which is parameter `where`."""
    check(options)
    if options.best_of not in (None, options.n or 1):
        raise RequestError("'best_of' is available in Completions only. Use 'n'.", param="best_of")
    logprobs = _logprobs(options)
    tools, ending = tools_of(options, defaults.hosts, added_tools(messages, where)), _ending(options)
    history = History(messages, where, tools.announced)
    if ending is PromptEnding.CONTINUED and not _is_answer_with_text(history.items[-1]):
        message = "'continue_final_message' needs a last message of the assistant that has text."
        raise RequestError(message, param=f"{where}[{len(messages) - 1}]")
    format_source, format_ = answer_format(options)
    prefix, repairs = options.response_prefix or "", history.repairs
    if prefix and ending is PromptEnding.TRANSCRIPT:
        prefix, repairs = "", [*repairs, "response_prefix left out: no answer begins here"]
    max_tokens, parameters = options.max_tokens, PARAMETERS
    if format_ is not None or where != PARAMETERS["conversation"]:
        parameters = {**parameters, "conversation": where, "format": format_source}
    if history.places:
        parameters = {**parameters, **history.places}
    if options.max_completion_tokens is not None:
        max_tokens = options.max_completion_tokens
        parameters = {**parameters, "max_tokens": "max_completion_tokens"}
    reasoning_limit, switch = options.thinking_token_budget, options.thinking
    if reasoning_limit is None and isinstance(switch, ThinkingSwitch) and switch.budget_tokens is not None:
        reasoning_limit = switch.budget_tokens
        parameters = {**parameters, "reasoning_limit": "thinking.budget_tokens"}
    turn = Turn(
        model=options.model,
        items=tuple(history.items),
        tools=tools.functions,
        tool_choice=tools.choice,
        format=format_,
        sampling=sampling(options, max_tokens=token_limit(max_tokens), logprobs=logprobs),
        stop=stops(options),
        stop_shown=bool(options.include_stop_str_in_output),
        choices=options.n or 1,
        copies=copies(options),
        token_ids=ids_parameter(options, logprobs),
        variables=_variables(options),
        ending=ending,
        prefix=prefix,
        owner=owner,
        parameters=parameters,
        tool_limit=options.max_tool_calls,
        template=options.chat_template,
        prompt_limit=options.truncate_prompt_tokens,
        reasoning_limit=reasoning_limit,
        media_fallback=options.media_fallback,
        warms=options.prompt_cache_options is not None and bool(options.prompt_cache_options.prewarm),
    )
    presentation = _presentation(options, defaults.presentation, logprobs, tools, turn)
    if ending is PromptEnding.TRANSCRIPT:
        presentation = replace(presentation, role=messages[-1].role)
    return AcceptedChat(turn, presentation, tuple(repairs), bool(options.store), options.request_id)


def accept_batch(
    request: BatchChatRequest, owner: str, defaults: ServerDefaults = NO_DEFAULTS
) -> AcceptedBatch:
    """The turns and presentation for a request of `owner`. Raises RequestError."""
    for name in _NOT_IN_BATCHES:
        if getattr(request, name):
            raise RequestError(f"'{name}' is not available in batches. Leave it out.", param=name)
    if request.n not in (None, 1):
        raise RequestError("In a batch each conversation has one answer. Leave out 'n'.", param="n")
    accepted = [
        accept_messages(request, messages, f"messages[{index}]", owner, defaults)
        for index, messages in enumerate(request.messages)
    ]
    return AcceptedBatch(
        turns=tuple(one.turn for one in accepted),
        presentation=accepted[0].presentation,
        repairs=tuple(what for one in accepted for what in one.repairs),
        request_id=request.request_id,
    )


def _logprobs(options: ChatOptions) -> int | None:
    """The number of alternatives to each token, None for no log probabilities."""
    if options.logprobs:
        return options.top_logprobs or 0
    if options.top_logprobs:
        raise RequestError("'top_logprobs' is only allowed with 'logprobs': true.", param="top_logprobs")
    return None


def _ending(options: ChatOptions) -> PromptEnding:
    """How the prompt ends."""
    if options.continue_final_message:
        if options.add_generation_prompt:
            message = "'continue_final_message' and 'add_generation_prompt' exclude each other. Use one."
            raise RequestError(message, param="continue_final_message")
        return PromptEnding.CONTINUED
    return PromptEnding.TRANSCRIPT if options.add_generation_prompt is False else PromptEnding.ANSWER


def _variables(options: ChatOptions) -> dict[str, Any]:
    """The variables of the chat template. The client's own have precedence."""
    values: dict[str, Any] = {}
    effort = options.reasoning_effort
    if effort is None and isinstance(options.think, str):
        effort = options.think
    if effort is not None or options.verbosity is not None:
        values = variables(effort, options.verbosity)
    if (reasons := _switch(options)) is not None:
        values |= {"enable_thinking": reasons, "thinking": reasons}
    if options.documents is not None:
        values["documents"] = options.documents
    return {**values, **options.chat_template_kwargs} if options.chat_template_kwargs else values


def _switch(options: ChatOptions) -> bool | None:
    """Whether to reason, as the switches of other servers say."""
    if isinstance(options.thinking, ThinkingSwitch):
        return _SWITCHES.get(options.thinking.type)
    given = options.think if options.thinking is None else options.thinking
    return given if isinstance(given, bool) else None


def _presentation(
    options: ChatOptions, defaults: PresentationOptions, logprobs: int | None, tools: Tools, turn: Turn
) -> PresentationOptions:
    return shared_presentation(
        options,
        defaults,
        logprobs,
        reasoning=() if options.include_reasoning is False else defaults.reasoning,
        custom=tools.custom,
        legacy=tools.legacy,
        notes=tools.notes,
        echo=_echo(turn) if options.echo else "",
        metadata=UNSET if options.metadata is None else options.metadata,
    )


def _is_answer_with_text(last: Item) -> bool:
    return isinstance(last, Message) and last.role is Role.ASSISTANT and bool(last.text)


def _echo(turn: Turn) -> str:
    """The text of the message that the answer has the role of, as the prompt has it, and the prefix."""
    last = turn.items[-1]
    same_role = turn.ending is PromptEnding.TRANSCRIPT or _is_answer_with_text(last)
    text = text_in(last.parts, "\n") if same_role and isinstance(last, WITH_PARTS) else ""
    return text + turn.prefix
