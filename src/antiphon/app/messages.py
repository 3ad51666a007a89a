"""Anthropic Messages without HTTP: answers, and how long a prompt is."""

from functools import partial

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.apis.envelope import Envelope
from antiphon.apis.messages.accept import AcceptedMessage, MessageContext, accept, accept_prompt
from antiphon.apis.messages.answer import MessageBuilder
from antiphon.apis.messages.citations import FileText
from antiphon.apis.messages.diagnostics import compares_with, request_parts
from antiphon.apis.messages.history import cited_files
from antiphon.apis.messages.mcp import rename
from antiphon.apis.messages.resource import CompactionBlock, OriginalSize, TokenCount
from antiphon.apis.messages.schema import CountTokens, CreateMessage, RequestMessage
from antiphon.apis.messages.stream import MessageStream
from antiphon.apis.messages.tool_changes import definitions_in
from antiphon.apis.messages.tools import requested_tools
from antiphon.apis.summaries import summary_turn
from antiphon.app.app import App
from antiphon.app.attachments import Contents
from antiphon.app.cache_traces import Diagnosis, earlier_trace
from antiphon.app.ids import answer_id, created_now
from antiphon.app.journal import CallJournal
from antiphon.app.message_context import ManagedSource, Summarising, as_sent
from antiphon.core.errors import RequestError
from antiphon.core.observation import observed
from antiphon.core.turn import Turn
from antiphon.run.answer_source import AnswerSource
from antiphon.run.context_edits import edited
from antiphon.run.documents import PDF
from antiphon.run.drive import Driver, Source
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
    accepted, parts = await app.large.run_on_items(
        request.messages, lambda: (accept(request, reading), request_parts(request))
    )
    if forced := app.notes_on_forced(model, accepted.turn):
        presentation = accepted.presentation
        tools = replace(presentation.tools, notes=(*presentation.tools.notes, *forced))
        accepted = replace(accepted, presentation=replace(presentation, tools=tools))
    app.log_notes(accepted.presentation.tools.notes)
    observed().answer = answer = answer_id(PREFIX, request.request_id, header_id)
    envelope = Envelope(answer, request.model, int(created_now()))
    kind: type[MessageStream | MessageBuilder] = MessageStream if request.stream else MessageBuilder
    projection = kind(envelope, accepted.presentation, app.seal(owner))
    earlier = await earlier_trace(app.traces, owner, compares_with(request))
    projection.blocks.diagnose = Diagnosis(app.traces, owner, answer, parts, earlier)
    context = ReplayContext(calls_begun=journal.calls_begun if journal else 0)
    app.limits.check("programs", len(accepted.turn.unfinished), "messages")
    turn = replace(await app.attached(model, accepted.turn, contents), created_at=envelope.created)
    source: Source = AnswerSource([turn], model, context)
    if (plan := accepted.presentation.context).acts:

        async def read_after(block: CompactionBlock) -> Turn:
            after = await app.large.run_on_items(request.messages, lambda: _after(request, reading, block))
            return replace(await app.attached(model, after.turn, contents), created_at=envelope.created)

        summarising = Summarising(app.seal(owner), app.signer(owner), accepted.changes, read_after)
        source = ManagedSource(turn, plan, model, projection, context, summarising)
    return app.driver(source, projection, journal, seconds=request.deadline_seconds)


def _after(request: CreateMessage, reading: MessageContext, block: CompactionBlock) -> AcceptedMessage:
    """The request with a summary of its conversation, as the client will send it."""
    said = RequestMessage(role="assistant", content=[as_sent(block)])
    return accept(replace(request, messages=[*request.messages, said]), reading)


async def count_tokens(app: App, request: CountTokens, owner: str) -> TokenCount:
    """The number of tokens of a request's prompt, without a limit. Raises RequestError."""
    model = await app.models.model(request.model)
    contents = app.contents(owner)
    reading = await context_of(app, model, request, owner, contents)
    turn, plan = await app.large.run_on_items(request.messages, lambda: accept_prompt(request, reading))
    turn = await app.attached(model, turn, contents)
    if plan.summarises is not None:
        turn = summary_turn(turn, plan.summarises)
    size = await model.count(turn)
    if request.context_management is None:
        return TokenCount(size.tokens, size.estimated or UNSET)
    applied = (await edited(turn, plan.edits, model)).applied
    left = size.tokens - sum(edit.tokens for edit in applied)
    return TokenCount(left, size.estimated or UNSET, OriginalSize(size.tokens))


async def context_of(
    app: App, model: Model, request: CountTokens, owner: str, contents: Contents
) -> MessageContext:
    """The server's part of a request. Raises RequestError, ToolError."""
    inline = {definition.where: definition.tool for definition in definitions_in(request.messages)}
    requested = requested_tools(
        request.tools, request.mcp_servers, model.tools, app.toolkits.message_views, inline
    )
    try:
        hosts = await app.hosts(
            model, requested, ToolRequester(owner, names=client_names(request.tools), programs=True)
        )
    except RequestError as error:
        raise rename(error) from error
    cited = [*cited_files(request.messages)]
    documents = await app.attachments.documents(cited, contents, "messages")
    files = {
        file.param: FileText(document.pages, document.media_type == PDF)
        for file, document in zip(cited, documents, strict=True)
    }
    return MessageContext(
        owner,
        hosts,
        partial(app.sealer.unseal, owner),
        app.signer(owner),
        files,
        app.toolkits.message_views,
        model.card.context,
        model.traits.kept_reasoning,
    )
