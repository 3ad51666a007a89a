"""Calls that the server answers: of programs, and of what it does in the web.

The model has written such a call to its end before it is answered, so its item
waits, and others may begin meanwhile. What a call does in the web or in a shell
is known only when its arguments are whole: until then nothing is told of it.
"""

from abc import abstractmethod
from collections.abc import Callable

from antiphon.apis.custom_tools import InputReader
from antiphon.apis.hosted import CODE_INTERPRETER
from antiphon.apis.responses import events as wire
from antiphon.apis.responses.kinds import container_id
from antiphon.apis.responses.output.actions import as_done, web_action
from antiphon.apis.responses.output.open_item import INCOMPLETE, NO_DELTAS, Numbers, OpenItem, Place, frame
from antiphon.apis.responses.resource import CodeCallItem, Logs, SearchAction, Source, WebCallItem
from antiphon.core.events import Delta
from antiphon.core.outcome import Outcome, Printed, Searched

FAILED = "failed"


class HostedOpen(OpenItem):
    """A call that waits for an answer. `outcome` is there once it was answered."""

    outcome: Outcome | None = None

    @abstractmethod
    def asked(self) -> list[bytes]:
        """The events that say that the call is whole, and is being answered."""

    @property
    def succeeded(self) -> bool:
        """The tool could do it."""
        return self.outcome is not None and not self.outcome.failed

    def status_of(self, status: str) -> str:
        """The status of the item: one that was answered may have failed."""
        return FAILED if self.outcome is not None and self.outcome.failed else status


class Gathering:
    """The arguments of a call whose item begins when they are whole."""

    def __init__(self, make: Callable[[str], OpenItem]) -> None:
        self._make = make
        self._pieces: list[str] = []

    def add(self, event: Delta, out: list[bytes]) -> None:
        """Keep more of them. There is nothing to tell yet."""
        self._pieces.append(event.text)

    def item(self) -> OpenItem:
        """The item, with all arguments that there are."""
        return self._make("".join(self._pieces))


class CodeCallOpen(HostedOpen):
    """A program that is run: the model writes JSON, the client gets the program in it."""

    def __init__(self, numbers: Numbers, place: Place, response_id: str) -> None:
        super().__init__(numbers, place, frame(wire.CodeDelta, *place))
        self._container = container_id(CODE_INTERPRETER, response_id)
        self._reader = InputReader("code")
        self._whole = False

    def item(self, status: str) -> CodeCallItem:
        """The program as far as it is known, with what it printed."""
        outputs = () if self.outcome is None else (Logs(_logs(self.outcome)),)
        return CodeCallItem(self.place.id, self.status_of(status), self._container, self.text, outputs)

    def opening(self) -> list[bytes]:
        """The item, and that it is at work."""
        return [*super().opening(), self.numbers.encode(wire.CodeInProgress, *self.place)]

    def add(self, event: Delta, out: list[bytes]) -> None:
        """Append what more arguments add to the program, if anything."""
        text = self._reader.read(event.text)
        if text:
            self.write(text, out)

    def asked(self) -> list[bytes]:
        """The whole program, and that it is being run."""
        self._whole = True
        return [self._code_done(), self.numbers.encode(wire.CodeInterpreting, *self.place)]

    def done(self) -> list[bytes]:
        """That it was run; of a program that was cut, what there is of it."""
        if not self._whole:
            return [self._code_done()]
        return [self.numbers.encode(wire.CodeCompleted, *self.place)] if self.succeeded else []

    def _code_done(self) -> bytes:
        return self.numbers.encode(wire.CodeDone, *self.place, self.text)


class WebCallOpen(HostedOpen):
    """A search, a page that is opened, or a text that is looked for in one."""

    def __init__(self, numbers: Numbers, place: Place, action: str, arguments: str) -> None:
        super().__init__(numbers, place, NO_DELTAS)
        self._action = web_action(action, arguments)

    def item(self, status: str) -> WebCallItem:
        """What is done, or was done, once that is known. No status says that it was cut: it failed."""
        status = FAILED if status == INCOMPLETE else self.status_of(status)
        action = as_done(self.outcome.facts if self.outcome else None) or self._action
        return WebCallItem(self.place.id, status, action)

    def asked(self) -> list[bytes]:
        """That it is being done."""
        return [
            self.numbers.encode(wire.WebInProgress, *self.place),
            self.numbers.encode(wire.WebSearching, *self.place),
        ]

    def done(self) -> list[bytes]:
        """That it was done. There is no event for what failed."""
        return [self.numbers.encode(wire.WebCompleted, *self.place)] if self.succeeded else []


class SourcedWebCallOpen(WebCallOpen):
    """One that tells what a search found."""

    def item(self, status: str) -> WebCallItem:
        """The same, with sources."""
        item = super().item(status)
        facts = self.outcome.facts if self.outcome else None
        if isinstance(facts, Searched) and isinstance(item.action, SearchAction):
            item.action.sources = tuple(map(Source, facts.sources))
        return item


def _logs(outcome: Outcome) -> str:
    """What a program printed, or why it was not run."""
    match outcome:
        case Outcome(facts=Printed(logs), failed=False):
            return logs
    return outcome.text
