"""vLLM in a replica of a real Ray: answers of three APIs, a stream, and the load by which replicas are scaled.

No environment of the Makefile has both. With Ray in that of `make test-vllm`
(`.venv-vllm-0.33/bin/python -m pip install 'ray[serve]>=2.60,<3'`), on the processor:

    ANTIPHON_TEST_VLLM=$PWD/.venv-vllm-0.33/model HF_HUB_OFFLINE=1 OMP_NUM_THREADS=2 TORCHDYNAMO_DISABLE=1 \\
        VLLM_CPU_KVCACHE_SPACE=1 RAY_AUTH_MODE=disabled .venv-vllm-0.33/bin/python -m pytest -n 0 tests/ray/test_vllm.py
"""

import os
import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of pydantic, about Ray's models
    pytest.importorskip("ray.serve", reason="needs Ray and vLLM in one environment")

from tests.ray.cluster import Cluster, cluster, local_ray, until

__all__ = ["cluster", "local_ray"]

MODEL = os.environ.get("ANTIPHON_TEST_VLLM", "")
TOOL = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 4}}, "required": ["city"]}

pytestmark = pytest.mark.skipif(not MODEL, reason="needs Ray and vLLM in one environment")


@pytest.fixture
def replica(cluster: Cluster) -> Cluster:
    arguments = ["max_model_len=2048", "enforce_eager=True"]
    cluster.deploy(model=MODEL, engine="vllm", gpus=0, store="none", dialect="hermes", vllm=arguments)
    until(lambda: cluster.request("GET", "/ready").status_code == 200, seconds=300)
    return cluster


def test_vllm_answers_in_a_replica(replica: Cluster) -> None:
    asked = {"model": "model", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 40}
    answer = replica.post("/v1/chat/completions", {**asked, "max_tokens": 8, "temperature": 0})
    assert answer["usage"]["completion_tokens"] <= 8
    assert answer["choices"][0]["message"]["content"]
    forced = {
        "tools": [{"name": "look", "input_schema": TOOL}],
        "tool_choice": {"type": "tool", "name": "look"},
    }
    message = replica.post("/v1/messages", {**asked, **forced})
    assert [part["name"] for part in message["content"] if part["type"] == "tool_use"] == ["look"]
    body = {"model": "model", "input": "Count.", "max_output_tokens": 20, "stream": True, "store": False}
    stream = replica.request("POST", "/v1/responses", body).text
    assert stream.count("response.output_text.delta") > 10
    assert '"status":"incomplete"' in stream
    assert "vllm:kv_cache_usage_perc" in replica.request("GET", "/metrics").text
