"""Decisions over a real socket, in both APIs: what goes around the answers of a model.

What a model answers is here what it is told (`tests/deciding.py`); how it comes to its answers is tested with
engines.
"""

import asyncio
import gzip
import json
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from backports import zstd
from structlog.testing import capture_logs

from antiphon.core.decision import Decision, QuestionKind, Verdict, Verdicts
from antiphon.core.errors import EngineBusyError, RequestError
from antiphon.core.items import MediaKind, MediaPart, Message, TextPart
from antiphon.core.limits import Limits
from antiphon.core.turn import Adapter
from antiphon.decide.labels import MOST_OPTIONS
from antiphon.decide.reads import reads_of
from antiphon.engines.engine import Capabilities, Task
from antiphon.engines.scripted import ScriptedEngine
from antiphon.run.models import Models
from antiphon.run.token_model import TokenModel
from tests.apis.decision_requests import IMAGE, OPENAI, PNG, SYSTEMONE
from tests.deciding import by_digest, deciding, told
from tests.run.adapted import Adapted
from tests.run.support import until
from tests.server import NO_TLS, Running, running, served_model

DECISIONS, SYSTEM_ONE = "/v1/decisions", "/v1/systemone"
BODIES = {DECISIONS: OPENAI | {"model": "scripted"}, SYSTEM_ONE: SYSTEMONE | {"model": "scripted"}}
NOUL = {"type": "noul", "instructions": "Is it?"}
PREDICATE = {"type": "predicate", "instructions": "Is it?"}
SCRIPT: list[dict[str, Any]] = [{"output": "Hi"}]


class Client:
    """Asks a server, whose models decide by a digest, or as they are told."""

    def __init__(self, http: httpx.AsyncClient, server: Running, asked: list[Decision]) -> None:
        self.http = http
        self.server = server
        self.asked = asked

    async def post(self, path: str, body: Any = None, status: int = 200, **fields: Any) -> Any:
        response = await self.http.post(path, json=(BODIES[path] if body is None else body) | fields)
        assert response.status_code == status, response.text
        return response.json()

    async def send(self, path: str, body: bytes, status: int = 200, **headers: str) -> Any:
        headers = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        response = await self.http.post(path, content=body, headers=headers)
        assert response.status_code == status, response.text
        return response.json()


@asynccontextmanager
async def client(script: Any = SCRIPT, decide: Any = by_digest, **options: Any) -> AsyncIterator[Client]:
    async with (
        running(script, **options) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url) as http,
    ):
        with deciding(decide) as asked:
            yield Client(http, server, asked)


def eyeless(**options: Any) -> ScriptedEngine:
    """An engine whose model takes text only."""
    able = Capabilities(token_ids=True, sampling=frozenset({"max_tokens", "logprobs"}))
    return ScriptedEngine(SCRIPT, capabilities=able, **options)


# The two contracts


async def test_the_example_of_both_apis() -> None:
    async with client(decide=told((0.9, 0.1), (0.2, 0.3, 0.5), (0.7, 0.3))) as api:
        openai, systemone = await api.post(DECISIONS), await api.post(SYSTEM_ONE)
    route, urgency, angry = openai["answers"]
    assert (route["choice"], urgency["score"], angry["probability"]) == ("billing", pytest.approx(1.3), 0.7)
    assert systemone["answers"]["route"] == {
        "type": "choice",
        "choice": "billing",
        "confidence": route["confidence"],
        "probabilities": {"billing": 0.9, "shipping": 0.1},
    }
    assert openai["usage"]["total_tokens"] == systemone["usage"]["input_tokens"] == 131
    first, second = api.asked
    assert first.items == second.items


async def test_both_apis_ask_the_same() -> None:
    """A question has the same text in either, so it has the same answer."""
    async with client() as api:
        openai, systemone = await api.post(DECISIONS), await api.post(SYSTEM_ONE)
    route, _, angry = openai["answers"]
    shown = {each["value"]: each["probability"] for each in route["probabilities"]}
    assert systemone["answers"]["route"]["probabilities"] == shown
    assert systemone["answers"]["angry"]["noul"] == angry["probability"]


