"""Where servers publish the events of their caches: nothing that they say is believed but ports and topics."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.errors import AntiphonError
from antiphon.engines.kv_sources import (
    MAX_RANKS,
    Source,
    is_endpoint,
    sources_of_option,
    sources_of_sglang,
    sources_of_vllm,
)
from antiphon.engines.upstream import Options, UpstreamEngine
from tests.engines.canned import answer, canned

VLLM = {
    "0": {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://10.0.0.9:6000", "topic": "kv", "hwm": 1},
    "1": {"endpoint": "tcp://*:5558", "replay_endpoint": None, "topic": "kv"},
}


def test_each_rank_of_a_vllm_is_a_source_at_the_host_of_its_url() -> None:
    assert sources_of_vllm(VLLM, "gpu1") == [
        Source("tcp://gpu1:5557", "tcp://gpu1:6000", "kv", take_ranks=True, tell_again=True),
        Source("tcp://gpu1:5558", None, "kv", take_ranks=True, tell_again=True),
    ]
    assert sources_of_vllm({}, "gpu1") == []


def test_each_rank_of_an_sglang_has_the_next_port() -> None:
    told = {"kv_events_config": '{"publisher": "zmq", "endpoint": "tcp://*:7000"}', "dp_size": 2}
    assert sources_of_sglang(told, "gpu1") == [Source("tcp://gpu1:7000"), Source("tcp://gpu1:7001")]
    assert not sources_of_sglang({"kv_events_config": None}, "gpu1")
    assert len(sources_of_sglang({**told, "dp_size": 10**9}, "gpu1")) == MAX_RANKS


@pytest.mark.parametrize("endpoint", ["ipc:///run/other", "inproc://x", "tcp://*:x", "tcp://*", "", "*:5557"])
def test_what_is_no_port_is_no_source(endpoint: str) -> None:
    assert not sources_of_vllm({"0": {"endpoint": endpoint}}, "gpu1")


def test_the_operator_says_any_address() -> None:
    assert sources_of_option("tcp://*:1,tcp://*:2", "gpu1") == (Source("tcp://gpu1:1", "tcp://gpu1:2"),)
    assert is_endpoint("tcp://*:1")
    assert is_endpoint("ipc:///run/kv")
    assert not is_endpoint("of")
    assert not is_endpoint("tcp://*:1,no")


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | st.text() | st.sampled_from(["0", "tcp://*:1"]),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.text() | st.sampled_from(["0", "endpoint", "kv_events_config", "dp_size"]), inner
        )
    ),
    max_leaves=8,
)


@given(values)
def test_no_answer_raises(told: Any) -> None:
    for sources in (sources_of_vllm(told, "gpu1"), sources_of_sglang(told, "gpu1")):
        assert all(source.endpoint.startswith("tcp://gpu1:") for source in sources)


@pytest.mark.parametrize("status", [200, 404])
async def test_a_server_is_asked_for_its_sources(status: int) -> None:
    listed = {"data": [{"id": "m", "owned_by": "vllm", "root": "m", "max_model_len": 2048}]}
    answers = {
        "/v1/models": [answer(200, listed)],
        "/tokenize": [answer(200, {"tokens": [1]})],
        "/kv_event_sources": [answer(status, VLLM)],
    }
    async with canned(answers) as server:
        engine = UpstreamEngine(Options(server.url, kv_events="auto"))
        await engine.start()
        assert [source.topic for source in await engine.event_sources()] == ["kv"] * (status == 200) * 2
        await engine.stop()


def test_one_server_alone_cannot_be_chosen_by_its_events() -> None:
    with pytest.raises(AntiphonError, match="--kv-events needs several servers: add --replica"):
        Options("http://gpu1:8000", kv_events="auto").build()
