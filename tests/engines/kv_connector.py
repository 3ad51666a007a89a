"""A KV connector for the real vLLM: vLLM's example, which keeps prompts in a folder, and says so as others do.

vLLM loads it by its name, in the processes that compute: `--vllm kv_transfer_config=…`. Elsewhere there is none.
"""

import json
from contextlib import suppress
from typing import Any

with suppress(ImportError):
    from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector

    class TellingConnector(ExampleConnector):
        """Returns, as vLLM's NixlConnector does, the parameters for the vLLM that continues."""

        def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
            """The parameters in the answer."""
            if not (request.kv_transfer_params or {}).get("do_remote_decode"):
                return False, None
            return False, {
                "do_remote_prefill": True,
                "do_remote_decode": False,
                "remote_block_ids": block_ids,
            }


def config(folder: str) -> str:
    """What has vLLM load it, and keep prompts in this folder."""
    return json.dumps(
        {
            "kv_connector": "TellingConnector",
            "kv_connector_module_path": __name__,
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": folder},
        }
    )


def argument(folder: str) -> str:
    """The same as an engine argument."""
    return f"kv_transfer_config={config(folder)}"