async def test_envelopes() -> None:
    """What llama.cpp expects of the keys, and their order."""
    async with client() as api:
        body = await api.post(SYSTEM_ONE)
        assert [*body] == ["model", "answers", "usage"]
        assert body["usage"] == {"input_tokens": 131, "output_tokens": 0}
        assert [*body["answers"]] == [*SYSTEMONE["questions"]]
        keys = {id_: {*answer} for id_, answer in body["answers"].items()}
        assert keys == {
            "route": {"type", "choice", "confidence", "probabilities"},
            "urgency": {"type", "score", "confidence", "legend", "probabilities"},
            "angry": {"type", "noul"},
        }
        assert [*await api.post(DECISIONS)] == ["model", "answers", "usage"]
        for path in BODIES:
            assert "x_diagnostics" in await api.post(path, x_diagnostics=True)


async def test_llama_cpps_refusals() -> None:
    """Each with its status, and before anything is computed."""
    async with client(eyeless(), limit=Limits(body_bytes=20_000, questions=20)) as api:
        expected: list[tuple[bytes | dict[str, Any], int, str]] = [
            (b"", 400, "invalid_request_error"),
            (b"{", 400, "invalid_request_error"),
            ({"questions": {str(number): NOUL for number in range(21)}}, 413, "request_too_large_error"),
            ({"state": "a" * 30_000}, 413, "request_too_large_error"),
            ({"state": None}, 422, "unprocessable_entity_error"),
            ({"questions": {"q": NOUL | {"instructions": {}}}}, 422, "unprocessable_entity_error"),
            ({"videos": ["data:video/mp4;base64,AA=="]}, 422, "unprocessable_entity_error"),
            ({"images": [IMAGE]}, 501, "not_supported_error"),
            ({"state": "a", "assets": {"a": {"data_base64": PNG}}}, 501, "not_supported_error"),
        ]
        for fields, status, type_ in expected:
            body = fields if isinstance(fields, bytes) else json.dumps(BODIES[SYSTEM_ONE] | fields).encode()
            error = (await api.send(SYSTEM_ONE, body, status))["error"]
            assert error.keys() == {"message", "type", "code"}
            assert (error["type"], error["code"]) == (type_, status)
        await api.post(SYSTEM_ONE, images=[], videos=None)
        assert len(api.asked) == 1


async def test_an_image_that_cannot_be_read_is_wrong() -> None:
    async with client() as api:
        body = await api.post(SYSTEM_ONE, status=422, images=["data:image/png;base64,AAAA"])
        assert body["detail"][0]["loc"] == ["body", "images", 0]


async def test_a_full_queue_says_when_to_come_again() -> None:
    def busy(_: Decision) -> Verdicts:
        raise EngineBusyError

    async with client(decide=busy) as api:
        response = await api.http.post(SYSTEM_ONE, json=BODIES[SYSTEM_ONE])
        assert (response.status_code, response.headers["retry-after"]) == (429, "1")
        assert response.json()["error"]["type"] == "rate_limit_error"
        assert (await api.post(SYSTEM_ONE, status=422, questions={}))["error"]["code"] == 422


async def test_too_long_for_the_context() -> None:
    def long(_: Decision) -> Verdicts:
        raise RequestError("9 tokens, 8 fit.", param="prompt", code="context_length_exceeded")

    async with client(decide=long) as api:
        error = (await api.post(SYSTEM_ONE, status=400))["error"]
        assert (error["type"], error["code"]) == ("exceed_context_size_error", 400)
        error = (await api.post(DECISIONS, status=400))["error"]
        assert (error["param"], error["code"]) == ("input", "context_length_exceeded")


# Models


