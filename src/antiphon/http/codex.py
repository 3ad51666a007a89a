"""Models as Codex reads them from GET /v1/models?client_version=…: what each takes, and how much it reads.

Codex knows the models of OpenAI. Of any other it supposes a context that is not the model's, and warns of it.
It takes an entry only with `base_instructions`, the text with which it begins each conversation. No server
knows that of itself: the operator says it (`--codex-instructions`), or `antiphon launch codex` asks Codex.

Source: what "codex debug models" prints, and which entries Codex 0.169 takes in a file. Fields that only
older releases need are here, too.
"""

from collections.abc import Iterable, Iterator

from msgspec import UNSET, Struct, UnsetType

from antiphon.core.items import MediaKind
from antiphon.engines.engine import Task
from antiphon.run.models import ModelEntry

OUTPUT_BYTES = 10_000
"""Bytes of the output of a command that Codex shows a model, as for one that it does not know."""
USABLE_PERCENT = 95
"""How much of the context Codex takes for usable: its own number. From 90 % on it summarises."""


class TruncationPolicy(Struct, frozen=True):
    """How much of the output of a command is shown to the model."""

    mode: str = "bytes"
    limit: int = OUTPUT_BYTES


class CodexModel(Struct, kw_only=True):
    """A model in Codex's catalogue; `context_window` is in tokens, and null before the model was loaded.

    `name`, `description` and `release_date` are for System One's clients, who read the same list.
    """

    name: str
    description: str
    release_date: str
    slug: str
    display_name: str
    base_instructions: str | UnsetType = UNSET
    context_window: int | None
    max_context_window: int | None
    effective_context_window_percent: int = USABLE_PERCENT
    auto_compact_token_limit: int | None = None
    input_modalities: list[str]
    default_reasoning_level: str | None = None
    supported_reasoning_levels: tuple[str, ...] = ()
    """None is named: all are taken, and which of them a template tells apart is known once it is loaded."""
    supports_reasoning_summaries: bool = True
    default_reasoning_summary: str = "auto"
    support_verbosity: bool = False
    default_verbosity: str | None = None
    supports_parallel_tool_calls: bool = True
    supports_search_tool: bool = True
    apply_patch_tool_type: str = "freeform"
    web_search_tool_type: str = "text"
    experimental_supported_tools: tuple[str, ...] = ()
    supports_image_detail_original: bool = False
    shell_type: str = "default"
    truncation_policy: TruncationPolicy = TruncationPolicy()
    visibility: str = "list"
    supported_in_api: bool = True
    priority: int
    upgrade: str | None = None
    availability_nux: str | None = None


def codex_models(told: Iterable[tuple[ModelEntry, str]], instructions: str | None) -> Iterator[CodexModel]:
    """Those of the models that write answers, in their order. Each comes with its date, as YYYY-MM-DD."""
    for priority, (entry, date) in enumerate(told):
        card = entry.card
        if card is not None and Task.GENERATE not in card.capabilities.tasks:
            continue
        context = None if card is None else card.context or None
        images = card is not None and MediaKind.IMAGE in card.capabilities.media
        yield CodexModel(
            name=entry.name,
            description=f"{entry.name}, served by Antiphon.",
            release_date=date,
            slug=entry.name,
            display_name=entry.name,
            base_instructions=UNSET if instructions is None else instructions,
            context_window=context,
            max_context_window=context,
            input_modalities=["text", "image"] if images else ["text"],
            priority=priority,
        )
