"""Programs as items of the Responses API: `program`, and `program_output` when it has ended.

Between the two are the items of its calls. A program that waits for results of the client has no output yet.
"""

from collections.abc import Iterator

from msgspec import Struct

from antiphon.apis.request_object import RequestObject, json_text
from antiphon.apis.responses.output.item import COMPLETED, INCOMPLETE, ItemPosition, OpenItem
from antiphon.apis.responses.presenters.presenter import Presenter, output_item
from antiphon.apis.responses.programs import OUTPUT, PROGRAM
from antiphon.apis.responses.tools import Toolbox
from antiphon.core.items import FunctionCall, Item, object_in
from antiphon.core.programs import PROGRAMS, fingerprint


class ProgramItem(Struct, tag_field="type", tag=PROGRAM):
    """A program. Its `fingerprint` holds its time, and shows that its code is unchanged."""

    id: str
    call_id: str
    code: str
    fingerprint: str


class ProgramOutputItem(Struct, tag_field="type", tag=OUTPUT):
    """All that a program printed. An incomplete one was stopped."""

    id: str
    call_id: str
    result: str
    status: str


class ProgramPresenter(Presenter):
    """A program: it is shown when the model has written it."""

    type = PROGRAM
    result_type = OUTPUT

    @classmethod
    def read(cls, item: RequestObject, tools: Toolbox) -> Iterator[Item]:
        """The call of a program, or its result."""
        call_id = item.text("call_id")
        if item.value["type"] == PROGRAM:
            code = json_text({"code": item.text_or_none("code") or ""})
            yield FunctionCall(call_id, tools.offered(PROGRAMS).name, code)
        else:
            yield output_item(call_id, json_text(item.value.get("result") or ""))

    def item(self, status: str) -> ProgramItem:
        """The program, as far as it was written."""
        code = (object_in(self.text) or {}).get("code")
        code = code if isinstance(code, str) else self.text
        return ProgramItem(self.position.id, self.call.id, code, fingerprint(code, self.call.clock))

    def result_item(self, position: ItemPosition) -> OpenItem:
        """The item of its output."""
        return _OpenOutput(self, position)


class _OpenOutput(OpenItem):
    """The output of a program, which is known when it has ended."""

    def __init__(self, program: ProgramPresenter, position: ItemPosition) -> None:
        super().__init__(program.numbers, position)
        self._program = program

    def item(self, status: str) -> ProgramOutputItem:
        """All that it printed."""
        result = self._program.result
        known = result is not None and status == COMPLETED
        text = result.text if result is not None and known else ""
        ended = known and not self._program.failed
        return ProgramOutputItem(
            self.position.id, self._program.call.id, text, COMPLETED if ended else INCOMPLETE
        )
