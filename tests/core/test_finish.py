"""`length` wins over everything; `tool_calls` needs a complete call."""

import pytest

from antiphon.core.chunks import FinishReason
from antiphon.core.finish import finish_reason


@pytest.mark.parametrize(
    ("reason", "complete", "expected"),
    [
        (FinishReason.STOP, 0, "stop"),
        (FinishReason.STOP, 2, "tool_calls"),
        (FinishReason.LENGTH, 0, "length"),
        (FinishReason.LENGTH, 2, "length"),
    ],
)
def test_table(reason: FinishReason, complete: int, expected: str) -> None:
    assert finish_reason(reason, complete) == expected
