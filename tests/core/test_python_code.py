"""Python code as a tree, whatever was written, and whoever else parses at the time."""

import ast
import gc
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.python_code import parsed


@given(st.text(alphabet="fg()[]{},.:=* \\\n'\0awit1xdefor", max_size=60) | st.text(max_size=20))
def test_any_text_is_a_tree_or_none(code: str) -> None:
    assert isinstance(parsed(code), ast.Module | None)
    assert isinstance(parsed(code, "eval"), ast.Expression | None)


@pytest.mark.parametrize("deep", ["(" * 10_000, "-" * 100_000 + "1", "[" * 90 + "]" * 90 + "+1" * 10_000])
def test_deep_code_is_none(deep: str) -> None:
    assert parsed(deep) is None


def test_threads_parse_at_the_same_time() -> None:
    """A collection of garbage may let another thread go on, in the middle of a tree."""

    def other_threads_go_on(phase: str, info: object) -> None:
        time.sleep(0)

    code, threshold, interval = "f(" * 20 + ")" * 20, gc.get_threshold(), sys.getswitchinterval()
    gc.callbacks.append(other_threads_go_on)
    gc.set_threshold(5)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(parsed, [code] * 400))
    finally:
        gc.callbacks.remove(other_threads_go_on)
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)


def test_warnings_about_the_code_are_not_ours() -> None:
    with warnings.catch_warnings(action="error"):
        assert parsed("x = '\\d'; 1 is 1") is not None
