"""`code_interpreter`: programs that the server runs, as items of the Responses API.

OpenAI has no events for the output of a program. Antiphon has events of its own, for requests with its own
value of `include`.
"""

from base64 import b64encode
from collections.abc import Iterator

from msgspec import Struct

from antiphon.apis.custom_tools import InputReader, to_input
from antiphon.apis.request_object import RequestObject, json_text
from antiphon.apis.responses.events import CALL, event
from antiphon.apis.responses.output.item import ItemPosition, frame
from antiphon.apis.responses.presenters.presenter import PresentedCall, Presenter, output_item, rest
from antiphon.apis.responses.stored import StoredItem
from antiphon.apis.responses.tools import Toolbox
from antiphon.core.events import Delta
from antiphon.core.items import FunctionCall, Item
from antiphon.core.plain_tokens import SequenceNumbers
from antiphon.core.tool_result import ToolResult
from antiphon.toolkits.code_interpreter.details import TYPE, ProgramDetails
from antiphon.tools.containers import container_id

ARGUMENT = "code"
"""The only argument of the tool's function."""
LOGS = "code_interpreter_call.logs"
"""The value of `include` that requests events for the output of programs."""

CodeDelta = event("response.code_interpreter_call_code.delta", *CALL, "delta")
CodeDone = event("response.code_interpreter_call_code.done", *CALL, "code")
LogsDelta = event("response.code_interpreter_call_logs.delta", *CALL, "delta")
LogsDone = event("response.code_interpreter_call_logs.done", *CALL, "logs")


class LogsOutput(Struct, tag_field="type", tag="logs"):
    """All that a program printed."""

    logs: str


class ImageOutput(Struct, tag_field="type", tag="image"):
    """A picture that a program has drawn, as a data URL."""

    url: str


class CodeCallItem(Struct, tag_field="type", tag="code_interpreter_call"):
    """A program that the server ran. Before it has ended, or was cut off, there are no outputs."""

    id: str
    status: str
    container_id: str
    code: str
    outputs: tuple[LogsOutput | ImageOutput, ...] = ()


class CodePresenter(Presenter):
    """A program: the model writes JSON, the client gets the program in it."""

    type = "code_interpreter_call"
    includes = (LOGS, "code_interpreter_call.outputs")

    def __init__(self, numbers: SequenceNumbers, position: ItemPosition, call: PresentedCall) -> None:
        super().__init__(numbers, position, call)
        self._frame = frame(CodeDelta, *position)
        given = call.hosted.settings.get("container")
        self._container = given if isinstance(given, str) else container_id(TYPE, call.response_id)
        self._reader = InputReader(ARGUMENT)
        self._logs = ""  # as far as they were streamed
        self._shows_logs = LOGS in call.include

    @classmethod
    def read(cls, item: RequestObject, tools: Toolbox) -> Iterator[Item]:
        """A call of the model's function for the tool, and its output."""
        call_id, name = item.text("id"), tools.offered(TYPE).name
        yield FunctionCall(call_id, name, json_text({ARGUMENT: item.text_or_none("code") or ""}))
        logs = [output.text_or_none("logs") for output in item.objects("outputs")]
        yield output_item(call_id, "\n".join(filter(None, logs)))

    def item(self, status: str) -> CodeCallItem:
        """The program, with its output."""
        outputs: tuple[LogsOutput | ImageOutput, ...] = (LogsOutput(self._logs),) if self._logs else ()
        if self.result is not None:
            outputs = (LogsOutput(self._logs), *_pictures(self.result))
        return CodeCallItem(self.position.id, self.status_of(status), self._container, self.text, outputs)

    def start(self) -> list[bytes]:
        """The item, and the event that it is in progress."""
        return [self.added(), self.stage("in_progress")]

    def add(self, event: Delta, out: list[bytes]) -> None:
        """Append the event for the new text of the program in these arguments, if there is any."""
        text = self._reader.read(event.text)
        if text:
            out.append(self.numbers.delta(self._frame, text))

    def end(self, item: Item) -> list[bytes]:
        """The program, as far as it was written."""
        assert isinstance(item, FunctionCall)
        self.text = to_input(item.arguments, ARGUMENT)
        return [self.numbers.encode(CodeDone, *self.position, self.text)]

    def run(self) -> list[bytes]:
        """The event that it runs."""
        return [self.stage("interpreting")]

    def add_output(self, stdout: str, stderr: str) -> list[bytes]:
        """It has printed more."""
        return self._add_logs(stdout + stderr)

    def completed(self) -> list[bytes]:
        """The event that it has ended. There is none for a failure."""
        return [] if self.failed else [self.stage("completed")]

    def close(self, status: str) -> tuple[StoredItem, list[bytes]]:
        """The rest of its logs, then the item."""
        shown = [] if self.result is None else self._add_logs(rest(self._logs, _logs(self.result)))
        if self._shows_logs and (self._logs or self.result is not None):
            shown.append(self.numbers.encode(LogsDone, *self.position, self._logs))
        stored, done = super().close(status)
        return stored, shown + done

    def _add_logs(self, text: str) -> list[bytes]:
        self._logs += text
        return [self.numbers.encode(LogsDelta, *self.position, text)] if text and self._shows_logs else []


def _logs(result: ToolResult) -> str:
    """The output of a program, or why it was not run."""
    match result:
        case ToolResult(details=ProgramDetails(logs), failed=False):
            return logs
    return result.text


def _pictures(result: ToolResult) -> Iterator[ImageOutput]:
    if isinstance(result.details, ProgramDetails):
        for picture in result.media:
            yield ImageOutput(f"data:image/png;base64,{b64encode(picture).decode()}")
