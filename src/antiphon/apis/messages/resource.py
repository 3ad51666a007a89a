"""The wire types of the answers of the Messages API: messages, their content, and the events of a stream."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from antiphon.apis.messages.programs import CALLER, PYTHON_ONLY
from antiphon.core.edits import AppliedEdit, ClearReasoning
from antiphon.core.events import GenerationUsage, Usage
from antiphon.core.hosts import Note

# Content


class CharLocation(Struct, tag_field="type", tag="char_location"):
    """A part of a document with one text: `cited_text` begins at `start_char_index`."""

    cited_text: str
    document_index: int
    document_title: str | None
    start_char_index: int
    end_char_index: int
    file_id: str | None = None


class PageLocation(Struct, tag_field="type", tag="page_location"):
    """Pages of a document, counted from 1; `end_page_number` is the one after the last."""

    cited_text: str
    document_index: int
    document_title: str | None
    start_page_number: int
    end_page_number: int
    file_id: str | None = None


class BlockLocation(Struct, tag_field="type", tag="content_block_location"):
    """Blocks of a document that has several."""

    cited_text: str
    document_index: int
    document_title: str | None
    start_block_index: int
    end_block_index: int
    file_id: None = None


class SearchResultLocation(Struct, tag_field="type", tag="search_result_location"):
    """Blocks of a search result of the client's."""

    cited_text: str
    source: str
    title: str
    search_result_index: int
    start_block_index: int
    end_block_index: int


class WebLocation(Struct, tag_field="type", tag="web_search_result_location"):
    """A part of a page that the server found, or opened. `encrypted_index` is the mark, sealed."""

    cited_text: str
    url: str
    title: str
    encrypted_index: str


Citation = CharLocation | PageLocation | BlockLocation | SearchResultLocation | WebLocation


class TextBlock(Struct, tag_field="type", tag="text"):
    """Visible text, and its citations."""

    text: str
    citations: tuple[Citation, ...] = ()


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    """Reasoning. The signature is the same, sealed: the client sends both back."""

    thinking: str
    signature: str


class Caller(Struct, frozen=True, tag_field="type", tag="direct"):
    """The caller of a tool: the model itself."""


class ServerToolCaller(Struct, frozen=True, tag_field="type", tag=PYTHON_ONLY):
    """The program that has called a tool: `tool_id` is that of its block."""

    tool_id: str


class ServerToolCaller20260120(Struct, frozen=True, tag_field="type", tag=CALLER):
    """The same, of the newer version of its tool."""

    tool_id: str


ProgramCaller = ServerToolCaller | ServerToolCaller20260120
PROGRAM_CALLERS: Mapping[str, type[ProgramCaller]] = {
    PYTHON_ONLY: ServerToolCaller,
    CALLER: ServerToolCaller20260120,
}
"""The version of the tool that runs programs → the caller that they are."""


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    """A call that the client answers."""

    id: str
    name: str
    input: dict[str, Any]
    caller: Caller | ProgramCaller = Caller()


class ServerToolUseBlock(Struct, tag_field="type", tag="server_tool_use"):
    """A call that the server answers."""

    id: str
    name: str
    input: dict[str, Any]
    caller: Caller = Caller()


class McpToolUseBlock(Struct, tag_field="type", tag="mcp_tool_use"):
    """A call that the server answers, of a tool that Anthropic has no blocks for."""

    id: str
    name: str
    server_name: str
    input: dict[str, Any]


class McpToolResultBlock(Struct, tag_field="type", tag="mcp_tool_result"):
    """The result of the call."""

    tool_use_id: str
    is_error: bool
    content: tuple[TextBlock, ...]


class ServerToolResultBlock(Struct):
    """The result of a call that the server answered. Each tool has a type of its own."""

    type: str
    tool_use_id: str
    content: Any
    caller: Caller | UnsetType = UNSET


class CompactionBlock(Struct, tag_field="type", tag="compaction"):
    """A summary, in the place of the conversation before it; without content if there could be none.

    `encrypted_content` is the same, sealed. `tool_changes` are those of the conversation.
    """

    content: str | None
    encrypted_content: str | None = None
    signature: str | None = None
    tool_changes: tuple[Mapping[str, Any], ...] | None = None


