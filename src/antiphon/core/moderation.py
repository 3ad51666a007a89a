"""Moderation: what a guard model says of a text, and what is to be done with texts that it flags."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from antiphon.core.errors import EngineError, RequestError

CATEGORIES = (
    *("harassment", "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent"),
    *("self-harm", "self-harm/instructions", "self-harm/intent", "sexual", "sexual/minors"),
    *("violence", "violence/graphic"),
)
"""OpenAI's categories."""


class ModerationMode(StrEnum):
    """What is done with a text that the guard flags."""

    SCORE = "score"
    """It is said."""
    BLOCK = "block"
    """The text goes no further: neither to the model, nor to the client."""


class ModerationPolicy(Struct, frozen=True):
    """The mode for what a request says, and for what is answered."""

    input: ModerationMode = ModerationMode.SCORE
    output: ModerationMode = ModerationMode.SCORE


class GuardVerdict(Struct, frozen=True):
    """What a guard says of a text: the score of each category, in [0, 1], and which of them are flagged.

    Categories are OpenAI's and the guard's own; those that are missing were not asked about. `read`: scores
    are probabilities that were read; else they are 0, 1, or 0.5 for "perhaps", by what the guard has written.
    """

    flagged: bool = False
    scores: Mapping[str, float] = {}
    categories: Mapping[str, bool] = {}
    read: bool = True


class GuardFailure(Struct, frozen=True):
    """Why there is no verdict."""

    code: str
    message: str


GuardOutcome = GuardVerdict | GuardFailure


class ModerationResult(Struct, frozen=True):
    """What the guard of this name says of a request, and of each of its answers."""

    model: str
    input: GuardOutcome
    outputs: tuple[GuardOutcome, ...]


class ModerationBlockedError(RequestError):
    """The guard model of this server flags the request, which asks to be blocked then. Change its text."""

    code = "moderation_blocked"


class ModerationFailedError(EngineError):
    """The guard model could not check the text, so it is held back, as the request asks. Try again."""

    status = 503
    code = "moderation_failed"


def merged(verdicts: Sequence[GuardVerdict]) -> GuardVerdict:
    """The verdict on a text from those on its parts: of each category the highest score."""
    scores: dict[str, float] = {}
    categories: dict[str, bool] = {}
    for verdict in verdicts:
        for name, score in verdict.scores.items():
            scores[name] = max(score, scores.get(name, 0.0))
        for name, flagged in verdict.categories.items():
            categories[name] = flagged or categories.get(name, False)
    flagged = any(verdict.flagged for verdict in verdicts)
    return GuardVerdict(flagged, scores, categories, all(verdict.read for verdict in verdicts))
