"""Shells of the server: a call is an item, and what comes of it another."""

from msgspec.structs import replace

from antiphon.apis.hosted import SHELL
from antiphon.apis.responses import events as wire
from antiphon.apis.responses.kinds import container_id
from antiphon.apis.responses.output.actions import shell_action
from antiphon.apis.responses.output.open_item import IN_PROGRESS, NO_DELTAS, Numbers, OpenItem, Place
from antiphon.apis.responses.resource import (
    Container,
    Exit,
    ShellCallItem,
    ShellOutput,
    ShellOutputItem,
    Timeout,
)
from antiphon.core.outcome import Executed, Outcome

NOT_RUN = 126
"""The exit code that shells give for a command that could not be run."""


class ShellCallOpen(OpenItem):
    """Commands for a shell. Like a call that the client answers, it is done when it is written."""

    def __init__(
        self, numbers: Numbers, place: Place, call_id: str, response_id: str, arguments: str
    ) -> None:
        super().__init__(numbers, place, NO_DELTAS)
        self.call_id = call_id
        self.action = shell_action(arguments)
        self._container = Container(container_id(SHELL, response_id))

    def item(self, status: str) -> ShellCallItem:
        """The commands; before they are told there are none."""
        action = replace(self.action, commands=()) if status == IN_PROGRESS else self.action
        return ShellCallItem(self.place.id, status, self.call_id, action, self._container)

    def done(self) -> list[bytes]:
        """Each command."""
        out: list[bytes] = []
        for number, command in enumerate(self.action.commands):
            place = self.place.output_index, number
            out += [
                self.numbers.encode(wire.CommandAdded, *place, ""),
                self.numbers.encode(wire.CommandDelta, *place, command),
                self.numbers.encode(wire.CommandDone, *place, command),
            ]
        return out


class ShellOutputOpen(OpenItem):
    """What came of a shell call. It is there at once, and whole."""

    def __init__(self, numbers: Numbers, place: Place, call: ShellCallOpen, outcome: Outcome) -> None:
        super().__init__(numbers, place, NO_DELTAS)
        self._call = call
        self._output = _output(outcome)

    def item(self, status: str) -> ShellOutputItem:
        """The output; before it is told there is none."""
        output = () if status == IN_PROGRESS else (self._output,)
        call = self._call
        return ShellOutputItem(self.place.id, status, call.call_id, output, call.action.max_output_length)

    def done(self) -> list[bytes]:
        """All that was printed, in one piece."""
        printed = wire.Printed(self._output.stdout, self._output.stderr)
        return [
            self.numbers.encode(wire.ShellOutputDelta, *self.place, 0, printed),
            self.numbers.encode(wire.ShellOutputDone, *self.place, 0, (self._output,)),
        ]


def _output(outcome: Outcome) -> ShellOutput:
    """What a command printed; why it was not run, if it was not."""
    match outcome.facts:
        case Executed(stdout, stderr, None):
            return ShellOutput(stdout, stderr, Timeout())
        case Executed(stdout, stderr, int(code)):
            return ShellOutput(stdout, stderr, Exit(code))
    return ShellOutput("", outcome.text, Exit(NOT_RUN))
