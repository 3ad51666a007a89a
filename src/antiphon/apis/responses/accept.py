"""A request → a turn, and all that the answer will say about the request. Every error names the parameter."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from antiphon.apis.hosted import Hosts
from antiphon.apis.responses.conversation import Unseal, check_outputs, to_core
from antiphon.apis.responses.echo import settings, summary_of
from antiphon.apis.responses.formats import read_format
from antiphon.apis.responses.given import Given
from antiphon.apis.responses.input import complete, read_input, resolved, to_stored
from antiphon.apis.responses.output.thoughts import RAW, SUMMARY, ThoughtForm
from antiphon.apis.responses.resource import Settings
from antiphon.apis.responses.schema import CreateResponse, Prompting
from antiphon.apis.responses.shown import Shown
from antiphon.apis.responses.stored import StoredItem
from antiphon.apis.responses.tools import Toolbox, tool_choice, toolbox
from antiphon.apis.sampling import drawing, stops, variables
from antiphon.core.errors import RequestError
from antiphon.core.items import Item, Message, Role, Status, TextPart
from antiphon.core.turn import Ending, Turn

LOGPROBS = "message.output_text.logprobs"
SEALED_THOUGHTS = "reasoning.encrypted_content"
SOURCES = "web_search_call.action.sources"
INCLUDABLE = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    LOGPROBS,
    SEALED_THOUGHTS,
    SOURCES,
    "web_search_call.results",
)
"""What `include` may ask for. Of those without a name here, outputs of code are always told, others never."""


def _sealed_elsewhere(_: str) -> None:
    """Nothing was sealed by a server without keys."""


class Context(Struct, frozen=True):
    """What a request is read with, beside itself.

    `id` is that of the response to come; `owner` the identity behind the
    request. `history` are the payloads of the items before its input, oldest
    first, `referred` those of the items that its input refers to, by id.
    `raw_thoughts` is how thoughts are shown if no summary is asked for. `hosts`
    has the tools that the server runs.
    """

    id: str
    owner: str
    history: Sequence[bytes] = ()
    referred: Mapping[str, bytes] = {}
    unseal: Unseal = _sealed_elsewhere
    raw_thoughts: ThoughtForm = RAW
    hosts: Hosts = Hosts()


class Conversation(NamedTuple):
    """What was said before a request, and what it adds. `triggered`: it asks for all that to be compacted."""

    history: list[Given]
    items: list[Given]
    triggered: bool


class Accepted(Struct, frozen=True):
    """A request that is understood.

    `items` are those of its input, as they are stored. `compacts` says that
    the client wants a compaction in the place of an answer, `compact_from`
    that one is due before the answer if the prompt has so many tokens.
    """

    id: str
    turn: Turn
    items: tuple[StoredItem, ...]
    settings: Settings
    tools: Toolbox
    shown: Shown
    compacts: bool = False
    compact_from: int | None = None


def accept(request: CreateResponse, context: Context) -> Accepted:
    """What the request asks for. Raises RequestError."""
    _refuse(request)
    conversation = read_conversation(request, context)
    tools, include = toolbox(request.tools, context.hosts), _include(request)
    logprobs = (request.top_logprobs or 0) if LOGPROBS in include else None
    turn = msgspec.structs.replace(
        _turn(request, context, conversation, tools),
        sampling=drawing(request, max_tokens=request.max_output_tokens, logprobs=logprobs),
        stop=stops(request),
        stop_shown=bool(request.include_stop_str_in_output),
        thinking_limit=request.thinking_token_budget,
        tool_limit=request.max_tool_calls,
    )
    return Accepted(
        context.id,
        turn,
        to_stored(conversation.items),
        settings(request),
        tools,
        _shown(request, context, include),
        compacts=conversation.triggered,
        compact_from=_compact_from(request),
    )


def prompting(request: Prompting, context: Context) -> Turn:
    """The turn of a request that wants no answer, only the prompt. Raises RequestError."""
    tools = toolbox(request.tools, context.hosts)
    return _turn(request, context, read_conversation(request, context), tools)


def read_conversation(request: Prompting, context: Context) -> Conversation:
    """All items that the request is about. Raises RequestError."""
    check_conflicts(request)
    source = "conversation" if request.conversation is not None else "previous_response_id"
    history = [Given(msgspec.json.decode(payload), source) for payload in context.history]
    asked = list(resolved(read_input(request.input), context.referred))
    items = complete(asked, context.id)
    check_outputs(history, items)
    return Conversation(history, items, len(items) < len(asked))


def _turn(request: Prompting, context: Context, conversation: Conversation, tools: Toolbox) -> Turn:
    shown = (
        *_instructions(request),
        *to_core([*conversation.history, *conversation.items], context.unseal, tools),
    )
    if not shown:
        message = "There is nothing to answer. Send 'input' with at least one message."
        raise RequestError(message, param="input")
    format_source, form = read_format(request.text, request.structured_outputs)
    return Turn(
        model=request.model,
        items=shown,
        tools=tools.functions,
        tool_choice=tool_choice(request.tool_choice, tools, request.parallel_tool_calls),
        format=form,
        format_source=format_source,
        variables=_variables(request),
        template=request.chat_template,
        ending=_ending(shown),
        shorten=request.truncation == "auto",
        owner=context.owner,
        source="input",
    )


def _instructions(request: Prompting) -> tuple[Item, ...]:
    """They come first, and are never those of an earlier response."""
    return (Message(Role.SYSTEM, (TextPart(request.instructions),)),) if request.instructions else ()


def _ending(items: Sequence[Item]) -> Ending:
    """A message of the assistant's that is not whole is gone on with."""
    match items:
        case [*_, Message(role=Role.ASSISTANT, status=Status.INCOMPLETE)]:
            return Ending.CONTINUED
    return Ending.ANSWER


