"""Calibration: temperatures that make probabilities say how often they are right.

A temperature per kind of question is fitted on cases whose answers are known: it is the one with the least
log loss. Whatever it is, the order of the options by probability stays, and so does nearly every answer. The
temperatures hold for one model, in one quantization, and one version of prompts; a file of them names all.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from antiphon.core.decision import QuestionKind
from antiphon.core.errors import EngineError

LOWEST, HIGHEST = 0.05, 20.0
"""The bounds of a temperature."""
STEPS = 60
"""The steps of the search, each of which leaves 62 % of the interval."""
BINS = 10
"""The bins of probability in which predictions are compared with answers."""
LEAST = 1e-12
"""The least probability in a log loss: a certain mistake must not make it infinite."""


class Calibration(Struct, frozen=True):
    """The temperatures of a model, by kind of question; 1 for a kind without one.

    `name` is that of its file. `model` is the model's own name, and `known_as` what else its file says of
    it: both are None, as is `prompt_version`, in a file that holds for any. `prefills` are those of its
    prompts, `cases` the number of cases of each kind.
    """

    name: str
    temperatures: Mapping[QuestionKind, float]
    model: str | None = None
    known_as: tuple[str, ...] | None = None
    prompt_version: str | None = None
    prefills: Mapping[QuestionKind, str] = {}
    cases: Mapping[QuestionKind, int] = {}

    def check(self, model: str, known_as: Sequence[str]) -> None:
        """Raise EngineError if it is another model's."""
        if self.model not in (None, model):
            message = f"The calibration {self.name} is for the model {self.model}, and this is {model}. "
            raise EngineError(message + "Make one for it: antiphon calibrate.")
        if self.known_as is not None and tuple(known_as) != self.known_as:
            message = f"The calibration {self.name} is for another file of the model {model}: "
            raise EngineError(message + f"{', '.join(self.known_as)}. Make one for this: antiphon calibrate.")

    def check_version(self, version: str) -> None:
        """Raise EngineError if it is for prompts of another version."""
        if self.prompt_version not in (None, version):
            message = f"The calibration {self.name} is for prompts of the version {self.prompt_version}, "
            message += f"and those of this model have the version {version}. "
            raise EngineError(message + "Make it again: antiphon calibrate.")


class _DecisionFile(Struct):
    """The file `decision.json` of a model of the library transformers, as far as it is used."""

    temperature: dict[str, float] = {}


_TRANSFORMERS = "decision.json"
_KINDS = {"choice": QuestionKind.CHOICE, "score": QuestionKind.SCORE, "noul": QuestionKind.PREDICATE}


def read_calibration(path: Path) -> Calibration:
    """The calibration in a file, also in a `decision.json` of transformers. Raises EngineError."""
    try:
        content = path.read_bytes()
        if path.name == _TRANSFORMERS:
            given = msgspec.json.decode(content, type=_DecisionFile).temperature
            named = {_KINDS[kind]: value for kind, value in given.items() if kind in _KINDS}
            calibration = Calibration(path.name, named)
        else:
            calibration = msgspec.json.decode(content, type=Calibration)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or str(error)
        raise EngineError(f"Cannot read the calibration {path}: {why}.") from error
    for kind, temperature in calibration.temperatures.items():
        if not LOWEST <= temperature <= HIGHEST:
            message = f"The calibration {path} has the temperature {temperature:g} for {kind}. "
            raise EngineError(message + f"It must be from {LOWEST:g} to {HIGHEST:g}.")
    return calibration


def calibration_text(calibration: Calibration) -> str:
    """The text of its file."""
    return msgspec.json.format(msgspec.json.encode(calibration)).decode() + "\n"


