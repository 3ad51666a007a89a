"""Models, health and version."""

import httpx2 as httpx
import pytest

from antiphon import __version__
from antiphon.core.errors import NotFoundError
from antiphon.engines.scripted import ScriptedEngine
from antiphon.run.loading import ServedModel
from antiphon.run.models import Health, Models
from tests.apis.messages.support import ANTHROPIC
from tests.openai_schema import validate
from tests.server import NO_TLS, running


async def test_models_and_their_aliases() -> None:
    async with (
        running([{"output": "Hi"}], names=("org/big", "alias")) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        listed = (await client.get("/v1/models")).json()
        one = (await client.get("/v1/models/org/big")).json()
        none = await client.get("/v1/models/nobody")
        answer = await client.post(
            "/v1/chat/completions", json={"model": "alias", "messages": [{"role": "user", "content": "x"}]}
        )

    assert (listed["object"], [model["id"] for model in listed["data"]]) == ("list", ["org/big", "alias"])
    assert one == listed["data"][0]
    assert (one["object"], one["max_model_len"]) == ("model", 32768)
    assert one["input_modalities"] == ["text", "audio", "image", "video"]
    assert none.status_code == 404
    assert none.json()["error"]["code"] == "model_not_found"
    assert answer.json()["model"] == "alias"


async def test_health_says_whether_the_server_can_answer() -> None:
    async with (
        running([{"output": "Hi"}]) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        for state, status in [(Health.READY, 200), (Health.LOADING, 503), (Health.DRAINING, 503)]:
            server.models.health = state
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


async def test_models_in_anthropics_shape() -> None:
    async with (
        running([{"output": "Hi"}], names=("a", "b", "c")) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):

        async def listed(**query: object) -> tuple[list[str], bool]:
            body = (await client.get("/v1/models", params={**query})).json()
            ids = [model["id"] for model in body["data"]]
            assert (body["first_id"], body["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))
            return ids, body["has_more"]

        one = (await client.get("/v1/models/b")).json()
        pages = [
            await listed(),
            await listed(limit=1),
            await listed(after_id="a", limit=1),
            await listed(after_id="b"),
            await listed(after_id="c"),
            await listed(before_id="c", limit=1),
            await listed(before_id="c"),
        ]
        wrong = await client.get("/v1/models", params={"limit": 0})

    validate("ModelInfo", one, ANTHROPIC)
    assert (one["display_name"], one["max_input_tokens"]) == ("b", 32768)
    assert pages == [
        (["a", "b", "c"], False),
        (["a"], True),
        (["b"], True),
        (["c"], False),
        ([], False),
        (["b"], True),
        (["a", "b"], False),
    ]
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "limit")


async def test_a_pattern_stands_for_names_that_are_not_listed() -> None:
    models = Models(
        [ServedModel(ScriptedEngine([{"output": "Hi"}]), names=("claude-*", "mine"), dialect="hermes")]
    )
    await models.start()

    assert models.names == ("mine",)
    assert await models.model("claude-opus-4-6") is await models.model("mine")
    with pytest.raises(NotFoundError, match=r"mine, claude-\*"):
        await models.model("scripted")
    await models.stop()


async def test_a_server_with_patterns_only_lists_the_engines_own_name() -> None:
    models = Models([ServedModel(ScriptedEngine([{"output": "Hi"}]), names=("claude-*",), dialect="hermes")])
    await models.start()

    assert models.names == ("scripted",)
    await models.stop()


async def test_the_root_says_that_there_is_a_server_and_each_answer_has_an_id() -> None:
    async with (
        running([{"output": "Hi"}]) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        answers = [await client.head("/"), await client.get("/v1/models"), await client.get("/v1/nothing")]

    assert [answer.status_code for answer in answers] == [200, 200, 404]
    ids = [answer.headers["request-id"] for answer in answers]
    assert len({*ids}) == 3
    assert all(id_.startswith("req_") for id_ in ids)