Block = (
    TextBlock
    | ThinkingBlock
    | ToolUseBlock
    | ServerToolUseBlock
    | McpToolUseBlock
    | McpToolResultBlock
    | ServerToolResultBlock
    | CompactionBlock
)
CallBlock = ToolUseBlock | ServerToolUseBlock | McpToolUseBlock

# Usage


class CacheCreation(Struct, frozen=True):
    """Cached parts of prompts are not counted."""

    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class ServerToolUsage(Struct):
    """How often the web was searched, and how many of its pages were opened."""

    web_search_requests: int = 0
    web_fetch_requests: int = 0


class OutputTokensDetails(Struct, frozen=True):
    """`thinking_tokens` are part of the output."""

    thinking_tokens: int = 0


class Iteration(Struct, frozen=True, kw_only=True):
    """Tokens of one generation: a `message`, or a `compaction`, which other counts leave out."""

    type: str
    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_creation: CacheCreation = CacheCreation()


def iteration(type_: str, usage: GenerationUsage) -> Iteration:
    """The entry of a generation."""
    cached = min(usage.cached_tokens, usage.input_tokens)
    return Iteration(
        type=type_,
        input_tokens=usage.input_tokens - cached,
        output_tokens=usage.output_tokens,
        cache_read_input_tokens=cached,
    )


class DeltaUsage(Struct, kw_only=True):
    """Tokens of the answer so far. `input_tokens` are those that the engine had to compute.

    `iterations` are all generations, if one of them was a compaction.
    """

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int = 0
    server_tool_use: ServerToolUsage | None = None
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    iterations: tuple[Iteration, ...] | UnsetType = UNSET


class MessageUsage(DeltaUsage, kw_only=True):
    """The usage with the fields that do not change."""

    cache_creation: CacheCreation = CacheCreation()
    service_tier: str = "standard"
    inference_geo: None = None


def usage_fields(prompt_tokens: int, usage: Usage, web: ServerToolUsage | None) -> dict[str, Any]:
    """The fields of `DeltaUsage`, for an answer whose first prompt had this number of tokens."""
    whole = prompt_tokens + usage.prompt_tokens + usage.media_tokens
    cached = min(usage.cached_tokens, whole)
    return {
        "input_tokens": whole - cached,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
        "server_tool_use": web,
        "output_tokens_details": OutputTokensDetails(usage.reasoning_tokens),
    }


# Messages


class Container(Struct, frozen=True):
    """Where a program of the answer runs. Nothing is kept there: clients may send the id back."""

    id: str
    expires_at: str


class ClearedToolUses(Struct, frozen=True, tag_field="type", tag="clear_tool_uses_20250919"):
    """So many results of tools were left out of the prompt, which has so many tokens fewer."""

    cleared_tool_uses: int
    cleared_input_tokens: int


class ClearedThinking(Struct, frozen=True, tag_field="type", tag="clear_thinking_20251015"):
    """The reasoning of so many turns was left out of the prompt, which has so many tokens fewer."""

    cleared_thinking_turns: int
    cleared_input_tokens: int


class ContextManagement(Struct, frozen=True):
    """The edits that have changed the prompt."""

    applied_edits: tuple[ClearedToolUses | ClearedThinking, ...] = ()


def applied_edits(edits: Iterable[AppliedEdit]) -> ContextManagement:
    """The report of these edits."""
    return ContextManagement(
        tuple(
            ClearedThinking(edit.count, edit.tokens)
            if isinstance(edit.edit, ClearReasoning)
            else ClearedToolUses(edit.count, edit.tokens)
            for edit in edits
        )
    )


class CacheMissReason(Struct, frozen=True):
    """Why the prompt does not begin with that of another message, and how many tokens of that are lost.

    `part` is the part of the request that makes the difference.
    """

    type: str
    cache_missed_input_tokens: int | UnsetType = UNSET
    part: str | UnsetType = UNSET


