"""Servers of models that send more than was asked for: tokens without end, and more than can be read in one turn."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2 as httpx
import pytest
from msgspec import Struct
from msgspec.structs import replace
from structlog.testing import capture_logs

from antiphon.core.chunks import ChatChunk, Chunk, Finish, FinishReason, Piece, PieceKind, Token
from antiphon.core.errors import AntiphonError, EngineError
from antiphon.core.turn import Sampling, Turn
from antiphon.engines.engine import Conversation, GenerationRequest, Prompt
from antiphon.engines.llama_stream import MAX_UNNAMED
from antiphon.engines.token_limit import CHARACTERS, TokenLimit
from antiphon.engines.upstream import PIECE_LINES, Options, UpstreamEngine
from tests.contracts.engine import Collected, finish_of, generated, tokens_of, until
from tests.engines.canned import END, HEAD, Canned, answer, canned, part
from tests.server import NO_TLS, running

MOST = 5
WORD = "word "
EVENTS = 20_000


def models(owner: str, **more: Any) -> dict[str, list[bytes]]:
    listed = {"id": "m", "owned_by": owner, "root": "m", "max_model_len": 2048, **more}
    ids = {"tokens": [81], "count": 1, "max_model_len": 2048}
    return {
        "/v1/models": [answer(200, {"data": [listed]})],
        "/tokenize": [answer(200, ids)],
        "/detokenize": [answer(200, {"text": "a", "prompt": "a", "content": "a"})],
    }


class Kind(Struct):
    """A kind of server: its answers to probes, the path of generations, and an event that it repeats."""

    probes: dict[str, list[bytes]]
    path: str
    event: Any
    named: str | None = None
    framed: bool = True

    def lines(self, count: int) -> bytes:
        """Lines of the stream; in an event, `"N"` is its number."""
        line = (b"data: " if self.framed else b"") + json.dumps(self.event).encode() + b"\n"
        return b"".join(line.replace(b'"N"', b"%d" % number) for number in range(1, count + 1))


COMPLETION = {"choices": [{"text": WORD}]}
LLAMA = {
    **models("llamacpp", meta={"n_vocab": 100}),
    "/props": [answer(200, {"default_generation_settings": {"n_ctx": 2048}, "total_slots": 1})],
}
KINDS = {
    "chat": Kind(models("x"), "/v1/chat/completions", {"choices": [{"delta": {"content": WORD}}]}, "chat"),
    "reasoning": Kind(
        models("x"), "/v1/chat/completions", {"choices": [{"delta": {"reasoning_content": WORD}}]}, "chat"
    ),
    "calls": Kind(
        models("x"),
        "/v1/chat/completions",
        {
            "choices": [
                {"delta": {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": WORD}}]}}
            ]
        },
        "chat",
    ),
    "anthropic": Kind(
        models("x"), "/v1/messages", {"type": "content_block_delta", "delta": {"text": WORD}}, "anthropic"
    ),
    "completions": Kind(
        {**models("x"), "/v1/completions": [answer(400, {})]}, "/v1/completions", COMPLETION, "completions"
    ),
    "tgi": Kind(
        {"/info": [answer(200, {"model_id": "m", "max_total_tokens": 2048, "max_input_tokens": 1024})]},
        "/generate_stream",
        {"token": {"text": WORD}},
    ),
    "tabbyapi": Kind(models("tabbyAPI"), "/v1/completions", COMPLETION, "tabbyapi"),
    "vllm": Kind(models("vllm"), "/v1/completions", {"choices": [{"text": WORD, "token_ids": [3]}]}),
    "sglang": Kind(
        models("sglang"),
        "/generate",
        {"text": WORD, "output_ids": [3], "meta_info": {"completion_tokens": "N"}},
    ),
    "ollama": Kind(
        {"/api/tags": [answer(200, {"models": [{"name": "m"}]})], "/api/show": [answer(200, {})]},
        "/api/generate",
        {"response": WORD},
        framed=False,
    ),
    "llama-server": Kind(LLAMA, "/completion", {"content": WORD, "tokens": [3], "tokens_predicted": "N"}),
}
NAMING = {"vllm", "sglang", "llama-server"}
"""Their tokens are counted exactly."""
REQUEST = GenerationRequest(
    Prompt("hi", (3,)), MOST, Sampling(max_tokens=MOST), conversation=Conversation(Turn("m"), ())
)


def flood(server: Canned, kind: Kind) -> None:
    """Have the server answer with the event, many times, and then nothing more."""
    server.answers[kind.path] = [HEAD, part(kind.lines(EVENTS))]
    server.silent.add(kind.path)


async def started(url: str, kind: Kind) -> UpstreamEngine:
    engine = UpstreamEngine(Options(url, upstream_kind=kind.named))
    await engine.start()
    return engine


@pytest.fixture
def vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    async def known(_client: Any) -> int:
        return 100

    monkeypatch.setattr("antiphon.engines.upstreams.sglang._vocabulary", known)


@pytest.mark.usefixtures("vocabulary")
@pytest.mark.parametrize("name", KINDS)
async def test_an_answer_ends_where_it_was_asked_to(name: str) -> None:
    """The server is stopped, and has not sent more than what fits between the two."""
    kind = KINDS[name]
    async with canned(kind.probes) as server:
        engine = await started(server.url, kind)
        flood(server, kind)
        kept = server.open
        chunks = await generated(engine, REQUEST)
        await until(lambda: server.open <= kept)
        assert engine.load.idle
        await engine.stop()
    finish = finish_of(chunks)
    assert finish.reason is FinishReason.LENGTH
    if name in NAMING:
        assert (len(tokens_of(chunks)), finish.completion_tokens) == (MOST, None)
    else:
        pieces = [piece for chunk in chunks if isinstance(chunk, ChatChunk) for piece in chunk.pieces]
        text = "".join(each.text for each in [*chunks, *pieces])
        assert finish.completion_tokens == MOST
        assert text == (WORD * CHARACTERS * MOST)[: CHARACTERS * MOST]


STOPS: dict[str, Any] = {
    "chat": {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    "anthropic": {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    "completions": {"choices": [{"text": "", "finish_reason": "stop"}]},
    "tgi": {"token": {"text": ""}, "details": {"finish_reason": "eos_token", "generated_tokens": 1}},
    "tabbyapi": {"choices": [{"text": "", "finish_reason": "stop"}]},
    "vllm": {"choices": [{"text": "", "token_ids": [], "finish_reason": "stop"}]},
    "sglang": {
        "text": "",
        "output_ids": [],
        "meta_info": {"completion_tokens": 1, "finish_reason": {"type": "stop"}},
    },
    "ollama": {"response": "", "done": True, "done_reason": "stop", "eval_count": 1},
    "llama-server": {"content": "", "stop": True, "stop_type": "eos", "tokens_predicted": 1},
}
"""How each kind ends an answer. What follows, such as its usage, may never come."""


@pytest.mark.usefixtures("vocabulary")
@pytest.mark.parametrize("after", ["nothing", "comments", "events"])
@pytest.mark.parametrize("name", STOPS)
async def test_what_a_server_does_after_the_end_changes_nothing(name: str, after: str) -> None:
    """It closes the connection, or goes on for ever: the answer is whole, and the connection is closed."""
    kind = KINDS[name]
    stop = replace(kind, event=STOPS[name]).lines(1)
    more = kind.lines(EVENTS) if after == "events" or not kind.framed else b": wait\n" * EVENTS
    async with canned(kind.probes) as server:
        engine = await started(server.url, kind)
        server.answers[kind.path] = [HEAD, part(kind.lines(1) + stop)]
        if after == "nothing":
            server.close.add(kind.path)
        else:
            server.answers[kind.path] += [part(more)] * 20
            server.silent.add(kind.path)
        kept = server.open
        chunks = await generated(engine, REQUEST)
        await until(lambda: server.open <= kept)
        assert engine.load.idle
        await engine.stop()
    assert finish_of(chunks).reason is FinishReason.STOP
    pieces = [piece for chunk in chunks if isinstance(chunk, ChatChunk) for piece in chunk.pieces]
    assert "".join(each.text for each in [*chunks, *pieces]) == WORD


def test_an_answer_that_is_as_long_as_it_may_be_is_left_to_its_server() -> None:
    limit = TokenLimit(2)
    last = Chunk("", (), Finish(FinishReason.STOP))
    whole = [Chunk("a", (Token(1, "a"),)), Chunk("b", (Token(2, "b"),)), last]
    assert [limit.cut(chunk) for chunk in whole] == whole
    limit = TokenLimit(2)
    texts = [Chunk("x"), *[Chunk("y")] * 10, Chunk("", finish=Finish(FinishReason.STOP, None, 2))]
    assert [
        limit.cut(chunk) for chunk in texts
    ] == texts  # more pieces than tokens, of less than a token each
    long = Chunk("internationalization and more of it " * 4)
    assert TokenLimit(2).cut(long) == long  # one piece may have several tokens


def test_a_chunk_is_cut_within() -> None:
    tokens = (Token(1, "a"), Token(2, "b"), Token(3, "c"))
    cut = TokenLimit(2).cut(Chunk("abc", tokens, cached_tokens=7))
    assert cut == Chunk("ab", tokens[:2], Finish(FinishReason.LENGTH), cached_tokens=7)
    merged = (Token(1, ""), Token(2, ""), Token(3, "abc" * 20))
    cut = TokenLimit(2).cut(Chunk("abc" * 20, merged))
    assert (cut.text, [token.text for token in cut.tokens]) == (("abc" * 20)[:16], ["", ("abc" * 20)[:16]])
    pieces = (
        Piece(PieceKind.REASONING, "r" * 6),
        Piece(PieceKind.TEXT, "t" * 400),
        Piece(PieceKind.CALL, "x"),
    )
    chat = TokenLimit(1).cut(ChatChunk(pieces=pieces))
    assert isinstance(chat, ChatChunk)
    assert [piece.text for piece in chat.pieces] == ["r" * 6, "tt"]
    assert chat.finish == Finish(FinishReason.LENGTH, None, 1)


async def test_many_lines_are_read_in_many_turns_and_the_server_waits() -> None:
    """None is lost, the loop is free between them, and the connection is used again."""
    kind, count = KINDS["vllm"], 50 * PIECE_LINES
    last = {"choices": [{"text": "", "token_ids": [], "finish_reason": "stop"}]}
    end = b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n"
    request = GenerationRequest(Prompt("hi", (3,)), count)
    async with canned({**kind.probes, kind.path: [HEAD, part(kind.lines(count) + end), END]}) as server:
        engine = await started(server.url, kind)
        before = server.connections
        for _ in range(3):
            collected = Collected()
            turns = 0
            engine.generate(request, collected)
            while not collected.over.is_set():
                await asyncio.sleep(0)
                turns += bool(collected.batches)
            assert max(map(len, collected.batches)) <= PIECE_LINES
            assert turns >= count // PIECE_LINES
            assert len(tokens_of(await collected.whole())) == count
            await until(lambda: engine._client._idle)
        assert server.connections == before
        await engine.stop()


async def test_a_number_of_tokens_that_cannot_be_is_an_error() -> None:
    kind = KINDS["llama-server"]
    event = {"content": "a", "tokens": [3], "tokens_predicted": MAX_UNNAMED + 2}
    lines = [HEAD, part(b"data: " + json.dumps(event).encode() + b"\n\n"), END]
    async with canned({**kind.probes, kind.path: lines}) as server:
        engine = await started(server.url, kind)
        with pytest.raises(EngineError):
            await generated(engine, REQUEST)
        await engine.stop()


# Through every API


@pytest.fixture(params=["chat", "completions"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:
    kind = KINDS[request.param]
    async with canned(kind.probes) as behind:
        options = Options(behind.url, upstream_kind=kind.named, context=100_000)
        engine = UpstreamEngine(options)
        if request.param == "completions":
            engine = Templated(options)
        async with (
            running(engine, dialect=None if request.param == "chat" else "hermes") as server,
            httpx.AsyncClient(base_url=server.url, verify=NO_TLS, timeout=30) as client,
        ):
            flood(behind, kind)
            yield client


class Templated(UpstreamEngine):
    """With a chat template, which this upstream does not report."""

    @property
    def card(self) -> Any:
        return replace(super().card, chat_template="{% for m in messages %}{{ m.content }}{% endfor %}")


SAID = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
APIS = {
    "/v1/chat/completions": (
        {**SAID, "max_tokens": MOST},
        lambda body: (body["choices"][0]["finish_reason"], body["usage"]["completion_tokens"]),
        "length",
    ),
    "/v1/messages": (
        {**SAID, "max_tokens": MOST},
        lambda body: (body["stop_reason"], body["usage"]["output_tokens"]),
        "max_tokens",
    ),
    "/v1/responses": (
        {"model": "m", "input": "Hi", "max_output_tokens": MOST},
        lambda body: (body["incomplete_details"]["reason"], body["usage"]["output_tokens"]),
        "max_output_tokens",
    ),
}


@pytest.mark.parametrize("path", APIS)
async def test_every_api_says_that_the_limit_has_ended_it(client: httpx.AsyncClient, path: str) -> None:
    body, end, reason = APIS[path]
    whole = await client.post(path, json=body)
    assert end(whole.json()) == (reason, MOST)
    streamed = await client.post(path, json={**body, "stream": True})
    assert f'"{reason}"' in streamed.text


async def test_completions_say_it_too(client: httpx.AsyncClient) -> None:
    asked = await client.post("/v1/completions", json={"model": "m", "prompt": "Hi", "max_tokens": MOST})
    if asked.status_code == 200:  # a server of conversations has none
        assert asked.json()["choices"][0]["finish_reason"] == "length"
        assert asked.json()["usage"]["completion_tokens"] == MOST


# What the log has of errors


KEY = "upstream-key-of-the-operator"
QUOTED = {
    "error": {"message": f"no: Bearer {KEY}, sk-abcdefgh12345678, at /srv/model.py\nline 2" + " x" * 5_000}
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("status", [500, 503, 401, 400, 200])
async def test_errors_of_servers_are_logged_without_keys_and_tracebacks(status: int, streamed: bool) -> None:
    """And what blames the request reaches the client in the same form; nothing else does."""
    kind = KINDS["chat"]
    error = (
        [answer(status, QUOTED)]
        if status != 200
        else [HEAD, part(b"data: " + json.dumps(QUOTED).encode() + b"\n\n"), END]
    )
    async with canned({**kind.probes, kind.path: error}) as behind:
        engine = UpstreamEngine(Options(behind.url, upstream_kind="chat", upstream_key=KEY))
        with capture_logs() as logs:
            async with (
                running(engine, dialect=None) as server,
                httpx.AsyncClient(base_url=server.url, verify=NO_TLS, timeout=30) as client,
            ):
                said = await client.post("/v1/chat/completions", json={**SAID, "stream": streamed})
    for secret in (KEY, "sk-abcdefgh12345678"):
        assert secret not in f"{logs}"
        assert secret not in said.text
    assert not any("exc_info" in line for line in logs)
    assert max(len(f"{value}") for line in logs for value in line.values()) < 1_000
    assert ("/srv/model.py" in said.text) == (status == 400)
    if status in (500, 200):
        [failed] = [line for line in logs if line["event"] == "request failed"]
        assert failed["cause"].startswith("500: ")


DEEP = b'{"error":' * 5_000 + b"1" + b"}" * 5_000


def late(after: bytes) -> list[bytes]:
    """A refusal with this `Retry-After`."""
    return [answer(429, {}).replace(b"\r\n", b"\r\nRetry-After: %b\r\n" % after, 1)]


WRONG_ERRORS = {
    "a body that is nested deeply": [b"HTTP/1.1 500 X\r\nContent-Length: %d\r\n\r\n%b" % (len(DEEP), DEEP)],
    "an event that is nested deeply": [HEAD, part(b"data: " + DEEP + b"\n\n"), END],
    "a code with many digits": [HEAD, part(b'data: {"error": {"code": "%b"}}\n\n' % (b"9" * 5_000)), END],
    "a code that is no error": [HEAD, part(b'data: {"error": {"code": "200"}}\n\n'), END],
    "a wait with many digits": late(b"9" * 400),
    "a wait until a day that is none": late(b"Wed, 21 Oct 2015 07:28:00 +99999999999999"),
    "a wait of a century": late(b"3153600000"),
}


@pytest.mark.parametrize("name", WRONG_ERRORS)
async def test_errors_that_cannot_be_read_are_errors_all_the_same(name: str) -> None:
    kind = KINDS["chat"]
    async with canned({**kind.probes, kind.path: WRONG_ERRORS[name]}) as behind:
        engine = UpstreamEngine(Options(behind.url, upstream_kind="chat"))
        with capture_logs() as logs:
            async with (
                running(engine, dialect=None) as server,
                httpx.AsyncClient(base_url=server.url, verify=NO_TLS, timeout=10) as client,
            ):
                said = await client.post("/v1/chat/completions", json=SAID)
    assert said.json()["error"]["code"] in ("engine_error", "engine_busy", "engine_not_ready")
    assert 0 <= int(said.headers.get("retry-after", 0)) <= 24 * 3600
    assert not any("exc_info" in line for line in logs)


async def test_hints_before_an_answer_are_not_the_answer() -> None:
    kind = KINDS["vllm"]
    fields = b"Link: </a>\r\nContent-Encoding: gzip\r\nContent-Type: application/json\r\nRetry-After: 9\r\n"
    hints = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n" + fields + b"\r\n"
    whole = [hints + HEAD, part(kind.lines(1) + replace(kind, event=STOPS["vllm"]).lines(1)), END]
    async with canned({**kind.probes, kind.path: whole}) as server:
        engine = await started(server.url, kind)
        for _ in range(2):
            assert finish_of(await generated(engine, REQUEST)).reason is FinishReason.STOP
        await engine.stop()


USAGES: dict[str, tuple[Any, int | None]] = {
    "of nothing": ({"completion_tokens": None, "prompt_tokens": None}, None),
    "below nothing": ({"completion_tokens": -7, "prompt_tokens": -1}, None),
    "of more than any": ({"completion_tokens": 10**30, "prompt_tokens": 10**30}, None),
    "as fractions": ({"completion_tokens": 2.0, "prompt_tokens": 3.0}, 2),
    "as text": ({"completion_tokens": "many"}, None),
    "in another form": ([1, 2], None),
    "with details in another form": ({"completion_tokens": 2, "prompt_tokens_details": [1]}, None),
}


@pytest.mark.parametrize("name", USAGES)
@pytest.mark.parametrize("kind", ["chat", "completions", "vllm", "tabbyapi"])
async def test_an_answer_is_whole_whatever_its_usage_is(kind: str, name: str) -> None:
    reported, told = USAGES[name]
    of = KINDS[kind]
    usage = replace(of, event={"choices": [], "usage": reported}).lines(1)
    lines = of.lines(1) + replace(of, event=STOPS[kind]).lines(1) + usage + b"data: [DONE]\n\n"
    async with canned({**of.probes, of.path: [HEAD, part(lines), END]}) as server:
        engine = await started(server.url, of)
        chunks = await generated(engine, REQUEST)
        await engine.stop()
    finish = finish_of(chunks)
    assert finish.reason is FinishReason.STOP
    if kind != "vllm" and told is not None:
        assert finish.completion_tokens == told
    assert finish.completion_tokens is None or 0 <= finish.completion_tokens < 100


WRONG: dict[str, tuple[str, Any]] = {
    "ids below zero": ("vllm", {"choices": [{"text": "a", "token_ids": [-1]}]}),
    "ids of many bits": ("vllm", {"choices": [{"text": "a", "token_ids": [2**31]}]}),
    "names of tokens": (
        "vllm",
        {
            "choices": [
                {
                    "text": "a",
                    "token_ids": [3],
                    "logprobs": {"token_logprobs": [-1], "top_logprobs": [{f"token_id:{'9' * 5000}": -1}]},
                }
            ]
        },
    ),
    "ids of sglang": ("sglang", {"text": "a", "output_ids": [2**40], "meta_info": {"completion_tokens": 1}}),
    "ids of llama.cpp": ("llama-server", {"content": "a", "tokens": [2**40], "tokens_predicted": 1}),
    "bytes of a token": (
        "chat",
        {
            "choices": [
                {
                    "delta": {"content": "a"},
                    "logprobs": {"content": [{"token": "a", "logprob": -1, "bytes": [300, -1]}]},
                }
            ]
        },
    ),
}


@pytest.mark.usefixtures("vocabulary")
@pytest.mark.parametrize("name", WRONG)
async def test_an_event_that_cannot_be_is_an_error(name: str) -> None:
    kind, event = WRONG[name]
    of = KINDS[kind]
    async with canned({**of.probes, of.path: [HEAD, part(replace(of, event=event).lines(1)), END]}) as server:
        engine = await started(server.url, of)
        request = replace(REQUEST, sampling=Sampling(max_tokens=MOST, logprobs=1))
        with capture_logs() as logs, pytest.raises(EngineError):
            await generated(engine, request)
        await engine.stop()
    assert not any("exc_info" in line for line in logs)


@pytest.mark.parametrize("index", [None, 0, "0", False])
@pytest.mark.parametrize("kind", ["chat", "completions", "vllm"])
async def test_a_choice_without_its_number_is_the_only_one(kind: str, index: Any) -> None:
    of = KINDS[kind]
    events = [of.event, {"choices": [{}]}, {"choices": None}, {"choices": [{"text": None}]}, STOPS[kind]]
    lines = b"".join(
        replace(
            of, event=event | {"choices": [each | {"index": index} for each in event["choices"] or ()]}
        ).lines(1)
        for event in events
    )
    async with canned({**of.probes, of.path: [HEAD, part(lines), END]}) as server:
        engine = await started(server.url, of)
        chunks = await generated(engine, REQUEST)
        await engine.stop()
    pieces = [piece for chunk in chunks if isinstance(chunk, ChatChunk) for piece in chunk.pieces]
    assert "".join(each.text for each in [*chunks, *pieces]) == WORD


async def test_a_server_that_changes_the_protocol_is_an_error() -> None:
    kind = KINDS["chat"]
    upgrade = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhello"
    async with canned({**kind.probes, kind.path: [upgrade]}) as server:
        engine = await started(server.url, kind)
        with pytest.raises(AntiphonError):
            await generated(engine, REQUEST)
        await engine.stop()


async def test_other_choices_than_the_only_one_are_left_out() -> None:
    kind = KINDS["chat"]
    others = {"choices": [{"index": 1, "delta": {"content": "other"}}]}
    odd = {"choices": [{"index": 0, "delta": {"content": [{"type": "thinking", "thinking": 5}, 7]}}]}
    events = [kind.event, others, odd, STOPS["chat"]]
    lines = b"".join(replace(kind, event=event).lines(1) for event in events)
    async with canned({**kind.probes, kind.path: [HEAD, part(lines), END]}) as server:
        engine = await started(server.url, kind)
        chunks = await generated(engine, REQUEST)
        await engine.stop()
    pieces = [piece for chunk in chunks if isinstance(chunk, ChatChunk) for piece in chunk.pieces]
    assert "".join(piece.text for piece in pieces) == WORD
