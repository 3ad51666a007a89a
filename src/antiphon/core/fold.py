"""The only maker of full answers: it folds the events of an answer, or of one generation of it, into items.

A stream shows the events; a full answer shows their fold. The two cannot
disagree, because there is nothing else to make an answer from.
"""

from typing import assert_never

from msgspec import Struct

from antiphon.core.chunks import FinishReason
from antiphon.core.events import (
    Answered,
    ArgumentsDelta,
    CallEnded,
    CallStarted,
    Event,
    Finished,
    Malformed,
    Markup,
    Paused,
    ReasoningDelta,
    ReasoningEnded,
    ReasoningStarted,
    TextDelta,
    TextEnded,
    TextStarted,
    Usage,
)
from antiphon.core.items import FunctionCall, FunctionOutput, Item, Message, Reasoning, Role, Status, TextPart

PARAGRAPH = "\n\n"
"""What stands between two messages, or thoughts, where a client knows only one text."""


class Output(Struct, frozen=True):
    """What was folded, whole."""

    items: tuple[Item, ...]
    reason: FinishReason
    usage: Usage
    stop: str | int | None = None
    error: str | None = None
    unmet: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Everything visible that the model said: each message is a paragraph."""
        return PARAGRAPH.join(item.text for item in self.items if isinstance(item, Message))

    @property
    def reasoning(self) -> str:
        """Everything that the model thought: each thought is a paragraph."""
        return PARAGRAPH.join(item.text for item in self.items if isinstance(item, Reasoning))

    @property
    def calls(self) -> tuple[FunctionCall, ...]:
        """The client's functions that were called, in order, incomplete ones included."""
        return tuple(item for item in self.items if isinstance(item, FunctionCall) and not item.hosted)


class Fold:
    """Collects events; `output` is ready once `Finished` was pushed."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._pieces: list[str] = []
        self._opened: TextStarted | CallStarted | None = None
        self._finished: Finished | None = None

    def push(self, event: Event) -> None:
        """Take the next event of the generation."""
        match event:
            case TextDelta() | ReasoningDelta() | ArgumentsDelta():
                self._pieces.append(event.text)
            case TextStarted() | CallStarted():
                self._opened = event
            case TextEnded():
                assert isinstance(self._opened, TextStarted)
                self._items.append(
                    Message(Role.ASSISTANT, (TextPart(self._take()),), phase=self._opened.phase)
                )
            case ReasoningEnded():
                self._items.append(Reasoning(self._take()))
            case CallEnded():
                assert isinstance(self._opened, CallStarted)
                status = Status.COMPLETED if event.complete else Status.INCOMPLETE
                call = FunctionCall(
                    self._opened.call_id, self._opened.name, self._take(), status, self._opened.hosted
                )
                self._items.append(call)
            case Answered():
                text = TextPart(event.outcome.text)
                self._items.append(FunctionOutput(event.call_id, (text,)))
            case Finished():
                self._finished = event
            case ReasoningStarted() | Markup() | Malformed() | Paused():
                pass
            case _:
                assert_never(event)

    def _take(self) -> str:
        text = "".join(self._pieces)
        self._pieces.clear()
        return text

    @property
    def output(self) -> Output:
        """The generation as a whole. Raises RuntimeError before `Finished`."""
        if self._finished is None:
            raise RuntimeError("the fold has no output before the generation is finished")
        end = self._finished
        return Output(tuple(self._items), end.reason, end.usage, end.stop, end.error, end.unmet)