def fit(loss: Callable[[float], float]) -> float:
    """The temperature with the least loss, found by golden sections of its logarithm."""
    ratio = (math.sqrt(5) - 1) / 2
    low, high = math.log(LOWEST), math.log(HIGHEST)
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = loss(math.exp(left)), loss(math.exp(right))
    for _ in range(STEPS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = loss(math.exp(left))
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = loss(math.exp(right))
    return min(HIGHEST, max(LOWEST, math.exp((low + high) / 2)))


class Prediction(Struct, frozen=True):
    """The probabilities of the options of a case, and the index of the right one."""

    probabilities: tuple[float, ...]
    right: int

    @property
    def confidence(self) -> float:
        """The probability of the likeliest option."""
        return max(self.probabilities)

    @property
    def is_right(self) -> bool:
        """The likeliest option is the right one."""
        return self.probabilities.index(self.confidence) == self.right


def log_loss(predictions: Sequence[Prediction]) -> float:
    """The mean of the negative log probability of the right option. The less the better."""
    return -math.fsum(
        math.log(max(LEAST, prediction.probabilities[prediction.right])) for prediction in predictions
    ) / len(predictions)


def accuracy(predictions: Sequence[Prediction]) -> float:
    """The share of predictions whose likeliest option is the right one."""
    return sum(prediction.is_right for prediction in predictions) / len(predictions)


class Bin(Struct, frozen=True):
    """Predictions whose probability is about the same: how many, its mean, and how many of them are right."""

    count: int
    confidence: float
    accuracy: float


def reliability(predictions: Sequence[Prediction]) -> tuple[Bin, ...]:
    """The bins of predictions by the probability of the likeliest option, from 0 to 1."""
    members: list[list[Prediction]] = [[] for _ in range(BINS)]
    for prediction in predictions:
        members[min(BINS - 1, int(prediction.confidence * BINS))].append(prediction)
    return tuple(
        Bin(len(some), sum(one.confidence for one in some) / len(some), accuracy(some))
        if some
        else Bin(0, 0.0, 0.0)
        for some in members
    )


def calibration_error(predictions: Sequence[Prediction]) -> float:
    """The expected calibration error: how far probability and accuracy are apart, on average."""
    return math.fsum(
        bin_.count * abs(bin_.confidence - bin_.accuracy) for bin_ in reliability(predictions)
    ) / len(predictions)


WIDTH = 40
"""The characters of a bar in the terminal."""


def plot(bins: Sequence[Bin]) -> Iterator[str]:
    """Lines for a terminal: for each bin a bar of the accuracy, and a mark at the probability."""
    yield f"{'probability':>11}  {'cases':>5}  right"
    for number, bin_ in enumerate(bins):
        if bin_.count:
            bar = ["█" if place < round(bin_.accuracy * WIDTH) else "·" for place in range(WIDTH)]
            bar[min(WIDTH - 1, int(bin_.confidence * WIDTH))] = "|"
            name = f"{number / len(bins):.1f} to {(number + 1) / len(bins):.1f}"
            yield f"{name:>11}  {bin_.count:>5}  {''.join(bar)} {bin_.accuracy:.2f}"


SIZE = 200
"""The pixels of a side of the plot."""


def svg(before: Sequence[Bin], after: Sequence[Bin], title: str) -> str:
    """A reliability plot as SVG: accuracy over probability, before and after; the diagonal is right."""
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-40 -30 {SIZE + 60} {SIZE + 70}">',
            "<style>text { font: 10px sans-serif }</style>",
            f'<text x="0" y="-12">{title}</text>',
            f'<rect width="{SIZE}" height="{SIZE}" fill="none" stroke="#888"/>',
            f'<path d="M0 {SIZE}L{SIZE} 0" stroke="#888" stroke-dasharray="4"/>',
            *_series(before, "#c60", "before"),
            *_series(after, "#06c", "after"),
            f'<text x="{SIZE / 2}" y="{SIZE + 16}" text-anchor="middle">probability</text>',
            f'<text transform="translate(-10 {SIZE / 2}) rotate(-90)" text-anchor="middle">right</text>',
            f'<text x="0" y="{SIZE + 32}" fill="#c60">before</text>',
            f'<text x="50" y="{SIZE + 32}" fill="#06c">after</text>',
            "</svg>\n",
        )
    )


def _series(bins: Sequence[Bin], colour: str, name: str) -> Iterator[str]:
    points = [
        (bin_.confidence * SIZE, SIZE - bin_.accuracy * SIZE, bin_.count) for bin_ in bins if bin_.count
    ]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in points)
    yield f'<path d="M{path}" fill="none" stroke="{colour}"/>'
    for x, y, count in points:
        place = f'cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"'
        yield f"<circle {place}><title>{name}: {count}</title></circle>"
