"""Details of results as they were stored before toolkits were found by name: they are read as what they were."""

from typing import Any

import msgspec
import pytest

from antiphon.core.tool_result import RemoteFailure, ToolResult
from antiphon.run.replay import ToolResultEntry, read_entries
from antiphon.toolkits.code_interpreter.details import ProgramDetails, WrittenFile
from antiphon.toolkits.file_search.details import FileSearchDetails
from antiphon.toolkits.file_search.query import FileResult
from antiphon.toolkits.registry import built_in
from antiphon.toolkits.shell.details import CommandDetails
from antiphon.toolkits.web_search.details import FindDetails, OpenDetails, SearchDetails

FILE = {"file_id": "file-1", "filename": "a.md", "score": 0.5, "attributes": {"a": 1}, "text": "text"}
STORED: list[tuple[dict[str, Any], Any]] = [
    ({"type": "printed", "logs": "4"}, ProgramDetails("4")),
    (
        {
            "type": "printed",
            "logs": "",
            "container_id": "cntr_1",
            "files": [{"id": "cfile_1", "path": "a.csv", "size": 3}],
        },
        ProgramDetails("", "cntr_1", (WrittenFile("cfile_1", "a.csv", 3),)),
    ),
    ({"type": "searched", "query": "cats", "sources": ["u:1"]}, SearchDetails("cats", ("u:1",))),
    ({"type": "opened", "url": None}, OpenDetails(None)),
    ({"type": "found", "url": "u:1", "pattern": "a"}, FindDetails("u:1", "a")),
    ({"type": "executed", "stdout": "a", "stderr": "", "exit_code": None}, CommandDetails("a", "", None)),
    (
        {"type": "files_searched", "queries": ["a"], "number": 0, "results": [FILE]},
        FileSearchDetails(("a",), 0, (FileResult(**FILE),)),
    ),
    (
        {"type": "remote_failure", "kind": "http", "code": 502, "message": "It is away."},
        RemoteFailure("http", 502, "It is away."),
    ),
    ({"type": "other", "fields": {"eyes": 4}}, {"type": "other", "fields": {"eyes": 4}}),
]


def stored(details: Any) -> bytes:
    outcome = {"text": "text", "details": details, "failed": False, "shown": None, "media": []}
    return msgspec.msgpack.encode([{"type": "answer", "outcome": outcome, "seconds": 0.5, "number": 0}])


@pytest.mark.parametrize(("details", "read"), STORED)
def test_details_that_were_stored_are_read(details: dict[str, Any], read: Any) -> None:
    expected = ToolResultEntry(ToolResult("text", read), 0.5, 0)

    assert read_entries([stored(details)], built_in().details) == [expected]
