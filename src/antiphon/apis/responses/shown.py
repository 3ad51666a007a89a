"""What of an answer is shown, as the request wants it."""

from msgspec import Struct

from antiphon.apis.responses.output.thoughts import RAW, ThoughtForm


class Shown(Struct, frozen=True):
    """`thoughts` is None to hide them; `sealed` adds them in the form that a client may send back.

    `sources` adds to web searches what they found.
    """

    thoughts: ThoughtForm | None = RAW
    logprobs: bool = False
    sealed: bool = False
    sources: bool = False
