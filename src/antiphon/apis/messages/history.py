"""The messages of a request → the items of a conversation. Every error names the block.

Blocks keep their order, but results precede the user's text in the same message. Neighbouring texts of one
role are one message. Instructions keep their place: moved to the front, each new one would change the
beginning of the prompt, which engines cache.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.apis.media import at_url, in_base64, stored
from antiphon.apis.messages.citations import (
    BlockDocument,
    Citable,
    CitableSearchResult,
    FileText,
    Heading,
    PagedDocument,
    numbered_text,
    text_document,
)
from antiphon.apis.messages.compaction import ADDITION, COMPACTION, REMOVAL, read_compaction
from antiphon.apis.messages.ids import core_id
from antiphon.apis.messages.programs import CODE, ProgramHistory
from antiphon.apis.messages.schema import RequestMessage
from antiphon.apis.messages.server_tools import read_search
from antiphon.apis.messages.tool_changes import REFERENCE, ToolChanges
from antiphon.apis.messages.tools import SEARCHES, Tools
from antiphon.apis.request_object import RequestObject, json_text, object_at
from antiphon.apis.sealing import NO_SIGNER, Signer, is_sealed
from antiphon.apis.summaries import SummaryMessage, replaced
from antiphon.core.errors import RequestError
from antiphon.core.items import (
    Attachment,
    FunctionCall,
    FunctionOutput,
    Item,
    MediaKind,
    Message,
    Part,
    Reasoning,
    Role,
    TextPart,
    text_in,
)
from antiphon.core.positions import effort_text, place_message, removed_text

BILLING = "x-anthropic-billing-header:"
"""A line that Claude Code writes before its instructions. Parts of it change with each request."""
Unseal = Callable[[str], str | None]
"""Decrypts a text; None if it was sealed on another server, or for another owner."""


def sealed_elsewhere(_: str) -> None:
    """For a server without keys: it has sealed nothing."""


def _invalid(block: RequestObject, field: str) -> RequestError:
    """The error of a field that this server sealed and somebody changed, in Anthropic's words for clients."""
    what = f"Invalid `{field}` in `{block.value['type']}` block"
    return block.wrong(field, f"{what}: send it back as it came, or leave it out.")


class HistoryOptions(Struct, frozen=True):
    """The settings for reading messages: `unseal` decrypts what this server has sealed for this client.

    `signer` proves that it has made a summary. `files` are the texts of `cited_files`, by the places of their
    documents. `effort` is that of the request.
    """

    unseal: Unseal = sealed_elsewhere
    signer: Signer = NO_SIGNER
    tools: Tools = Tools()
    files: Mapping[str, FileText] = {}
    effort: str | None = None


