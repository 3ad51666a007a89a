"""Anthropic Messages without HTTP: answers, and how long a prompt is."""

from functools import partial
from time import time

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.apis.envelope import Envelope
from antiphon.apis.messages.accept import MessageContext, accept, prompt_turn
from antiphon.apis.messages.answer import MessageBuilder
from antiphon.apis.messages.citations import FileText
from antiphon.apis.messages.history import cited_files
from antiphon.apis.messages.mcp import rename
from antiphon.apis.messages.resource import OriginalSize, TokenCount
from antiphon.apis.messages.schema import CountTokens, CreateMessage
from antiphon.apis.messages.stream import MessageStream
from antiphon.apis.messages.tool_changes import definitions_in
from antiphon.apis.messages.tools import requested_tools
from antiphon.app.app import App
from antiphon.app.attachments import Contents
from antiphon.app.ids import answer_id
from antiphon.app.journal import CallJournal
from antiphon.core.errors import RequestError
from antiphon.core.observation import observed
from antiphon.run.answer_source import AnswerSource
from antiphon.run.documents import PDF
from antiphon.run.drive import Driver, Projection
from antiphon.run.model import Model
from antiphon.run.replay import ReplayContext
from antiphon.tools.discovery import ToolRequester, client_names

PREFIX = "msg_"


async def create(
    app: App,
    request: CreateMessage,
    owner: str,
    header_id: str | None = None,
    journal: CallJournal | None = None,
) -> Driver:
    """Answer a conversation. Raises RequestError."""
    model = await app.models.model(request.model)
    contents = app.contents(owner)
    reading = await context_of(app, model, request, owner, contents)
    accepted = await app.large.run_on_items(request.messages, lambda: accept(request, reading))
    if forced := app.notes_on_forced(model, accepted.turn):
        presentation = accepted.presentation
        tools = replace(presentation.tools, notes=(*presentation.tools.notes, *forced))
        accepted = replace(accepted, presentation=replace(presentation, tools=tools))
    app.log_notes(accepted.presentation.tools.notes)
    observed().answer = answer = answer_id(PREFIX, request.request_id, header_id)
    envelope = Envelope(answer, request.model, int(time()))
    kind = MessageStream if request.stream else MessageBuilder
    projection: Projection = kind(envelope, accepted.presentation, app.seal(owner))
    context = ReplayContext(calls_begun=journal.calls_begun if journal else 0)
    source = AnswerSource([await app.attached(model, accepted.turn, contents)], model, context)
    return app.driver(source, projection, journal, seconds=request.deadline_seconds)


async def count_tokens(app: App, request: CountTokens, owner: str) -> TokenCount:
    """The number of tokens of a request's prompt, without a limit. Raises RequestError."""
    model = await app.models.model(request.model)
    contents = app.contents(owner)
    reading = await context_of(app, model, request, owner, contents)
    turn = await app.large.run_on_items(request.messages, lambda: prompt_turn(request, reading))
    size = await model.count(await app.attached(model, turn, contents))
    edited = UNSET if request.context_management is None else OriginalSize(size.tokens)
    return TokenCount(size.tokens, size.estimated or UNSET, edited)


async def context_of(
    app: App, model: Model, request: CountTokens, owner: str, contents: Contents
) -> MessageContext:
    """The server's part of a request. Raises RequestError, ToolError."""
    inline = {definition.where: definition.tool for definition in definitions_in(request.messages)}
    requested = requested_tools(
        request.tools, request.mcp_servers, model.tools, app.toolkits.message_views, inline
    )
    try:
        hosts = await app.hosts(model, requested, ToolRequester(owner, names=client_names(request.tools)))
    except RequestError as error:
        raise rename(error) from error
    cited = [*cited_files(request.messages)]
    documents = await app.attachments.documents(cited, contents, "messages")
    files = {
        file.param: FileText(document.pages, document.media_type == PDF)
        for file, document in zip(cited, documents, strict=True)
    }
    unseal = partial(app.sealer.unseal, owner)
    return MessageContext(owner, hosts, unseal, files, app.toolkits.message_views, model.card.context)