class CacheDiagnostics(Struct, frozen=True):
    """What has kept the engine from using its cache."""

    cache_miss_reason: CacheMissReason


class RefusalDetails(Struct, frozen=True, tag_field="type", tag="refusal"):
    """An answer was filtered. The filter gives no reason."""

    category: None = None
    explanation: None = None


class Message(Struct, tag_field="type", tag="message", kw_only=True):
    """An answer. `unmet` names the demands that it does not meet, `generations` the usage of each of several.

    `notes` are on parts of the request without effect.
    """

    id: str
    role: str = "assistant"
    model: str
    content: tuple[Block, ...] = ()
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: RefusalDetails | None = None
    container: Container | None = None
    context_management: ContextManagement | UnsetType = UNSET
    diagnostics: CacheDiagnostics | UnsetType | None = UNSET
    usage: MessageUsage
    unmet: tuple[str, ...] | UnsetType = UNSET
    generations: tuple[GenerationUsage, ...] | UnsetType = UNSET
    notes: tuple[Note, ...] | UnsetType = UNSET


class OriginalSize(Struct, frozen=True):
    """How many tokens a prompt had before its conversation was edited."""

    original_input_tokens: int


class TokenCount(Struct):
    """How many tokens a prompt has: counted, or `estimated`."""

    input_tokens: int
    estimated: bool | UnsetType = UNSET
    context_management: OriginalSize | UnsetType = UNSET


# Events


class MessageStart(Struct, tag_field="type", tag="message_start"):
    """An answer begins."""

    message: Message


class BlockStart(Struct, tag_field="type", tag="content_block_start"):
    """A block begins: without its text, and with all else."""

    index: int
    content_block: Block


class TextDelta(Struct, tag_field="type", tag="text_delta"):
    """More visible text."""

    text: str


class ThinkingDelta(Struct, tag_field="type", tag="thinking_delta"):
    """More reasoning."""

    thinking: str


class SignatureDelta(Struct, tag_field="type", tag="signature_delta"):
    """The signature of the reasoning, which is over."""

    signature: str


class InputJsonDelta(Struct, tag_field="type", tag="input_json_delta"):
    """More of the input of a call, as JSON text."""

    partial_json: str


class CompactionDelta(Struct, tag_field="type", tag="compaction_delta"):
    """The summary of a block, whole."""

    content: str | None
    encrypted_content: str | None


class CitationsDelta(Struct, tag_field="type", tag="citations_delta"):
    """A citation of the text of a block."""

    citation: Citation


class BlockDelta(Struct, tag_field="type", tag="content_block_delta"):
    """More of a block."""

    index: int
    delta: TextDelta | CitationsDelta | ThinkingDelta | SignatureDelta | InputJsonDelta | CompactionDelta


class BlockStop(Struct, tag_field="type", tag="content_block_stop"):
    """A block is over."""

    index: int


class Stop(Struct, kw_only=True):
    """Why an answer ended."""

    stop_reason: str
    stop_sequence: str | None
    stop_details: RefusalDetails | None = None
    container: Container | None = None
    unmet: tuple[str, ...] | UnsetType = UNSET
    generations: tuple[GenerationUsage, ...] | UnsetType = UNSET
    notes: tuple[Note, ...] | UnsetType = UNSET


class MessageDelta(Struct, tag_field="type", tag="message_delta", kw_only=True):
    """The end of an answer. `usage` is that of all of it."""

    delta: Stop
    usage: DeltaUsage
    context_management: ContextManagement | UnsetType = UNSET


class MessageStop(Struct, tag_field="type", tag="message_stop"):
    """The last event."""


# Errors


class ErrorDetails(Struct):
    """The type of an error, and its message."""

    error_code: str


class ErrorPayload(Struct):
    """An error."""

    type: str
    message: str
    details: ErrorDetails | UnsetType = UNSET


class ErrorBody(Struct, tag_field="type", tag="error"):
    """The body of an HTTP error, and the event that ends a stream that failed."""

    error: ErrorPayload
    request_id: str | None = None