class History:
    """Reads the instructions and messages of a request.

    `items` are the result, `citable` are the parts that may be cited. `changes` are those of the tools, and
    `programs` those of the model. `effort` is the one that counts in the end, and `first_effort` the one that
    the prompt begins with.
    """

    def __init__(
        self, system: str | Sequence[Any] | None, messages: Sequence[RequestMessage], reading: HistoryOptions
    ) -> None:
        self.items: list[Item] = []
        self.tools = reading.tools
        self.citable: list[Citable] = []
        self.changes = ToolChanges(reading.tools)
        self.programs = ProgramHistory()
        self.effort = self.first_effort = reading.effort
        self._reading = reading
        self._called: dict[str, str] = {}  # id of a call → the name of its function
        self._documents = self._search_results = 0  # how many there are so far
        if system:
            self._read(Role.SYSTEM, system, "system", "system")
        if reading.tools.catalogue:
            self.items.append(Message(Role.SYSTEM, (TextPart(reading.tools.catalogue),)))
        self._head = len(self.items)  # what stays, whatever is replaced
        asked = max((i for i, message in enumerate(messages) if message.role == Role.USER), default=-1)
        leading = True
        for index, message in enumerate(messages):
            where = RequestObject({}, f"messages[{index}]")
            if message.role not in _READERS:
                remedy = f"Use one of: {', '.join(_READERS)}."
                raise where.wrong("role", f"There is no role '{message.role}'. {remedy}")
            if message.role == Role.ASSISTANT:
                self.programs.begin_answer()
            leading = leading and message.role == Role.SYSTEM
            if message.role == Role.SYSTEM:
                self._read_system(message, where, leading=leading, cleared=index < asked)
            else:
                self._read(Role(message.role), _content(message, where), where.where, where.place("content"))

    def _read_system(
        self, message: RequestMessage, where: RequestObject, *, leading: bool, cleared: bool
    ) -> None:
        """Instructions in the middle: their text, unless it was for an earlier turn, and what they change."""
        config, content = message.output_config, message.content or ()
        if config is not None and config.format is not None:
            raise where.wrong("output_config.format", "Only the request has a format.")
        if message.content is None and (config is None or config.effort is None):
            raise where.missing("content")
        hides = cleared and message.clear_at == "next_user_message"
        place = where.place("content")
        changes = () if isinstance(content, str) else (*_changes(content, place),)
        if not hides:
            self._read(Role.SYSTEM, content, where.where, place)
        for text in self.changes.change(changes, leading=leading):
            self.items.append(place_message(text, Role.SYSTEM))
        if config is not None and config.effort not in (None, self.effort):
            self.effort = config.effort
            self.items.append(place_message(effort_text(str(config.effort)), Role.SYSTEM))

    def _read(self, role: Role, content: str | Sequence[Any], message: str, where: str) -> None:
        if isinstance(content, str):
            blocks = [RequestObject({"type": "text", "text": content}, message)]
        else:
            blocks = [object_at(block, f"{where}[{index}]") for index, block in enumerate(content)]
        said = False
        if sum(block.value.get("type") == COMPACTION for block in blocks) > 1:
            error = blocks[0].wrong("type", "A message has one compaction at most. Leave out the others.")
            error.code = "compaction_block_ambiguous"
            raise error
        for block in sorted(blocks, key=lambda block: block.value.get("type") != "tool_result"):
            type_ = block.text("type")
            read = _READERS[role].get(type_)
            if role is Role.ASSISTANT and type_ in self._reading.tools.views.result_types:
                read = History._server_result
            if read is None:
                known = ", ".join(_READERS[role])
                message = f"There are no such blocks in messages of the role '{role}'. Use one of: {known}."
                error = block.wrong("type", message)
                error.code = "compaction_block_misplaced" if type_ == COMPACTION else None
                raise error
            for piece in read(self, block):
                if isinstance(piece, TextPart | Attachment):
                    self._add_part(role, piece, begin=not said)
                    said = True
                else:
                    self.items.append(piece)
                    said = False
        if not blocks and role is Role.USER:
            raise RequestError(f"Invalid value for '{where}': It may not be empty.", param=where)

    def _add_part(self, role: Role, part: Part, *, begin: bool) -> None:
        """Add a part, to the last message if that is of the same role.

        Messages of the system are not joined, and nothing is joined with a summary.
        """
        last = self.items[-1] if self.items else None
        joins = isinstance(last, Message) and last.role is role and not isinstance(last, SummaryMessage)
        if isinstance(last, Message) and joins and not (begin and role is Role.SYSTEM):
            self.items[-1] = Message(role, (*last.parts, part))
        else:
            self.items.append(Message(role, (part,)))

    # Blocks

    def _compaction(self, block: RequestObject) -> Iterator[Item]:
        """A summary replaces the conversation before it, and the prompt begins anew."""
        compaction = read_compaction(block, self._reading.unseal, self._reading.signer)
        if compaction is None:
            return
        self.items[self._head :] = replaced(self.items[self._head :], compaction.text)
        self.changes.begin_anew()
        self.programs.begin_anew()
        self.first_effort = self.effort
        for _ in self.changes.change(compaction.changes, leading=True):
            pass  # what is added is listed at the head, and what is removed said below
        if removed := self.changes.removed:
            yield place_message(removed_text(sorted(removed)), Role.SYSTEM)

    def _first_compaction(self, block: RequestObject) -> Iterator[Item]:
        """The same, in a message of the user: it has to be the first."""
        if len(self.items) > self._head:
            error = block.wrong("type", "In messages of the user it has to be the first block of the first.")
            error.code = "compaction_block_misplaced"
            raise error
        return self._compaction(block)

    def _text(self, block: RequestObject) -> Iterator[TextPart]:
        text = block.text("text")
        if text:
            yield TextPart(text)

    def _instruction(self, block: RequestObject) -> Iterator[TextPart]:
        text = block.text("text")
        if text.startswith(BILLING):
            text = text.partition("\n")[2]
        if text:
            yield TextPart(text)

    def _document(self, block: RequestObject) -> Iterator[Part]:
        index, self._documents = self._documents, self._documents + 1
        head = [block.text_or_none(name) for name in ("title", "context")]
        if _is_cited(block):
            cited = _citable(block, Heading(index, head[0]), self._reading.files)
            yield TextPart(_tagged("document", *head, self._cite(cited)))
            return
        content = [*_document_parts(block)]
        if all(isinstance(part, TextPart) for part in content):
            yield TextPart(_tagged("document", *head, text_in(content, "\n")))
            return
        yield TextPart("\n".join(("<document>", *filter(None, head))))
        yield from content
        yield TextPart("</document>")

    def _search_result(self, block: RequestObject) -> Iterator[TextPart]:
        index, self._search_results = self._search_results, self._search_results + 1
        title, source = block.text("title"), block.text("source")
        texts = [part.text("text") for part in block.objects("content")]
        if _is_cited(block):
            texts = [self._cite(CitableSearchResult(index, title, source, texts))]
        yield TextPart(_tagged("search_result", title, source, *texts))

    def _cite(self, citable: Citable) -> str:
        """The text that the model is shown."""
        self.citable.append(citable)
        return numbered_text(citable.pieces, len(self.citable) - 1)

    def _thinking(self, block: RequestObject) -> Iterator[Reasoning]:
        """Reasoning. A signature of this server holds the text; with others, the plain text is used."""
        text = block.text("thinking")
        sealed = self._opened(block, "signature")
        if sealed is not None and text not in ("", sealed):
            raise _invalid(block, "signature")
        if sealed or text:
            yield Reasoning(sealed or text)

    def _redacted(self, block: RequestObject) -> Iterator[Reasoning]:
        """Reasoning that this server has sealed. That of other servers cannot be read."""
        block.text("data")  # it is required
        text = self._opened(block, "data")
        if text:
            yield Reasoning(text)

    def _opened(self, block: RequestObject, field: str) -> str | None:
        """The text that this server has sealed in a field; None if another server wrote the field."""
        sealed = block.text_or_none(field) or ""
        text = self._reading.unseal(sealed)
        if text is None and is_sealed(sealed):
            raise _invalid(block, field)
        return text

    def _call(self, block: RequestObject) -> Iterator[FunctionCall]:
        call_id, name = core_id(block.named("id")), block.named("name")
        self._called[call_id] = name
        input_ = block.object_or_none("input")
        if not self.programs.hides_call(block, call_id):
            yield FunctionCall(call_id, name, json_text(input_.value if input_ else None))

    def _result(self, block: RequestObject) -> Iterator[FunctionOutput]:
        call_id = core_id(block.text("tool_use_id"))
        if call_id not in self._called:
            message = f"No message before it has a call with the id '{block.text('tool_use_id')}'."
            raise block.wrong("tool_use_id", message)
        if self.programs.hides_result(block, call_id):
            return
        parts = tuple(self._result_parts(block))
        if block.flag_or_none("is_error"):
            parts = (TextPart("Error:"), *parts)
        yield FunctionOutput(call_id, parts, self._called[call_id])

    def _result_parts(self, block: RequestObject) -> Iterator[Part]:
        content = block.value.get("content")
        if isinstance(content, str):
            yield TextPart(content)
            return
        references = [part for part in block.objects("content") if part.value.get("type") == REFERENCE]
        for part in block.objects("content"):
            if part.value.get("type") == REFERENCE:
                continue
            read = _RESULT_PARTS.get(part.text("type"))
            if read is None:
                raise part.wrong("type", f"Results have: {', '.join(_RESULT_PARTS)}.")
            yield from read(self, part)
        if references:
            yield TextPart(self.changes.found([part.text("tool_name") for part in references]))

    def _image(self, block: RequestObject) -> Iterator[Attachment]:
        yield _sourced(MediaKind.IMAGE, block)

    def _change(self, block: RequestObject) -> Iterator[Item]:
        """Nothing: changes of a message are read together."""
        return iter(())

    def _server_call(self, block: RequestObject) -> Iterator[FunctionCall]:
        tools, call_id = self._reading.tools, core_id(block.named("id"))
        if block.text("name") in SEARCHES:
            call = read_search(block, call_id)
        else:
            call = tools.views.read_call(block, call_id, tools.hosted)
        self._called[call.call_id] = call.name
        if block.value["name"] == CODE:
            self.programs.add_program(block, call)
        yield call

    def _server_result(self, block: RequestObject) -> Iterator[FunctionOutput]:
        call_id = core_id(block.text("tool_use_id"))
        self.programs.end(call_id)
        text = self._found(block) or self._reading.tools.views.read_result(block, self._reading.unseal)
        yield FunctionOutput(call_id, (TextPart(text),), self._called.get(call_id))

    def _found(self, block: RequestObject) -> str | None:
        """The text of what a search for tools has found, or of its error."""
        match block.value.get("content"):
            case {"type": "tool_search_tool_search_result", "tool_references": [*references]}:
                names = [
                    reference.get("tool_name") for reference in references if isinstance(reference, dict)
                ]
                return self.changes.found([name for name in names if isinstance(name, str)])
            case {"type": "tool_search_tool_result_error", "error_message": str(message)}:
                return message
        return None


