"""`length` wins over everything; `tool_calls` needs a complete call."""

import pytest

from antiphon.apis.completion_body import finish_reason
from antiphon.core.chunks import FinishReason


@pytest.mark.parametrize(
    ("reason", "complete", "expected"),
    [
        (FinishReason.STOP, 0, "stop"),
        (FinishReason.STOP, 2, "tool_calls"),
        (FinishReason.LENGTH, 0, "length"),
        (FinishReason.LENGTH, 2, "length"),
        (FinishReason.TOOL_LIMIT, 0, "length"),
    ],
)
def test_table(reason: FinishReason, complete: int, expected: str) -> None:
    assert finish_reason(reason, complete) == expected
