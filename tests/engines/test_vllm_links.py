"""What several clients of a vLLM core agree on: numbers of adapters, and what is refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.core.errors import EngineError
from antiphon.engines.vllm_links import adapter_number, check


def test_an_adapter_has_the_same_number_in_all_processes_until_its_files_change(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    first = adapter_number("one", str(tmp_path))
    assert 0 < first < 2**31
    assert adapter_number("one", str(tmp_path)) == first
    assert adapter_number("other", str(tmp_path)) != first
    (tmp_path / "adapter_config.json").write_text('{"r": 8}')
    assert adapter_number("one", str(tmp_path)) != first
    assert adapter_number("one", "org/adapter") == adapter_number("one", "org/adapter")


def config(media: str | None = None, **parallel: Any) -> Any:
    usual = {
        "enable_elastic_ep": False,
        "enable_fault_tolerance": False,
        "distributed_executor_backend": "mp",
        "data_parallel_backend": "mp",
        "local_engines_only": False,
        "data_parallel_size": 1,
        "data_parallel_size_local": 1,
    }
    return SimpleNamespace(**(usual | {"mm_tensor_ipc": media} | parallel))


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (config(enable_elastic_ep=True), "enable_elastic_ep"),
        (config(enable_fault_tolerance=True), "enable_fault_tolerance"),
        (config(distributed_executor_backend="ray"), "distributed_executor_backend=ray"),
        (config(data_parallel_backend="ray"), "data_parallel_backend=ray"),
        (
            config(data_parallel_size=4, data_parallel_size_local=2),
            "data_parallel_size over several machines",
        ),
        (config(data_parallel_size=2, local_engines_only=True), "data_parallel_size over several machines"),
        (config(media="torch_shm"), "mm_tensor_ipc=torch_shm"),
    ],
)
def test_what_needs_one_client_is_refused_by_its_name(refused: Any, says: str) -> None:
    with pytest.raises(EngineError, match=says):
        check(refused, refused)


def test_what_several_clients_can_use_is_not_refused() -> None:
    for given in (
        config(media="direct_rpc"),
        config(data_parallel_size=2, data_parallel_size_local=2),
        config(data_parallel_size=2, data_parallel_size_local=None),  # an argument that is not given
    ):
        check(given, given)