async def test_names_that_stand_for_the_model_here() -> None:
    engines = [
        ScriptedEngine(SCRIPT, name="embedder", capabilities=Capabilities(tasks=frozenset({Task.EMBED}))),
        ScriptedEngine(SCRIPT, name="talker"),
    ]
    models = Models([served_model(each, dialect="hermes") for each in engines])
    async with client(engines[1], models=models) as api:
        for path, body in BODIES.items():
            unnamed = {name: value for name, value in body.items() if name != "model"}
            for asked in (
                {},
                {"model": None},
                {"model": ""},
                {"model": "jev-latest"},
                {"model": "gpt-6-luna"},
            ):
                assert (await api.post(path, unnamed | asked))["model"] == "talker"
                assert api.asked[-1].model == "talker"
            await api.post(path, status=404, model="nobody")
        listed = (await api.http.get("/v1/models")).json()
    assert [model["decides"] for model in listed["data"]] == [False, True]
    [shown] = listed["models"]
    assert shown.keys() == {"name", "description", "release_date"}
    assert (shown["name"], shown["release_date"]) == ("talker", "1970-01-01")


async def test_an_alias_may_be_the_name_of_a_model() -> None:
    engines = [ScriptedEngine(SCRIPT, name="first"), ScriptedEngine(SCRIPT, name="second")]
    models = Models(
        [
            served_model(engines[0], dialect="hermes"),
            served_model(engines[1], dialect="hermes", model_name=("real", "jev-latest")),
        ]
    )
    async with client(engines[0], models=models) as api:
        assert (await api.post(SYSTEM_ONE, model="jev-latest"))["model"] == "real"
        assert (await api.post(SYSTEM_ONE, model="jev-preview"))["model"] == "first"


async def test_a_model_without_a_way_to_decide() -> None:
    class UnsupportedError(RequestError):
        """It has no way."""

        status = 501

    def without(_: Decision) -> Verdicts:
        raise UnsupportedError

    async with client(decide=without) as api:
        assert (await api.post(SYSTEM_ONE, status=501))["error"]["type"] == "not_supported_error"
        await api.post(DECISIONS, status=501)


async def test_adapters_and_salts() -> None:
    engine = Adapted("base")
    adapters = {"sql": "/s", "tone": "/t"}
    models = Models([served_model(engine, model_name=("base",), dialect="hermes", adapters=adapters)])
    async with client(engine, models=models) as api:
        for path in BODIES:
            await api.post(path, model="base", cache_salt="s", priority=3, x_orders=2)
            sampling = api.asked[-1].sampling
            assert (sampling.cache_salt, sampling.priority, sampling.lora) == ("s", 3, None)
            assert api.asked[-1].orders == 2
            await api.post(path, model="base", lora=[{"name": "tone", "scale": 0.5}])
            assert api.asked[-1].sampling.lora == (Adapter("tone", 0.5),)
            assert (await api.post(path, model="sql"))["model"] == "sql"
            assert api.asked[-1].sampling.lora == (Adapter("sql"),)
            wrong = 422 if path == SYSTEM_ONE else 400
            error = (await api.post(path, status=wrong, model="base", lora=[{"scale": 1}]))["error"]
            assert "lora[0]" in error["message"]


async def test_a_request_that_is_wrong_loads_no_model() -> None:
    async with client() as api:
        loaded: list[str] = []
        find = api.server.models.model

        async def model(name: str) -> Any:
            loaded.append(name)
            return await find(name)

        api.server.models.model = model  # type: ignore[method-assign]
        await api.post(SYSTEM_ONE, status=422, questions={"q": NOUL | {"x": 1}})
        await api.post(DECISIONS, status=400, questions=[])
        assert loaded == []
        await api.post(DECISIONS)
        assert loaded == ["scripted"]


# Bodies


async def test_unknown_fields_are_ignored_and_logged() -> None:
    async with client() as api:
        with capture_logs() as lines:
            await api.post(SYSTEM_ONE, x_trace_id="a", seed=7)
            await api.post(DECISIONS, request_id="b")
        ignored = [line["names"] for line in lines if line["event"] == "unknown parameters ignored"]
        assert ignored == [["seed", "x_trace_id"], ["request_id"]]


@pytest.mark.parametrize(("encoding", "compress"), [("zstd", zstd.compress), ("gzip", gzip.compress)])
async def test_compressed_bodies(encoding: str, compress: Any) -> None:
    async with client() as api:
        body = json.dumps(BODIES[SYSTEM_ONE] | {"state": "a" * 2000}).encode()
        answer = await api.send(SYSTEM_ONE, compress(body), content_encoding=encoding)
        assert answer == await api.send(SYSTEM_ONE, body)