def _content(message: RequestMessage, where: RequestObject) -> str | list[Any]:
    """The content of a message that is none of the system's. Raises RequestError."""
    for name in ("output_config", "clear_at"):
        if getattr(message, name) is not None:
            raise where.wrong(name, "Only messages of the role 'system' have it.")
    if message.content is None:
        raise where.missing("content")
    return message.content


def _changes(content: Sequence[Any], where: str) -> Iterator[RequestObject]:
    """The blocks that change tools."""
    for index, block in enumerate(content):
        if isinstance(block, dict) and block.get("type") in (ADDITION, REMOVAL):
            yield RequestObject(block, f"{where}[{index}]")


def _is_cited(block: RequestObject) -> bool:
    """Whether it may be cited."""
    citations = block.object_or_none("citations")
    return citations is not None and bool(citations.flag_or_none("enabled"))


def cited_files(messages: Sequence[RequestMessage]) -> Iterator[Attachment]:
    """The files of documents that may be cited: their text has to be known. Raises RequestError."""
    for index, message in enumerate(messages):
        if isinstance(message.content, list):
            for block in _documents(message.content, f"messages[{index}].content"):
                for part in _document_parts(block) if _is_cited(block) else ():
                    if isinstance(part, Attachment) and part.kind is MediaKind.FILE:
                        yield part