def _variables(request: Prompting) -> dict[str, Any]:
    """What templates are told. The client's own variables win."""
    effort = request.reasoning.effort if request.reasoning else None
    verbosity = request.text.verbosity if request.text else None
    return variables(effort, verbosity) | (request.chat_template_kwargs or {})


# What is refused


def _refuse(request: CreateResponse) -> None:
    """Say no to what contradicts itself, and to what Antiphon cannot do."""
    check_conflicts(request)
    if request.background and request.store is False:
        message = "A background response has to be stored. Leave out 'store' or 'background'."
        raise RequestError(message, param="background")
    if request.stream_options is not None and not request.stream:
        raise RequestError("'stream_options' is only allowed with 'stream': true.", param="stream_options")
    if request.prompt is not None:
        message = "There are no stored prompts here. Send 'instructions' and 'input'."
        raise RequestError(message, param="prompt")
    if request.moderation is not None:
        raise RequestError("Nothing is moderated here. Leave out 'moderation'.", param="moderation")


def check_conflicts(request: Prompting) -> None:
    """What contradicts itself, whatever the history. Raises RequestError."""
    earlier = request.previous_response_id is not None
    if earlier and request.conversation is not None:
        message = "'conversation' and 'previous_response_id' cannot both be used. Leave one of them out."
        raise RequestError(message, param="conversation")
    if request.input is None and not earlier and request.conversation is None:
        raise Given({}, "").missing("input")


def _include(request: CreateResponse) -> frozenset[str]:
    for index, wanted in enumerate(request.include or ()):
        if wanted not in INCLUDABLE:
            message = f"'{wanted}' cannot be included. Use one of: {', '.join(INCLUDABLE)}."
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


# What is told back


def _shown(request: CreateResponse, context: Context, include: frozenset[str]) -> Shown:
    thoughts = SUMMARY if summary_of(request) else context.raw_thoughts
    return Shown(
        None if request.include_reasoning is False else thoughts,
        logprobs=LOGPROBS in include,
        sealed=SEALED_THOUGHTS in include,
        sources=SOURCES in include,
    )
