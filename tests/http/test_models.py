"""Models, health and version."""

import httpx2 as httpx

from antiphon import __version__
from antiphon.run.models import Health
from tests.server import NO_TLS, running


async def test_models_and_their_aliases() -> None:
    async with (
        running([{"output": "Hi"}]) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        server.service.names = ("org/big", "alias")
        listed = (await client.get("/v1/models")).json()
        one = (await client.get("/v1/models/org/big")).json()
        none = await client.get("/v1/models/nobody")
        answer = await client.post(
            "/v1/chat/completions", json={"model": "alias", "messages": [{"role": "user", "content": "x"}]}
        )

    assert (listed["object"], [model["id"] for model in listed["data"]]) == ("list", ["org/big", "alias"])
    assert one == listed["data"][0]
    assert (one["object"], one["max_model_len"]) == ("model", 32768)
    assert none.status_code == 404
    assert none.json()["error"]["code"] == "model_not_found"
    assert answer.json()["model"] == "alias"


async def test_health_says_whether_the_server_can_answer() -> None:
    async with (
        running([{"output": "Hi"}]) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        for state, status in [(Health.READY, 200), (Health.LOADING, 503), (Health.DRAINING, 503)]:
            server.service.health = state
            health = await client.get("/health")
            assert (health.status_code, health.json()) == (status, {"status": state.value})
        refused = await client.get("/v1/models/scripted")

    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "engine_not_ready"
    assert refused.headers["retry-after"] == "1"


async def test_version() -> None:
    async with (
        running([{"output": "Hi"}]) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        assert (await client.get("/version")).json() == {"version": __version__}


async def test_unknown_paths_and_methods_have_the_error_shape() -> None:
    async with (
        running([{"output": "Hi"}]) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        missing = await client.get("/v1/nothing")
        wrong = await client.get("/v1/completions")

    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (405, "invalid_request_error")
    assert wrong.headers["allow"] == "POST"
