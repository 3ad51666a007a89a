"""Models, health and version."""

import asyncio
import hashlib
import time
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from msgspec.structs import replace
from sqlalchemy import text

from antiphon import __version__
from antiphon.app import storage
from antiphon.core.errors import EngineError, StoreError
from antiphon.engines.pool import PoolEngine
from antiphon.engines.scripted import ScriptedEngine
from antiphon.run import loading
from antiphon.run.models import Health, KeepLoaded, Models
from tests.apis.messages.support import ANTHROPIC
from tests.openai_schema import validate
from tests.run.adapted import Adapted, Engine
from tests.server import NO_TLS, running, served_model


async def test_models_and_their_aliases() -> None:
    async with (
        running([{"output": "Hi"}], model_name=("org/big", "alias")) as server,
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


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_health_says_whether_the_server_can_answer(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "ANSWER_SECONDS", 30)  # a busy machine may take half a second
    async with (
        running([{"output": "Hi"}]) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        for state, status in [(Health.READY, 200), (Health.LOADING, 503), (Health.DRAINING, 503)]:
            server.models.health = state
            health = await client.get(path)
            told = {"status": state.value, "store": "ready", "models": {"scripted": {"status": "ready"}}}
            assert (health.status_code, health.json()) == (status, told)
        refused = await client.get("/v1/models/scripted")

    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "engine_not_ready"
    assert refused.headers["retry-after"] == "1"


class Ailing(ScriptedEngine):
    """Works, or not, as set; `probe` reports it, too."""

    up = True
    asked = 0

    async def probe(self) -> None:
        """Never answer."""
        self.asked += 1
        await asyncio.Event().wait()


class Away:
    """The store of a server, which cannot be reached any more."""

    async def get(self, *_: object) -> None:
        raise StoreError


async def healths(url: str) -> list[tuple[int, dict[str, Any]]]:
    async with httpx.AsyncClient(verify=NO_TLS, base_url=url) as client:
        answers = [await client.get("/health"), await client.get("/ready")]
    return [(answer.status_code, answer.json()) for answer in answers]


async def test_health_is_bad_when_no_model_can_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "HUNG_SECONDS", 0.01)
    ailing = Ailing([{"output": "Hi"}])
    both = [
        served_model(ailing, model_name=("a",), dialect="hermes"),
        served_model(ScriptedEngine([{"output": "Hi"}]), model_name=("x",), dialect="hermes"),
    ]
    async with running(ailing, models=Models(both)) as server:
        found = await healths(server.url)
        assert [status for status, _ in found] == [200, 200]
        assert found[0][1]["models"] == {  # it does not say that it is there
            "a": {"status": "failed"},
            "x": {"status": "ready"},
        }
    async with running(ailing) as server:
        ailing.up = False
        assert [(status, body["status"]) for status, body in await healths(server.url)] == [
            (503, "failed")
        ] * 2


async def test_health_counts_replicas() -> None:
    pool = PoolEngine([(name, ScriptedEngine([{"output": "Hi"}])) for name in ("one", "two")])
    async with running(pool) as server:
        assert (await healths(server.url))[0][1]["models"] == {
            "scripted": {"status": "ready", "up": 2, "replicas": 2}
        }


async def test_the_administrator_drains_a_replica_and_uses_it_again() -> None:
    pool = PoolEngine([(name, ScriptedEngine([{"output": "Hi"}])) for name in ("one", "two")])
    before = time.time()
    async with (
        running(pool, api_key=("client",), admin_key=("admin",)) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):

        async def told(action: str, replica: str) -> tuple[int, Any]:
            url = f"/v1/replicas/{action}"
            answer = await client.post(url, json={"replica": replica}, headers=ADMIN)
            return answer.status_code, answer.json()

        refused = await client.post(
            "/v1/replicas/drain", json={"replica": "one"}, headers={"authorization": "Bearer client"}
        )
        drained, missing = await told("drain", "one"), await told("drain", "three")
        listed = (await client.get("/v1/replicas", headers=ADMIN)).json()
        state = (await healths(server.url))[0][1]["models"]
        resumed = await told("resume", "one")

    assert refused.status_code == 403
    work = dict.fromkeys(("running", "waiting", "elsewhere"), 0)
    one = {"id": "one", "model": "scripted", **work, "object": "replica"}
    one |= {"drained_by": None, "drained_at": None}
    at = listed["data"][0]["drained_at"]
    assert before - 1 <= at <= time.time()
    by = {"status": "drained", "drained_by": hashlib.sha256(b"admin").hexdigest()[:8]}
    assert drained == (200, {"object": "list", "data": [{**one, **by, "drained_at": at}]})
    assert listed["data"] == [{**one, **by, "drained_at": at}, {**one, "id": "two", "status": "up"}]
    assert state == {"scripted": {"status": "ready", "up": 1, "replicas": 2}}
    assert resumed == (200, {"object": "list", "data": [{**one, "status": "up"}]})
    assert (missing[0], missing[1]["error"]["param"]) == (404, "replica")
    assert "There are: one, two." in missing[1]["error"]["message"]


async def test_a_server_without_its_store_is_up_but_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running([{"output": "Hi"}]) as server:
        with monkeypatch.context() as patch:
            patch.setattr(server.app.storage.store, "responses", Away())
            found = await healths(server.url)
    assert [(status, body["status"], body["store"]) for status, body in found] == [
        (200, "ready", "away"),
        (503, "ready", "away"),
    ]


async def test_a_server_whose_disk_is_full_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "WRITE_SECONDS", 0.0)
    monkeypatch.setattr(storage, "ANSWER_SECONDS", 30.0)  # on a busy machine it is still not away
    url = f"sqlite:///{tmp_path}/store.db"
    ask = {"model": "scripted", "input": "Hello " * 10_000}
    async with (
        running([{"output": "Hi"}], store=url) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        store: Any = server.app.storage.store
        database = store._database

        async def limited(pages: int) -> None:
            pragma = text(f"PRAGMA max_page_count = {pages}")
            await database.write(lambda transaction, given: [transaction.execute(pragma) and None], None)

        assert (await client.post("/v1/responses", json=ask)).status_code == 200
        assert [body["store"] for _, body in await healths(server.url)] == ["ready"] * 2
        await limited(1)  # as many as there are
        refused = await client.post("/v1/responses", json=ask)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_full")
        assert [(status, body["status"], body["store"]) for status, body in await healths(server.url)] == [
            (200, "ready", "full"),
            (503, "ready", "full"),
        ]
        await limited(10**6)
        database._full_until = 0.0
        assert [status for status, _ in await healths(server.url)] == [200, 200]


async def test_probes_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(Ailing([{"output": "Hi"}])) as server:
        written: list[None] = []

        async def check_writable() -> None:
            written.append(None)

        monkeypatch.setattr(server.app.storage.store, "check_writable", check_writable)
        await asyncio.gather(*(healths(server.url) for _ in range(5)))
    assert (len(written), server.engine.asked) == (1, 1)


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
        running([{"output": "Hi"}], model_name=("a", "b", "c")) as server,
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


async def test_a_server_with_patterns_only_lists_the_engines_own_name() -> None:
    served = served_model(ScriptedEngine([{"output": "Hi"}]), model_name=("claude-*",), dialect="hermes")
    models = Models([served])
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


# Several models, and adapters

HELLO = {"messages": [{"role": "user", "content": "Hi"}]}
ADMIN = {"authorization": "Bearer admin"}
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


async def several(**adapters: str) -> Models:
    """Two models, of which the second takes adapters."""
    plain = served_model(ScriptedEngine([{"output": "plain"}]), model_name=("a", "x"), dialect="hermes")
    other = served_model(Adapted("other"), model_name=("b",), dialect="hermes", adapters=adapters)
    return Models([plain, other])


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_each_request_is_answered_by_its_model(path: str) -> None:
    async with (
        running([], models=await several(sql="/sql.gguf")) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        for name, said in {"a": "plain", "x": "plain", "b": "other", "sql": "other"}.items():
            body = {"model": name, "input": "Hi"} if path.endswith("responses") else {"model": name, **HELLO}
            response = await client.post(
                path, json=body | {"max_tokens": 100} if "messages" in path else body
            )
            assert response.status_code == 200, response.text
            assert response.json()["model"] == name
            assert said in response.text


async def test_adapters_are_listed_as_children() -> None:
    async with (
        running([], models=await several(sql="/sql.gguf")) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        listed = (await client.get("/v1/models")).json()["data"]
        one = (await client.get("/v1/models/sql")).json()

    parents = [(model["id"], model["root"], model["parent"]) for model in listed]
    assert parents == [("a", "a", None), ("x", "a", None), ("b", "b", None), ("sql", "/sql.gguf", "b")]
    assert one == listed[3]


async def test_a_model_that_was_not_loaded_yet_is_listed_without_what_is_not_known() -> None:
    engines = [ScriptedEngine([{"output": "Hi"}], memory=1) for _ in "ab"]
    served = [
        served_model(engine, model_name=(name,), dialect="hermes")
        for engine, name in zip(engines, "ab", strict=True)
    ]
    async with (
        running([], models=Models(served, keep=KeepLoaded(models=1))) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        before = (await client.get("/v1/models/b")).json()
        answer = await client.post("/v1/chat/completions", json={"model": "b", **HELLO})
        after = (await client.get("/v1/models/b")).json()

    assert answer.status_code == 200
    assert (before["max_model_len"], after["max_model_len"]) == (None, 32768)


async def test_adapters_are_loaded_and_unloaded_with_the_key_of_the_administrator() -> None:
    async with (
        running([], models=await several(), api_key=("client",), admin_key=("admin",)) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        key = {"authorization": "Bearer client"}
        given = {"lora_name": "sql", "lora_path": "/sql.gguf"}
        refused = [
            await client.post(path, json=given, headers=each) for path in (LOAD, UNLOAD) for each in ({}, key)
        ]
        loaded = await client.post(LOAD, json=given, headers=ADMIN)
        answer = await client.post("/v1/chat/completions", json={"model": "sql", **HELLO}, headers=key)
        again = await client.post(LOAD, json=given, headers=ADMIN)
        replaced = await client.post(LOAD, json=given | {"load_inplace": True}, headers=ADMIN)
        bad = await client.post(LOAD, json={"lora_name": "y", "lora_path": "bad"}, headers=ADMIN)
        wrong = await client.post(
            LOAD, json={"lora_name": "y", "lora_path": "/x", "base_model_name": "a"}, headers=ADMIN
        )
        unloaded = await client.post(UNLOAD, json={"lora_name": "sql"}, headers=ADMIN)
        gone = await client.post("/v1/chat/completions", json={"model": "sql", **HELLO}, headers=key)
        missing = await client.post(UNLOAD, json={"lora_name": "sql"}, headers=ADMIN)

    assert [response.status_code for response in refused] == [401, 403] * 2
    assert loaded.text == "Success: LoRA adapter 'sql' added successfully."
    assert answer.json()["choices"][0]["message"]["content"] == "other"
    assert (again.status_code, again.json()["error"]["param"]) == (400, "lora_name")
    assert replaced.status_code == 200
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "lora_path")
    assert (wrong.status_code, "does not support adapters" in wrong.text) == (400, True)
    assert unloaded.text == "Success: LoRA adapter 'sql' removed successfully."
    assert gone.status_code == missing.status_code == 404


async def test_without_such_a_key_nobody_may() -> None:
    async with (
        running([], models=await several()) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        refused = await client.post(LOAD, json={"lora_name": "sql", "lora_path": "/sql.gguf"}, headers=ADMIN)

    assert refused.status_code == 403
    assert "--admin-key" in refused.json()["error"]["message"]


async def test_defaults_of_a_model_are_told_back() -> None:
    engine = ScriptedEngine([{"output": "Hi"}])
    engine.card = replace(engine.card, sampling={"temperature": 0.6, "top_p": 0.9})
    models = Models(
        [served_model(engine, model_name=("a",), dialect="hermes", sampling={"temperature": 0.3})]
    )
    async with (
        running([], models=models) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        told = [
            (await client.post("/v1/responses", json={"model": "a", "input": "Hi", **given})).json()
            for given in ({}, {"temperature": 1.5})
        ]

    assert [(each["temperature"], each["top_p"]) for each in told] == [(0.3, 0.9), (1.5, 0.9)]
    used = [(request.sampling.temperature, request.sampling.top_p) for request in engine.seen]
    assert used == [(0.3, 0.9), (1.5, 0.9)]


async def test_what_is_forced_is_told_back_and_used() -> None:
    engine = ScriptedEngine([{"output": "Hi"}])
    forced = {"temperature": 0.3, "max_tokens": 9}
    one = served_model(engine, model_name=("a",), dialect="hermes", force_sampling=forced)
    async with (
        running([], models=Models([one]), return_tokens_as_token_ids=True) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        body = {"model": "a", "input": "Hi", "temperature": 1.5, "top_p": 0.5, "max_output_tokens": 99}
        told = (await client.post("/v1/responses", json=body)).json()
        chat = {"model": "a", "messages": [{"role": "user", "content": "Hi"}], "logprobs": True}
        named, spelled = [
            (await client.post("/v1/chat/completions", json={**chat, **more})).json()["choices"][0]
            for more in ({}, {"return_tokens_as_token_ids": False})
        ]

    assert (told["temperature"], told["top_p"], told["max_output_tokens"]) == (0.3, 0.5, 9)
    assert {request.sampling.temperature for request in engine.seen} == {0.3}
    assert engine.seen[0].max_tokens == 9
    tokens = [choice["logprobs"]["content"][0]["token"] for choice in (named, spelled)]
    assert tokens[0].startswith("token_id:")
    assert tokens[1:] == ["Hi"]


@pytest.mark.parametrize("path", ["/chat/completions", "/responses", "/messages"])
async def test_what_is_forced_against_a_request_is_noted_in_the_answer(path: str) -> None:
    one = served_model(
        ScriptedEngine([{"output": "Hi"}]),
        model_name=("a",),
        dialect="hermes",
        force_sampling={"temperature": 0.3},
        force_variable={"mode": "short"},
    )
    messages = [{"role": "user", "content": "Hi"}]
    body = {"model": "a", "max_tokens": 9} | (
        {"input": messages} if path == "/responses" else {"messages": messages}
    )
    async with (
        running([], models=Models([one])) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1") as client,
    ):
        same = await client.post(path, json=body | {"temperature": 0.3})
        other = await client.post(
            path, json=body | {"temperature": 1.5, "chat_template_kwargs": {"mode": "long"}}
        )

    assert "notes" not in same.json()
    noted = [note["message"] for note in other.json()["notes"]]
    assert [("'temperature'" in noted[0], "'mode'" in noted[-1])] == [(True, True)]


async def test_a_background_response_waits_for_its_model() -> None:
    engines = [ScriptedEngine([{"output": said}], memory=1) for said in ("first", "second")]
    served = [
        served_model(engine, model_name=(name,), dialect="hermes")
        for engine, name in zip(engines, "ab", strict=True)
    ]
    async with (
        running([], models=Models(served, keep=KeepLoaded(models=1))) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):
        ids = {}
        for name in "abab":
            body = {"model": name, "input": "Hi", "background": True}
            ids[(await client.post("/v1/responses", json=body)).json()["id"]] = name
        for id_, name in ids.items():
            stream = await client.get(f"/v1/responses/{id_}", params={"stream": "true"})
            assert "response.completed" in stream.text
            assert {"a": "first", "b": "second"}[name] in stream.text


@pytest.mark.parametrize("path", ["/v1/models/nobody", "/v1/nothing"])
async def test_errors_of_shared_paths_have_the_shape_of_the_clients_api(path: str) -> None:
    async with running([{"output": "a"}]) as server, httpx.AsyncClient(base_url=server.url) as http:
        for headers, names in (
            ({}, {"error"}),
            ({"anthropic-version": "2023-06-01"}, {"type", "error", "request_id"}),
        ):
            response = await http.get(path, headers=headers)
            assert (response.status_code, response.json().keys()) == (404, names)
            if headers:
                assert response.json()["error"]["type"] == "not_found_error"


SAID = [{"role": "user", "content": "x"}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAID},
    "/v1/chat/completions/render": {"messages": SAID},
    "/v1/completions": {"prompt": "x"},
    "/v1/completions/render": {"prompt": "x"},
    "/v1/responses/render": {"input": "x"},
    "/v1/messages/render": {"messages": SAID, "max_tokens": 5},
    "/inference/v1/generate": {"token_ids": [120], "sampling_params": {}},
    "/v1/responses": {"input": "x"},
    "/v1/responses/input_tokens": {"input": "x"},
    "/v1/messages": {"messages": SAID, "max_tokens": 5},
    "/v1/messages/count_tokens": {"messages": SAID},
    "/v1/embeddings": {"input": "x"},
    "/v1/rerank": {"query": "x", "documents": ["y"]},
    "/tokenize": {"prompt": "x"},
}
STREAMED = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/inference/v1/generate",
)


async def test_requests_for_a_model_that_cannot_be_loaded_cost_no_other_its_place() -> None:
    """In every API, streamed or not, however often: they get the same error, and when to try again."""
    works, broken = Engine("Hi"), Engine("never")
    broken.failure = EngineError("/secret/path is broken.")
    models = Models(
        [served_model(engine, model_name=(name,)) for name, engine in (("works", works), ("broken", broken))],
        keep=KeepLoaded(models=1),
    )
    requests = [*ASKED.items()]
    requests += [(path, ASKED[path] | {"stream": True}) for path in STREAMED]
    requests.append(("/v1/responses", ASKED["/v1/responses"] | {"background": True}))
    async with (
        running(works, models=models) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as client,
    ):

        async def usable() -> bool:
            answer = await client.post("/v1/completions", json={"model": "works", "prompt": "x"})
            return bool(answer.json()["choices"][0]["text"] == "Hi")

        for path, body in requests:
            response = await client.post(path, json={"model": "broken", **body})
            error = response.json()["error"]
            assert response.status_code == 503, (path, response.text)
            assert "'broken' could not be loaded" in error["message"]
            assert "secret" not in response.text
            assert error.get("code", "model_not_loaded") == "model_not_loaded"
            assert 0 < int(response.headers["retry-after"]) <= 30
            assert await usable()
    assert (works.starts, works.stops) == (
        2,
        2,
    )  # it was unloaded for the first of the requests, and in the end