async def test_a_form_with_images() -> None:
    async with client() as api:
        request = BODIES[SYSTEM_ONE] | {
            "state": {"photo": "<image:1>"},
            "assets": {"<image:1>": {"type": "image", "part": "asset-0"}},
        }
        parts: list[tuple[str, Any]] = [
            ("request", (None, json.dumps(request), "application/json")),
            ("asset-0", ("asset-0", b64decode(PNG), "image/png")),
        ]
        headers = {"TypeSafe-Danger-Zone-Images": "true"}
        response = await api.http.post(SYSTEM_ONE, files=parts, headers=headers)
        assert response.status_code == 200, response.text
        [message] = api.asked[0].items
        assert isinstance(message, Message)
        _, image, _ = message.parts
        assert isinstance(image, MediaPart)
        assert (image.kind, image.width) == (MediaKind.IMAGE, 1)

        for files, place in (
            (parts[1:], "request"),
            (parts[:1], "assets"),
            ([*parts, ("asset-1", ("asset-1", b"a", "image/png"))], "assets"),
            ([*parts, parts[1]], "assets"),
            ([parts[0], *parts], "request"),
        ):
            response = await api.http.post(SYSTEM_ONE, files=files)
            assert response.status_code == 422, files
            assert response.json()["detail"][0]["loc"][1] == place


@pytest.mark.parametrize("name", [None, "request.json"])
async def test_the_request_of_a_form_is_as_short_as_any(name: str | None) -> None:
    async with client(limit=Limits(body_bytes=10_000)) as api:
        for size, statuses in ((5_000, {200}), (20_000, {413, 422})):
            request = json.dumps(BODIES[SYSTEM_ONE] | {"state": "a" * size})
            response = await api.http.post(SYSTEM_ONE, files={"request": (name, request)})
            assert response.status_code in statuses, response.text


async def test_images_in_questions_are_read_in_their_places() -> None:
    async with client() as api:
        instructions = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": IMAGE}]
        questions = [PREDICATE, PREDICATE | {"instructions": instructions}]
        await api.post(DECISIONS, input="b", questions=questions)
        plain, pictured = api.asked[0].questions
        assert plain.instructions == (TextPart("Is it?"),)
        assert [type(part) for part in pictured.instructions] == [TextPart, MediaPart]
        assert api.asked[0].items == (Message("user", (TextPart("b"),)),)  # type: ignore[arg-type]


async def test_media_that_a_model_does_not_take() -> None:
    async with client(eyeless()) as api:
        content = [{"type": "input_image", "image_url": IMAGE}]
        error = (await api.post(DECISIONS, status=400, input=[{"role": "user", "content": content}]))["error"]
        assert (error["code"], error["param"]) == ("unsupported_media", "input[0].content[0]")
        await api.post(DECISIONS, input=[{"role": "user", "content": content}], media_fallback="note")
        assert api.asked


# Keys, figures, and clients that leave


KEYS = """
[[keys]]
name = "ann"
value = "ann"
tokens_per_minute = 1000

[[keys]]
name = "bob"
value = "bob"
scopes = ["stored"]
"""


async def test_a_key_in_each_form(tmp_path: Path) -> None:
    table = tmp_path / "keys.toml"
    table.write_text(KEYS)
    async with client(keys=table) as api:
        for header in ({"authorization": "Bearer ann"}, {"x-api-key": "ann"}):
            response = await api.http.post(SYSTEM_ONE, json=BODIES[SYSTEM_ONE], headers=header)
            assert response.status_code == 200
        left = int(response.headers["x-ratelimit-remaining-tokens"])
        assert 1000 - 2 * 131 <= left < 1000 - 131
        for name, status in (("nobody", 401), ("bob", 403)):
            response = await api.http.post(
                SYSTEM_ONE, json=BODIES[SYSTEM_ONE], headers={"authorization": f"Bearer {name}"}
            )
            assert response.status_code == status
            assert response.json()["detail"]["error_type"] == response.json()["error"]["type"]
        header = {"authorization": "Bearer ann"}
        many = BODIES[DECISIONS] | {"input": "word " * 1000}
        response = await api.http.post(DECISIONS, json=many, headers=header)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "input")
        account = api.server.app.keys.find("ann")
        assert account is not None
        account.settle(0, 1200)
        response = await api.http.post(SYSTEM_ONE, json=BODIES[SYSTEM_ONE], headers=header)
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) >= 1


