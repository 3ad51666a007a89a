"""What a chat template can do: see `probe` for how that is found."""

from enum import StrEnum

from msgspec import Struct


class Arguments(StrEnum):
    """What a template takes as the arguments of an earlier call."""

    OBJECT = "object"  # an object and nothing else
    ANY = "any"  # an object, and a string too where there is no object
    TEXT = "text"  # a string of JSON


class Traits(Struct, frozen=True):
    """What a template can do. The defaults are those of a template that can do everything."""

    parts: bool = False
    """Content must be a list of parts, `[{"type": "text", "text": …}]`, not a string."""
    system: bool = True
    """A system message at the start is shown."""
    later_system: bool = True
    """Further system messages are shown, wherever they are."""
    developer: bool = True
    """The developer role is not just printed, but known; and shown wherever it is."""
    merged: bool = False
    """Messages of one role in a row are an error or lost, so they must be merged."""
    user_first: bool = False
    """After system messages, a user must speak first."""
    closed_results: bool = False
    """Between a tool's result and the user's next message, the assistant must speak."""
    tools: bool = True
    """The functions that the model may call are shown."""
    tools_absent: bool = False
    """Without tools, the variable `tools` must not exist, rather than be None."""
    calls: bool = True
    """Earlier calls are shown."""
    results: bool = True
    """Results of earlier calls, messages of the role `tool`, are shown."""
    parallel: bool = True
    """One message may have several calls."""
    text_with_calls: bool = True
    """A message that has calls may say something too, also after a thought."""
    arguments: Arguments = Arguments.ANY
    """How arguments of earlier calls must be given."""
    filled: bool = False
    """A message of the assistant that has no calls must say something."""
    thoughtful: bool = False
    """A message of the assistant must have a thought, if an empty one."""
    null_content: bool = False
    """A message that has calls and says nothing must have the content None, not ""."""
    short_ids: bool = False
    """Ids of calls must be nine letters or digits."""
    reasoning: bool = True
    """What the model thought is shown, at least in the newest turn."""
