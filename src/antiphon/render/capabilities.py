"""The features that a chat template supports, and the forms that it needs; `probe` determines them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from antiphon.core.items import MediaKind


class ArgumentFormat(StrEnum):
    """The type that a template requires for the arguments of an earlier call."""

    OBJECT = "object"  # an object and nothing else
    ANY = "any"  # an object, or the raw string where the arguments do not parse
    TEXT = "text"  # a string of JSON


class TemplateCapabilities(Struct, frozen=True):
    """The features of a template. The defaults are those of a template that supports everything."""

    content_parts: bool = False
    """Content must be a list of parts, `[{"type": "text", "text": …}]`, not a string."""
    system: bool = True
    """A system message at the start is rendered."""
    later_system: bool = True
    """Later system messages are rendered in their places."""
    developer: bool = True
    """The developer role is known, rather than printed like any unknown role; and rendered anywhere."""
    alternating_roles: bool = False
    """Consecutive messages of one role are an error or lost, so they must be merged."""
    user_first: bool = False
    """After system messages, the first message must be the user's."""
    answer_after_results: bool = False
    """Between a tool's result and the user's next message, there must be an assistant message."""
    tools: bool = True
    """The functions that the model may call are rendered."""
    tools_undefined: bool = False
    """Without tools, the variable `tools` must not exist, rather than be None."""
    calls: bool = True
    """Earlier calls are rendered."""
    results: bool = True
    """Results of earlier calls, messages of the role `tool`, are rendered."""
    parallel_calls: bool = True
    """One message may have several calls."""
    text_with_calls: bool = True
    """A message that has calls may have text too, also after reasoning."""
    arguments: ArgumentFormat = ArgumentFormat.ANY
    """How arguments of earlier calls must be given."""
    content_required: bool = False
    """A message of the assistant that has no calls must have text."""
    reasoning_required: bool = False
    """A message of the assistant must have reasoning, possibly empty."""
    null_content: bool = False
    """A message that has calls and no text must have the content None, not ""."""
    short_ids: bool = False
    """Ids of calls must be nine letters or digits."""
    reasoning: bool = True
    """The model's reasoning is rendered, at least in the newest turn."""
    kept_reasoning: Mapping[str, Any] | None = None
    """The variables with which the reasoning of earlier turns is rendered; None if it never is."""
    efforts: Mapping[str, str] = {}
    """The reasoning efforts that it does not take → the nearest that it takes."""
    media: Mapping[MediaKind, str] = {}
    """The placeholders that are rendered for parts of these kinds. Others are written into the text."""
    media_in_results: bool = True
    """They are rendered in results, too."""