async def test_the_log_and_the_metrics_tell_of_decisions() -> None:
    def decide(decision: Decision) -> Verdicts:
        verdicts = [
            Verdict((0.5, 0.5), 0.2, label_is_likeliest=False, orders=2, truncated=True),
            Verdict((0.5, 0.3, 0.2), 0.9, label_is_likeliest=True),
            Verdict((0.5, 0.5), 0.6, label_is_likeliest=True),
        ]
        return Verdicts((*verdicts,), 131, 100, 4, "1-a", "june")

    async with client(decide=decide) as api:
        with capture_logs() as lines:
            await api.post(SYSTEM_ONE)
        text = (await api.http.get("/metrics")).text
    [line] = [line for line in lines if line["event"] == "request"]
    expected = {
        "model": "scripted",
        "prompt_tokens": 131,
        "cached_tokens": 100,
        "questions": 3,
        "reads": 4,
        "orders": 2,
        "label_mass": 0.2,
        "unlabelled": 1,
        "truncated": 1,
        "prompt_version": "1-a",
        "calibration": "june",
    }
    assert line | expected == line
    model = 'engine="0",model_name="scripted"'  # in any order
    for metric in (
        f'antiphon:decision_questions_total{{{model},kind="choice"}} 1.0',
        f"antiphon:decision_reads_total{{{model}}} 4.0",
        f"antiphon:decision_unlabelled_total{{{model}}} 1.0",
        f"antiphon:decision_truncated_total{{{model}}} 1.0",
        f"antiphon:decision_label_mass_count{{{model}}} 3.0",
        f"vllm:prompt_tokens_total{{{model}}} 131.0",
    ):
        name, _, value = metric.rpartition(" ")
        labels = {*name.partition("{")[2].rstrip("}").split(",")}
        rows = [row for row in text.splitlines() if row.startswith(name.partition("{")[0] + "{")]
        assert any(
            labels <= {*row.partition("{")[2].partition("}")[0].split(",")} and row.endswith(value)
            for row in rows
        ), metric


@pytest.mark.parametrize("path", BODIES)
async def test_a_client_that_leaves_ends_the_work(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with client() as api:
        begun, left = asyncio.Event(), asyncio.Event()

        async def decide(*_: Any) -> Verdicts:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.set()
            raise AssertionError

        # Undone before the stand-in is.
        with monkeypatch.context() as patch, capture_logs() as lines:
            patch.setattr(TokenModel, "decide", decide)
            asking = asyncio.ensure_future(api.http.post(path, json=BODIES[path]))
            await asyncio.wait_for(begun.wait(), 10)
            asking.cancel()
            await asyncio.wait_for(left.wait(), 10)
            await until(lambda: any(line["event"] == "request" for line in lines))
        [line] = [line for line in lines if line["event"] == "request"]
        assert (line["status"], line["finish"]) == (499, "client_left")


@pytest.mark.parametrize("kind", [QuestionKind.SCORE, QuestionKind.CHOICE])
async def test_limits_allow_no_more_options_than_there_are_labels(kind: QuestionKind) -> None:
    most = MOST_OPTIONS[kind]
    async with client(limit=Limits(options=1000, levels=1000)) as api:
        for count, status in ((most, 200), (most + 1, 422)):
            names = [f"o{number}" for number in range(count)]
            criteria = dict.fromkeys(names) if kind is QuestionKind.CHOICE else names
            question = {"type": kind, "instructions": "Which?", "criteria": criteria}
            await api.post(SYSTEM_ONE, {"state": "a", "questions": {"q": question}}, status)
        for read in reads_of(api.asked[0].questions[0])[0]:
            assert len(read.labels) == len(read.options)
