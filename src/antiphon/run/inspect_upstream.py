"""The report of `antiphon inspect` on a URL: the kind of the server, its models and its features."""

import asyncio
from collections.abc import Iterator, Mapping

from msgspec import Struct

from antiphon.core.constraint import Gbnf, StructuralTag, WholePattern, WholeSchema
from antiphon.core.turn import Sampling
from antiphon.dialects.detection.detect import OVERRIDE, detect
from antiphon.engines.engine import ModelCard
from antiphon.engines.upstream import Options, card_of, client_of, recognised_server
from antiphon.engines.upstreams.kind import ChatServer, UpstreamServer
from antiphon.engines.upstreams.tasks import tasks_of
from antiphon.run.constraints import WIRE_NAMES
from antiphon.run.inspect import table
from antiphon.run.loading import evidence_of

_NOTATIONS = {Gbnf: "as a grammar (GBNF)", StructuralTag: "as a structural tag"}
_OWN_WORDS = {WholeSchema: "JSON Schemas", WholePattern: "regular expressions"}


class Feature(Struct, frozen=True):
    """The state of a feature: it `works`, is `refused`, `degraded`, or `missing`; and how."""

    name: str
    state: str
    how: str


class UpstreamReport(Struct, frozen=True):
    """All findings."""

    url: str
    kind: str
    model: str
    context: int
    slots: int
    tasks: tuple[str, ...]
    """Those that it does: with `--task`, only this one."""
    possible_tasks: tuple[str, ...]
    """Those that servers of its kind may do, and of which it does not say whether it does."""
    chat_template: bool
    dialect: str
    reason: str
    features: tuple[Feature, ...]
    override: str | None


def inspect_upstream(options: Options) -> UpstreamReport:
    """Examine the server. Raises EngineError if it cannot be reached, or is of no known kind."""
    return asyncio.run(_inspect(options))


async def _inspect(options: Options) -> UpstreamReport:
    client = client_of(options)
    try:
        server = await recognised_server(options, client)
        found = await tasks_of(client, server)
    finally:
        client.close()
    card = card_of(server, options.task)
    chats = card.capabilities.chat
    dialect, reason = ("none", "the server reads and writes it") if chats else _dialect(card)
    return UpstreamReport(
        url=options.model,
        kind=server.kind,
        model=card.name,
        context=card.context,
        slots=server.slots,
        tasks=tuple(sorted(task for task in card.capabilities.tasks if found[task])),
        possible_tasks=tuple(sorted(task for task in card.capabilities.tasks if found[task] is None)),
        chat_template=card.chat_template is not None,
        dialect=dialect,
        reason=reason,
        features=tuple(features_of(server)),
        override=None if chats else OVERRIDE,
    )


def _dialect(card: ModelCard) -> tuple[str, str]:
    """The dialect that fits, and why."""
    detection = detect(evidence_of(card, card.chat_template or card.conversation_template))
    return detection.name, detection.reason


def features_of(server: UpstreamServer) -> Iterator[Feature]:
    """The consequences of what the server supports, and of what it does not."""
    card = server.card
    if isinstance(server, ChatServer):
        yield from _chat(server)
    else:
        yield _template(card)
        yield from _tokens(card)
        yield _constraints(card)
    yield _media(card)
    able = card.capabilities.sampling
    for name in Sampling.__struct_fields__:
        wire = WIRE_NAMES.get(name, name)
        yield Feature(wire, "works", "passed on") if name in able else Feature(wire, "refused", "by its name")


def _chat(server: ChatServer) -> Iterator[Feature]:
    """The consequences for conversations, and for everything that needs tokens."""
    yield Feature(
        "conversations", "works", "sent as messages: the template and the tokens are those of the server"
    )
    yield Feature("tools", "works", "passed on; which may be called, and how many, is also checked here")
    yield Feature("raw prompts", "refused", "/v1/completions, prefixes and continued messages")
    yield Feature("token ids", "refused", "/tokenize and /detokenize; log probabilities have none")
    yield Feature("stop", "works", "found here; then the usage is an estimate")
    yield Feature("usage", "works", "as the server says; estimated if it does not")
    yield Feature("counted tokens", "degraded", "estimated, and marked so")
    shortened = "degraded", "by an estimate"
    unknown = "refused", "the context is not known: --context"
    yield Feature("truncation", *(shortened if server.card.context else unknown))
    for name, how in server.parameter_support.items():
        yield Feature(name, "works", how) if how else Feature(name, "refused", "by its name")
    yield Feature("interrupted answers", "degraded", "continue after a call of a server tool; else they fail")


def _media(card: ModelCard) -> Feature:
    able = card.capabilities
    if able.media:
        return Feature("media", "works", ", ".join(sorted(able.media)))
    return Feature("media", "refused", able.media_remedy or "by the place of the part")


def _template(card: ModelCard) -> Feature:
    if card.chat_template is not None:
        return Feature("chat template", "works", "the model's own")
    return Feature("chat template", "missing", "give one with --chat-template or --tokenizer")


def _tokens(card: ModelCard) -> Iterator[Feature]:
    if card.capabilities.token_ids:
        yield Feature("prompts", "works", "sent as tokens: what clients write never becomes a special token")
        yield Feature("token ids", "works", "the server's own, exactly")
        yield Feature("usage", "works", "counted")
    else:
        spelled = "sent as text: a special token that a client writes becomes one"
        yield Feature("prompts", "degraded", spelled)
        yield Feature("token ids", "degraded", "answers have none")
        yield Feature(
            "usage", "degraded", "prompts are estimated without --tokenizer; answers, if not reported"
        )


def _constraints(card: ModelCard) -> Feature:
    kinds = card.capabilities.constraints
    if kinds and kinds[0] in _NOTATIONS:
        return Feature("structured output and tool choice", "works", f"enforced {_NOTATIONS[kinds[0]]}")
    how = "checked afterwards, and listed in `unmet`"
    if kinds:
        what = " and ".join(_OWN_WORDS[kind] for kind in kinds)
        how += f"; {what} are sent to the server where an answer has nothing else"
    return Feature("structured output and tool choice", "degraded", how)


def lines(report: UpstreamReport) -> Iterator[str]:
    """The report as text."""
    facts: Mapping[str, str | None] = {
        "url": report.url,
        "kind": report.kind,
        "model": report.model,
        "context": f"{report.context} tokens" if report.context else "unknown",
        "parallel": f"{report.slots} answers at a time",
        "tasks": ", ".join((*report.tasks, *(f"perhaps {task}" for task in report.possible_tasks))) or "none",
        "dialect": report.dialect,
        "reason": report.reason,
        "override": report.override,
    }
    yield from (f"{name.ljust(8)}  {value}" for name, value in facts.items() if value is not None)
    yield ""
    rows = ((feature.name, feature.state, feature.how) for feature in report.features)
    yield from table(("feature", "here it", "how"), rows)
