"""TabbyAPI: its `/v1/completions` takes text, and has many samplers; see its columns in `samplers.py`.

It runs ExLlamaV3; versions before 2026 run ExLlamaV2, which has other samplers. A field that a version does
not know, or that its backend does not have, it takes without effect. So the server's own document,
`/openapi.json`, tells which fields it has, and fields that are newer than that are refused here. A version
that has both backends does not tell which one runs the model: it counts as ExLlamaV3, unless the kind is
configured.

Its answers have the texts of tokens, and no ids. Grammars are enforced from the first token on.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from antiphon.core.constraint import Constraint, Gbnf, WholePattern, WholeSchema
from antiphon.engines.engine import ModelCard
from antiphon.engines.http_client import HttpClient, HttpError
from antiphon.engines.samplers import sent_names
from antiphon.engines.upstreams.completions import (
    CompletionsServer,
    Flavour,
    is_owned_by,
    listed_model,
    read_model,
)
from antiphon.engines.upstreams.kind import Answers, UpstreamSettings, unreachable
from antiphon.engines.upstreams.tokenizers import EstimatedTokens

OWNER = "tabbyapi"

EXLLAMAV3 = Flavour("tabbyapi", "tabbyapi", special=True, constraints=(Gbnf,), triggers=False)
EXLLAMAV2 = Flavour(
    "tabbyapi-exllamav2", "tabbyapi-exllamav2", special=True, constraints=(WholeSchema, WholePattern)
)

FORMATS: Mapping[type[Constraint], str] = {WholeSchema: "json_schema", WholePattern: "regex_pattern"}
"""The fields with which ExLlamaV2 is given a form."""

DOCUMENT = "/openapi.json"

NEWER = "dry_penalty_last_n"
"""A field that came with the last of these samplers: the backend has them only if the document has it."""

SINCE = frozenset(
    {
        *("xtc_probability", "xtc_threshold", "logit_bias", "banned_tokens", "min_tokens", "token_healing"),
        *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    }
)
"""Fields that ExLlamaV2 had, too: older documents have them, and ExLlamaV3 did not."""

UNTOLD = frozenset({"adaptive_target", "adaptive_decay", "loop_detect_window", "logprobs"})
"""Further ones that are not counted on if there is no document."""


async def recognise(
    client: HttpClient, answers: Answers, settings: UpstreamSettings
) -> CompletionsServer | None:
    """The server, if it is TabbyAPI, with ExLlamaV3."""
    model = listed_model(answers, settings)
    if model is None or not (settings.kind or is_owned_by(model, OWNER)):
        return None
    schemas = await _schemas(client)
    if not settings.kind and _has_only_exllamav2(schemas):
        return None
    return await _server(EXLLAMAV3, model, answers, settings, schemas)


async def recognise_exllamav2(
    client: HttpClient, answers: Answers, settings: UpstreamSettings
) -> CompletionsServer | None:
    """The server, if it is a TabbyAPI with ExLlamaV2."""
    model = listed_model(answers, settings)
    if model is None or not (settings.kind or is_owned_by(model, OWNER)):
        return None
    return await _server(EXLLAMAV2, model, answers, settings, await _schemas(client))


async def _schemas(client: HttpClient) -> Mapping[str, Mapping[str, Any]]:
    """The fields of its requests: name of the type → name of the field → JSON Schema; empty if untold."""
    try:
        response = await client.request("GET", DOCUMENT)
    except HttpError as error:
        raise unreachable(error) from error
    document = response.json() if response.status == 200 else None
    schemas = document["components"]["schemas"] if isinstance(document, dict) else {}
    return {name: schema.get("properties") or {} for name, schema in schemas.items()}


def _has_only_exllamav2(schemas: Mapping[str, Mapping[str, Any]]) -> bool:
    """CFG is ExLlamaV2's; versions with both backends load a model with one of them."""
    fields = schemas.get("CompletionRequest", {})
    return "cfg_scale" in fields and "backend" not in schemas.get("ModelLoadRequest", {})


async def _server(
    flavour: Flavour,
    model: Mapping[str, Any],
    answers: Answers,
    settings: UpstreamSettings,
    schemas: Mapping[str, Mapping[str, Any]],
) -> CompletionsServer:
    card, slots, tokenizer = await read_model(flavour, model, answers, settings, EstimatedTokens())
    card = _with_fields(_with_template(card, model), flavour, schemas.get("CompletionRequest", {}))
    return CompletionsServer(flavour, model["id"], card, slots, tokenizer)


def _with_template(card: ModelCard, model: Mapping[str, Any]) -> ModelCard:
    """The card with the template that the server tells, if no other is known.

    One that writes the end token is not used: the server does not tell that token.
    """
    template = (model.get("parameters") or {}).get("prompt_template_content")
    if card.chat_template is not None or not isinstance(template, str) or "eos_token" in template:
        return card
    return replace(card, chat_template=template)


def _takes(kind: type[Constraint], fields: Mapping[str, Any]) -> bool:
    """Whether a version with these fields enforces this kind of constraint. Older grammars were no GBNF."""
    if kind is Gbnf:
        return "GBNF" in str((fields.get("grammar_string") or {}).get("description"))
    return FORMATS[kind] in fields


def _with_fields(card: ModelCard, flavour: Flavour, fields: Mapping[str, Any]) -> ModelCard:
    """The card, with the features that this version has."""
    able = card.capabilities
    missing: set[str] = set()
    if fields:
        missing = {field for field in able.sampling if not sent_names(flavour.column, field) <= fields.keys()}
    elif flavour is EXLLAMAV3:
        missing = {*UNTOLD}
    if flavour is EXLLAMAV3 and NEWER not in fields:
        missing |= SINCE
    constraints = tuple(kind for kind in able.constraints if _takes(kind, fields))
    capabilities = replace(able, sampling=able.sampling - missing, constraints=constraints)
    return replace(card, capabilities=capabilities)