def _documents(content: Sequence[Any], where: str) -> Iterator[RequestObject]:
    """The documents among blocks, and in results of tools."""
    for index, value in enumerate(content):
        block = object_at(value, f"{where}[{index}]")
        inner = block.value.get("content")
        if block.value.get("type") == "document":
            yield block
        elif block.value.get("type") == "tool_result" and isinstance(inner, list):
            yield from _documents(inner, block.place("content"))


def _citable(block: RequestObject, heading: Heading, files: Mapping[str, FileText]) -> Citable:
    """A document that may be cited. Raises RequestError."""
    source, file = block.object_or_none("source"), files.get(block.where)
    if file is not None:
        assert source is not None
        text = "".join(file.pages)
        if not text.strip():
            raise block.wrong(
                "citations", "This file has no text: its pages are images. Leave 'citations' out."
            )
        heading = replace(heading, file_id=source.text_or_none("file_id"))
        return PagedDocument(heading, file.pages) if file.paged else text_document(heading, text)
    parts = [*_document_parts(block)]
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    if len(texts) < len(parts):
        message = "Images cannot be cited. Leave them out of the document, or its citations."
        raise RequestObject(block.value["citations"], block.place("citations")).wrong("enabled", message)
    blocks = source is not None and isinstance(source.value.get("content"), list)
    return BlockDocument(heading, texts) if blocks else text_document(heading, "".join(texts))


def _document_parts(block: RequestObject) -> Iterator[Part]:
    """The parts of a document."""
    source = block.object_or_none("source")
    match source.value if source else {}:
        case {"type": "text"}:
            assert source is not None
            yield TextPart(source.text("data"))
        case {"type": "content", "content": str(text)}:
            yield TextPart(text)
        case {"type": "content"}:
            assert source is not None
            for part in source.objects("content"):
                is_image = part.text("type") == "image"
                yield _sourced(MediaKind.IMAGE, part) if is_image else TextPart(part.text("text"))
        case _:
            yield _sourced(MediaKind.FILE, block)


def _sourced(kind: MediaKind, block: RequestObject) -> Attachment:
    """The attachment from the source of a block: base64, a URL or the id of a file."""
    source = block.object_or_none("source")
    if source is None:
        raise block.missing("source")
    match source.text("type"):
        case "base64":
            attachment = in_base64(kind, source, block.where)
        case "url":
            attachment = at_url(kind, source, block.where)
        case "file":
            attachment = stored(kind, source, block.where)
        case _:
            raise source.wrong("type", "Use 'base64', 'url' or 'file'.")
    return attachment


def _tagged(tag: str, *texts: str | None) -> str:
    return "\n".join((f"<{tag}>", *filter(None, texts), f"</{tag}>"))


Reader = Callable[[History, RequestObject], Iterator[Any]]
_CONTEXT: Mapping[str, Reader] = {
    "text": History._text,
    "image": History._image,
    "document": History._document,
    "search_result": History._search_result,
}
_RESULTS = (
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
)
"""The types of Anthropic's blocks with results, also in conversations that began at Anthropic."""
_READERS: Mapping[str, Mapping[str, Reader]] = {
    "system": {"text": History._instruction, ADDITION: History._change, REMOVAL: History._change},
    "user": {**_CONTEXT, "tool_result": History._result, COMPACTION: History._first_compaction},
    "assistant": {
        **_CONTEXT,
        COMPACTION: History._compaction,
        "thinking": History._thinking,
        "redacted_thinking": History._redacted,
        "tool_use": History._call,
        "server_tool_use": History._server_call,
        "mcp_tool_use": History._server_call,
        "mcp_tool_result": History._server_result,
        **dict.fromkeys(_RESULTS, History._server_result),
    },
}
"""Role → type of block → its reader."""
_RESULT_PARTS: Mapping[str, Reader] = {
    **_CONTEXT,
    REFERENCE: History._change,
}
"""The types of content that a result may have."""
