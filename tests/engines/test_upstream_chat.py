"""Servers that take conversations only, canned: what they are asked, and what is made of what they say.

Where the shapes come from: OpenAI's are those of its OpenAPI description (`CreateChatCompletionRequest`,
`CreateChatCompletionStreamResponse`, `ListModelsResponse`). OpenRouter's are those of its documentation
(openrouter.ai/docs: API reference, streaming, errors and debugging, reasoning tokens, list of models). Mistral's,
Groq's and DeepSeek's are those of their API references (docs.mistral.ai, console.groq.com/docs, api-docs.deepseek.com).
Anthropic's are those of its documentation (docs.claude.com: Messages, streaming messages, errors, models).
"""

import asyncio
import json
import ssl
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.core.chunks import ChatChunk, Chunk, Finish, FinishReason, Piece, PieceKind
from antiphon.core.constraint import JsonObject, JsonSchema, Regex
from antiphon.core.errors import (
    AntiphonError,
    EngineBusyError,
    EngineDiedError,
    EngineError,
    EngineNotReadyError,
    RequestError,
)
from antiphon.core.items import MediaKind, MediaPart
from antiphon.core.turn import CallMode, Function, Sampling, ToolChoice, Turn
from antiphon.engines.engine import Conversation, GenerationRequest, Prompt
from antiphon.engines.upstream import Options, UpstreamEngine
from antiphon.run.inspect_upstream import inspect_upstream
from tests.contracts.engine import Collected, finish_of, generated
from tests.engines.canned import Canned, answer, canned, stream

CHAT = "/v1/chat/completions"
DONE = b"data: [DONE]\n\n"


def listing(*models: dict[str, Any]) -> list[bytes]:
    return [answer(200, {"object": "list", "data": list(models)})]


OPENAI = listing(
    {"id": "gpt-5-mini", "object": "model", "created": 1754425928, "owned_by": "system"},
    {"id": "gpt-4o", "object": "model", "created": 1715367049, "owned_by": "system"},
)
OPENROUTER = listing(
    {
        "id": "openai/gpt-oss-120b",
        "canonical_slug": "openai/gpt-oss-120b",
        "name": "OpenAI: gpt-oss-120b",
        "created": 1754414231,
        "context_length": 131072,
        "architecture": {"modality": "text->text", "tokenizer": "GPT"},
        "pricing": {"prompt": "0.00000004", "completion": "0.0000004"},
        "top_provider": {"context_length": 131072, "max_completion_tokens": None},
        "supported_parameters": ["max_tokens", "reasoning", "temperature", "tools", "top_k", "min_p"],
    }
)
LISTS = {
    "openai": (OPENAI, "gpt-4o"),
    "openrouter": (OPENROUTER, None),
    "mistral": (
        listing({"id": "mistral-small-latest", "owned_by": "mistralai", "max_context_length": 9}),
        None,
    ),
    "groq": (
        listing({"id": "openai/gpt-oss-20b", "owned_by": "OpenAI", "active": True, "context_window": 8}),
        None,
    ),
    "deepseek": (listing({"id": "deepseek-chat", "object": "model", "owned_by": "deepseek"}), None),
    # https://ai.google.dev/gemini-api/docs/openai
    "google": (listing({"id": "models/gemini-3-flash", "object": "model", "owned_by": "google"}), None),
    "chat": (listing({"id": "m", "owned_by": "somebody"}), None),
}


def text(said: str) -> Piece:
    return Piece(PieceKind.TEXT, said)


def reasoning(said: str) -> Piece:
    return Piece(PieceKind.REASONING, said)


def asked(**turn: Any) -> GenerationRequest:
    """What an engine for conversations is asked."""
    sampling, messages = turn.pop("sampling", Sampling()), turn.pop("messages", MESSAGES)
    return GenerationRequest(
        Prompt("", ()),
        100,
        sampling,
        conversation=Conversation(Turn("m", sampling=sampling, **turn), messages),
    )


MESSAGES: tuple[dict[str, Any], ...] = (
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Hm.",
        "reasoning": "Hm.",
        "thinking": "Hm.",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "42"},
)
TOOLS = (
    Function("f", "Finds.", {"type": "object", "properties": {"x": {"type": "integer"}}}, strict=True),
    Function("g"),
)


async def started(server: Canned, **options: Any) -> UpstreamEngine:
    engine = UpstreamEngine(Options(server.url, **options))
    await engine.start()
    return engine


async def heard(kind: str, *events: Any, request: GenerationRequest | None = None) -> tuple[list[Chunk], Any]:
    """The chunks of an answer with these events of a server of this kind, and what it was asked."""
    models, name = LISTS[kind]
    async with canned({"/v1/models": models, CHAT: stream(*events)}) as server:
        engine = await started(server, upstream_kind=kind, upstream_model=name)
        chunks = await generated(engine, request or asked())
        await engine.stop()
        return chunks, server.asked[-1].body


def said(chunks: list[Chunk]) -> list[Piece]:
    return [piece for chunk in chunks if isinstance(chunk, ChatChunk) for piece in chunk.pieces]


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


class TestWhatIsThere:
    @pytest.mark.parametrize("kind", LISTS)
    async def test_a_server_is_recognised_by_its_models(self, kind: str) -> None:
        models, name = LISTS[kind]
        refused = answer(400, {"error": {"message": "messages is required"}})
        async with canned({"/v1/models": models, CHAT: [refused]}) as server:
            report = await _report(server, name)
            assert report.kind == kind
            assert report.dialect == "none"

    async def test_what_its_list_says_of_a_model_is_known(self) -> None:
        async with canned({"/v1/models": OPENROUTER}) as server:
            engine = await started(server, upstream_model="openai/gpt-oss-120b:nitro")
            card = engine.card
            await engine.stop()
        assert (card.name, card.context) == ("openai/gpt-oss-120b:nitro", 131072)
        assert card.capabilities.chat
        assert card.capabilities.sampling == {"max_tokens", "temperature", "top_k", "min_p", "priority"}

    @pytest.mark.parametrize(
        ("models", "name", "says"),
        [
            (OPENAI, None, "The server has 2 models: gpt-5-mini, gpt-4o. Name one with --upstream-model."),
            (OPENAI, "gpt-6", "The server has no model 'gpt-6'. It has gpt-5-mini, gpt-4o."),
            ([answer(404, {})], None, "The server lists no models. Name one with --upstream-model."),
        ],
    )
    async def test_one_model_has_to_be_chosen(self, models: list[bytes], name: str | None, says: str) -> None:
        async with canned({"/v1/models": models}) as server:
            with pytest.raises(EngineError) as error:
                await started(server, upstream_kind="openai", upstream_model=name)
        assert error.value.message == says

    async def test_a_tokenizer_is_of_no_use(self) -> None:
        async with canned({"/v1/models": LISTS["deepseek"][0]}) as server:
            with pytest.raises(EngineError, match="--tokenizer has no effect on it"):
                await started(server, tokenizer="folder")

    async def test_a_server_that_takes_prompts_is_asked_with_prompts(self) -> None:
        models = LISTS["chat"][0]
        bad = [answer(400, {"error": {"message": "prompt is required"}})]
        async with canned({"/v1/models": models, CHAT: bad, "/v1/completions": bad}) as server:
            engine = await started(server)
            assert not engine.card.capabilities.chat
            await engine.stop()

    async def test_one_that_takes_neither_is_none(self) -> None:
        async with canned({"/v1/models": LISTS["chat"][0]}) as server:
            with pytest.raises(EngineError) as error:
                await started(server)
        assert "is none of the known kinds" in error.value.message

    async def test_the_report_tells_what_becomes_of_each_feature(self) -> None:
        async with canned({"/v1/models": LISTS["deepseek"][0]}) as server:
            report = await _report(server, None)
        found = {each.name: (each.state, each.how) for each in report.features}
        assert found["raw prompts"][0] == "refused"
        assert found["json_schema"] == ("refused", "by its name")
        assert found["thinking"] == ("works", 'as {"thinking":{"type":"enabled"}}')
        assert found["earlier reasoning"] == ("works", "sent as reasoning_content")
        assert found["truncation"] == ("refused", "the context is not known: --context")
        assert found["seed"] == ("refused", "by its name")

    async def test_there_are_no_tokens(self) -> None:
        async with canned({"/v1/models": LISTS["deepseek"][0]}) as server:
            engine = await started(server)
            for ask, what in ((engine.tokenize, ["a"]), (engine.detokenize, [1]), (engine.token_texts, [1])):
                with pytest.raises(RequestError) as error:
                    await ask(what)
                assert error.value.code == "conversations_only"
            await engine.stop()


async def _report(server: Canned, name: str | None) -> Any:
    """The report on a server; it runs an event loop of its own."""
    return await asyncio.to_thread(inspect_upstream, Options(server.url, upstream_model=name))


class TestWhatIsAsked:
    async def body(self, kind: str, **turn: Any) -> Any:
        _, body = await heard(kind, delta("stop", content="Hi"), DONE, request=asked(**turn))
        return body

    async def test_openai(self) -> None:
        schema = {"type": "object"}
        body = await self.body(
            "openai",
            tools=TOOLS,
            tool_choice=ToolChoice(CallMode.REQUIRED, frozenset({"f"}), parallel=False, named=True),
            format=JsonSchema(schema, name="found", description="What was found."),
            sampling=Sampling(
                temperature=0, top_p=0.5, seed=7, max_tokens=20, logprobs=2, logit_bias={5: -100}, priority=3
            ),
            variables={
                "reasoning_effort": "low",
                "enable_thinking": True,
                "thinking": True,
                "verbosity": "high",
            },
        )
        assert body == {
            "model": "gpt-4o",
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": None, "tool_calls": MESSAGES[2]["tool_calls"]},
                {"role": "tool", "tool_call_id": "call_1", "content": "42"},
            ],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "top_p": 0.5,
            "seed": 7,
            "max_completion_tokens": 20,
            "logprobs": True,
            "top_logprobs": 2,
            "logit_bias": {"5": -100},
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "f",
                        "description": "Finds.",
                        "parameters": TOOLS[0].parameters,
                        "strict": True,
                    },
                }
            ],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "parallel_tool_calls": False,
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "found",
                    "schema": schema,
                    "strict": True,
                    "description": "What was found.",
                },
            },
            "reasoning_effort": "low",
            "verbosity": "high",
        }

    async def test_openrouter(self) -> None:
        body = await self.body(
            "openrouter",
            tools=TOOLS,
            tool_choice=ToolChoice(CallMode.NONE),
            format=JsonObject(),
            reasoning_limit=2000,
            sampling=Sampling(top_k=4),
        )
        assert body["messages"][0]["role"] == "system"
        assert body["messages"][2]["reasoning"] == "Hm."
        assert "reasoning_content" not in body["messages"][2]
        assert [tool["function"]["name"] for tool in body["tools"]] == ["f", "g"]
        assert body["tools"][1]["function"]["parameters"] == {"type": "object", "properties": {}}
        assert body["tool_choice"] == "none"
        assert body["reasoning"] == {"max_tokens": 2000}
        assert (body["response_format"], body["top_k"]) == ({"type": "json_object"}, 4)

    async def test_mistral(self) -> None:
        body = await self.body(
            "mistral", tools=TOOLS, tool_choice=ToolChoice(CallMode.REQUIRED), sampling=Sampling(seed=7)
        )
        assert "stream_options" not in body
        assert (body["tool_choice"], body["random_seed"]) == ("any", 7)
        ids = body["messages"][2]["tool_calls"][0]["id"], body["messages"][3]["tool_call_id"]
        assert ids[0] == ids[1]
        assert len(ids[0]) == 9
        assert ids[0].isalnum()

    async def test_what_only_some_take(self) -> None:
        thinking = {"enable_thinking": False, "thinking": False}
        assert (await self.body("deepseek", variables=thinking))["thinking"] == {"type": "disabled"}
        assert (await self.body("groq", variables={"reasoning_effort": "low"}))["reasoning_effort"] == "low"
        body = await self.body("chat", variables=thinking)
        assert body["messages"][2]["reasoning_content"] == "Hm."
        assert body.keys() == {"model", "messages", "stream", "stream_options"}

    @pytest.mark.parametrize(
        ("kind", "turn", "param"),
        [
            ("openai", {"format": Regex("a+")}, "format"),
            ("deepseek", {"format": JsonSchema({})}, "format"),
            ("openai", {"reasoning_limit": 5}, "reasoning_limit"),
            ("mistral", {"variables": {"reasoning_effort": "low"}}, "reasoning_effort"),
            ("chat", {"variables": {"verbosity": "low"}}, "verbosity"),
            ("chat", {"variables": {"documents": []}}, "chat_template_kwargs"),
        ],
    )
    async def test_what_it_cannot_do_is_refused_before_it_is_asked(
        self, kind: str, turn: dict[str, Any], param: str
    ) -> None:
        models, name = LISTS[kind]
        async with canned({"/v1/models": models}) as server:
            engine = await started(server, upstream_kind=kind, upstream_model=name)
            with pytest.raises(RequestError) as error:
                await generated(engine, asked(**turn))
            assert error.value.param == param
            assert all(each.path != CHAT for each in server.asked)
            await engine.stop()

    async def test_its_key_is_sent_with_each_request(self) -> None:
        events = stream(delta("stop", content="Hi"), DONE)
        async with canned({"/v1/models": LISTS["deepseek"][0], CHAT: events}) as server:
            engine = await started(server, upstream_key="sk-secret")
            await generated(engine, asked())
            await engine.stop()
            assert {each.headers["authorization"] for each in server.asked} == {"Bearer sk-secret"}


def openai_event(fields: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk as OpenAI sends it."""
    return {
        "id": "chatcmpl-9lMgfRSWPHcw51s6wxKT1YEO2CKpd",
        "object": "chat.completion.chunk",
        "created": 1721075653,
        "model": "gpt-4o-mini-2024-07-18",
        "service_tier": "default",
        "system_fingerprint": "fp_0f03d4f0ee",
        "choices": [{"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish, **more}],
        "usage": None,
        "obfuscation": "xV",
    }


def fragment(
    index: int | None, arguments: Any, id_: str | None = None, name: str | None = None
) -> dict[str, Any]:
    return {"index": index, "id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


class TestWhatItSays:
    async def test_openai_text(self) -> None:
        usage = {
            "prompt_tokens": 18,
            "completion_tokens": 9,
            "total_tokens": 27,
            "prompt_tokens_details": {"cached_tokens": 16, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 4, "accepted_prediction_tokens": 0},
        }
        chunks, _ = await heard(
            "openai",
            openai_event({"role": "assistant", "content": "", "refusal": None}),
            openai_event({"content": "Hello"}),
            openai_event({"content": "!"}),
            openai_event({}, "stop"),
            {**openai_event({}), "choices": [], "usage": usage},
            DONE,
        )
        assert said(chunks) == [text("Hello"), text("!")]
        assert finish_of(chunks) == Finish(FinishReason.STOP, None, 9, 4, 18)
        assert chunks[-1].cached_tokens == 16

    async def test_openai_calls(self) -> None:
        chunks, _ = await heard(
            "openai",
            openai_event(
                {"role": "assistant", "content": None, "tool_calls": [fragment(0, "", "call_a", "f")]}
            ),
            openai_event({"tool_calls": [fragment(0, '{"x":')]}),
            openai_event({"tool_calls": [fragment(0, "1}")]}),
            openai_event({"tool_calls": [fragment(1, "", "call_b", "g"), fragment(1, "{}")]}),
            openai_event({}, "tool_calls"),
            DONE,
        )
        assert said(chunks) == [
            Piece(PieceKind.CALL, "", (), "0", "call_a", "f"),
            Piece(PieceKind.CALL, '{"x":', (), "0"),
            Piece(PieceKind.CALL, "1}", (), "0"),
            Piece(PieceKind.CALL, "", (), "1", "call_b", "g"),
            Piece(PieceKind.CALL, "{}", (), "1"),
        ]
        assert finish_of(chunks) == Finish(FinishReason.STOP)

    async def test_openai_log_probabilities(self) -> None:
        top = [
            {"token": "Hi", "logprob": -0.1, "bytes": [72, 105]},
            {"token": "\\xf0", "logprob": -3, "bytes": [240]},
        ]
        scored = {
            "content": [{**top[0], "top_logprobs": top}, {**top[1], "top_logprobs": []}],
            "refusal": None,
        }
        chunks, _ = await heard(
            "openai", openai_event({"content": "Hi"}, logprobs=scored), openai_event({}, "stop"), DONE
        )
        [piece] = said(chunks)
        hi, half = piece.tokens
        assert (hi.text, hi.logprob, hi.raw) == ("Hi", -0.1, None)
        assert [(each.text, each.logprob, each.raw) for each in hi.top] == [
            ("Hi", -0.1, None),
            ("", -3, b"\xf0"),
        ]
        assert (half.text, half.raw, half.top) == ("", b"\xf0", ())

    async def test_openai_refusals_and_filters(self) -> None:
        chunks, _ = await heard(
            "openai", openai_event({"refusal": "I cannot."}), openai_event({}, "content_filter"), DONE
        )
        assert said(chunks) == [text("I cannot.")]
        assert finish_of(chunks).reason is FinishReason.CONTENT_FILTER

    async def test_openrouter(self) -> None:
        details = [
            {"type": "reasoning.text", "text": "Hm.", "signature": None, "format": "unknown", "index": 0},
            {"type": "reasoning.encrypted", "data": "eJx", "index": 1},
        ]
        chunks, _ = await heard(
            "openrouter",
            b": OPENROUTER PROCESSING\n\n",
            delta(role="assistant", content="", reasoning="Hm.", reasoning_details=details),
            delta(role="assistant", content="", reasoning_details=details),
            {
                "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}],
                "provider": "Groq",
            },
            {
                "choices": [
                    {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
                ],
                "usage": {"prompt_tokens": 9, "completion_tokens": 4, "cost": 0.001},
            },
            DONE,
        )
        assert said(chunks) == [reasoning("Hm."), reasoning("Hm."), text("Hi")]
        assert finish_of(chunks) == Finish(FinishReason.STOP, None, 4, 0, 9)

    async def test_mistral(self) -> None:
        content = [
            {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}], "closed": True},
            {"type": "text", "text": "Hi"},
            "unknown",
        ]
        usage = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}
        chunks, _ = await heard(
            "mistral", delta(content=content), delta("model_length") | {"usage": usage}, DONE
        )
        assert said(chunks) == [reasoning("Hm."), text("Hi")]
        assert finish_of(chunks) == Finish(FinishReason.LENGTH, None, 4, 0, 9)

    async def test_fragments_that_are_not_numbered(self) -> None:
        chunks, _ = await heard(
            "chat",
            delta(tool_calls=[fragment(None, {"x": 1}, "a", "f"), fragment(None, None, "b", "g")]),
            delta(
                "tool_calls",
                tool_calls=[fragment(None, "{}")],
                function_call={"name": "h", "arguments": "{}"},
            ),
            DONE,
        )
        assert [(piece.call, piece.name, piece.text) for piece in said(chunks)] == [
            ("0", "f", '{"x":1}'),
            ("1", "g", ""),
            ("1", "", "{}"),
            ("0", "h", "{}"),
        ]


class TestFailures:
    async def failure(self, *events: Any, **options: Any) -> AntiphonError:
        """What an answer failed of, after these events."""
        collected = Collected()
        answers = {"/v1/models": LISTS["deepseek"][0], CHAT: list(events)}
        async with canned(answers, **options) as server:
            engine = await started(server, idle_seconds=0.3, upstream_key="sk-secret")
            engine.generate(asked(), collected)
            await collected.over.wait()
            await engine.stop()
        assert collected.error is not None
        assert "sk-secret" not in collected.error.message
        return collected.error

    @pytest.mark.parametrize(
        ("status", "body", "kind", "says"),
        [
            (
                400,
                {"error": {"message": "Bad key sk-secret.", "type": "x"}},
                RequestError,
                "refuses this: Bad key ….",
            ),
            (401, {"error": {"message": "Incorrect API key: sk-secret"}}, EngineError, "refuses the key"),
            (402, {"error": {"code": 402, "message": "Insufficient credits"}}, EngineError, "See the log"),
            (404, {"error": {"message": "No such model"}}, EngineError, "See the log"),
            (408, {"error": {"message": "Timed out"}}, EngineNotReadyError, "not ready"),
            (429, {"error": {"message": "Rate limit reached for org-1"}}, EngineBusyError, "Too many"),
            (500, {"error": {"message": "stack trace"}}, EngineError, "failed to answer"),
            (503, {"error": {"message": "No provider"}}, EngineNotReadyError, "not ready"),
        ],
    )
    async def test_errors(self, status: int, body: Any, kind: type[AntiphonError], says: str) -> None:
        error = await self.failure(answer(status, body))
        assert type(error) is kind
        assert says in error.message

    async def test_a_conversation_that_is_too_long(self) -> None:
        body = {
            "error": {
                "message": "Too long.",
                "type": "x",
                "code": "context_length_exceeded",
                "param": "messages",
            }
        }
        error = await self.failure(answer(400, body))
        assert (error.code, error.param) == ("context_length_exceeded", "conversation")

    @pytest.mark.parametrize(("given", "seconds"), [("7", 7), ("soon", None), (None, None)])
    async def test_when_to_try_again_is_passed_on(self, given: str | None, seconds: float | None) -> None:
        header = b"" if given is None else f"Retry-After: {given}\r\n".encode()
        head, _, body = answer(429, {}).partition(b"\r\n")
        assert (await self.failure(head + b"\r\n" + header + body)).retry_after == seconds

    async def test_when_to_try_again_may_be_a_date(self) -> None:
        later = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
        head, _, body = answer(503, {}).partition(b"\r\n")
        error = await self.failure(head + f"\r\nRetry-After: {later}\r\n".encode() + body)
        assert error.retry_after is not None
        assert 50 < error.retry_after <= 60

    @pytest.mark.parametrize(
        ("event", "kind"),
        [
            ({"error": {"message": "The server had an error", "type": "server_error"}}, EngineError),
            ({"error": {"code": 429, "message": "Rate limited"}, "choices": []}, EngineBusyError),
            (
                {
                    "error": {"code": "502", "message": "Provider disconnected"},
                    "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
                },
                EngineNotReadyError,
            ),
            (
                {"choices": [{"delta": {}, "finish_reason": "error", "error": {"code": 502}}]},
                EngineNotReadyError,
            ),
            (delta("error"), EngineError),
            (delta("insufficient_system_resource"), EngineError),
            (b"data: nonsense\n\n", EngineError),
            (DONE, EngineDiedError),
        ],
    )
    async def test_errors_in_the_middle_of_a_stream(self, event: Any, kind: type[AntiphonError]) -> None:
        assert type(await self.failure(*stream(delta(content="Hi"), event))) is kind

    async def test_a_server_that_falls_silent_or_leaves(self) -> None:
        begun = stream(delta(content="Hi"))[:-1]
        for how in ("silent", "close"):
            assert "stopped in the middle" in (await self.failure(*begun, **{how: {CHAT}})).message


ANTHROPIC = listing(
    {
        "type": "model",
        "id": "claude-sonnet-4-5",
        "display_name": "Claude Sonnet 4.5",
        "created_at": "2025-09-29T00:00:00Z",
        "max_input_tokens": 200_000,
        "max_tokens": 64_000,
    }
)


BEGIN: dict[str, Any] = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "content": [],
        "stop_reason": None,
        "usage": {"input_tokens": 20, "cache_read_input_tokens": 5, "output_tokens": 1},
    },
}
END: dict[str, Any] = {"type": "message_stop"}


SIGNED = {"google": {"thought_signature": "EqQB"}}


class TestGoogle:
    """See https://ai.google.dev/gemini-api/docs/openai and …/docs/thought-signatures."""

    BASE = "/v1beta/openai"

    async def test_a_version_may_have_another_name(self) -> None:
        answers = {
            f"{self.BASE}/models": LISTS["google"][0],
            f"{self.BASE}/chat/completions": stream(delta("stop", content="Hi"), DONE),
        }
        async with canned(answers) as server:
            engine = UpstreamEngine(
                Options(f"{server.url}{self.BASE}/", upstream_model="gemini-3-flash", upstream_key="k")
            )
            await engine.start()
            assert said(await generated(engine, asked())) == [text("Hi")]
            await engine.stop()
            assert server.asked[-1].body["model"] == "gemini-3-flash"

    async def test_a_server_that_lists_nothing_is_asked_as_before(self) -> None:
        async with canned(
            {"/there/v1/chat/completions": stream(delta("stop", content="Hi"), DONE)}
        ) as server:
            engine = UpstreamEngine(
                Options(f"{server.url}/there", upstream_kind="chat", upstream_model="m", context=9)
            )
            await engine.start()
            assert said(await generated(engine, asked())) == [text("Hi")]
            await engine.stop()

    async def test_the_signature_of_a_call_goes_back_with_it(self) -> None:
        called = {"id": "call_1", "extra_content": SIGNED, "function": {"name": "f", "arguments": "{}"}}
        events = stream(delta("tool_calls", tool_calls=[called]), DONE)
        async with canned({"/v1/models": LISTS["google"][0], CHAT: events}) as server:
            engine = await started(server)
            await generated(engine, asked())
            await generated(engine, asked())
            await engine.stop()
        first, second = (each.body["messages"][2]["tool_calls"] for each in server.asked if each.path == CHAT)
        [unknown], [known] = first, second
        assert unknown["extra_content"]["google"]["thought_signature"] == "skip_thought_signature_validator"
        assert known["extra_content"] == SIGNED


class TestAnthropic:
    async def heard(self, *events: dict[str, Any], **turn: Any) -> tuple[list[Chunk], Any]:
        """The chunks of an answer with these events, and what was asked."""
        lines = [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events]
        async with canned({"/v1/models": ANTHROPIC, "/v1/messages": stream(*lines)}) as server:
            engine = await started(server, upstream_kind="anthropic", upstream_key="sk-ant")
            assert (engine.card.name, engine.card.context) == ("claude-sonnet-4-5", 200_000)
            try:
                chunks = await generated(engine, asked(**turn))
            finally:
                await engine.stop()
            last = server.asked[-1]
            assert (last.headers["x-api-key"], last.headers["anthropic-version"]) == ("sk-ant", "2023-06-01")
            assert "authorization" not in last.headers
            return chunks, last.body

    @staticmethod
    def stopped(reason: str) -> dict[str, Any]:
        delta = {"stop_reason": reason, "stop_sequence": None}
        return {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 89}}

    @staticmethod
    def block(index: int, kind: str, *deltas: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
        started = {"type": "content_block_start", "index": index, "content_block": {"type": kind, **fields}}
        said = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        return [started, *said, {"type": "content_block_stop", "index": index}]

    async def test_what_it_says(self) -> None:
        chunks, _ = await self.heard(
            BEGIN,
            *self.block(
                0,
                "thinking",
                {"type": "thinking_delta", "thinking": "Hm."},
                {"type": "signature_delta", "signature": "EqQB"},
                thinking="",
            ),
            {"type": "ping"},
            *self.block(1, "text", {"type": "text_delta", "text": "Okay"}, text=""),
            *self.block(
                2,
                "tool_use",
                {"type": "input_json_delta", "partial_json": ""},
                {"type": "input_json_delta", "partial_json": '{"x": 1}'},
                id="toolu_1",
                name="f",
                input={},
            ),
            self.stopped("tool_use"),
            END,
        )
        assert said(chunks) == [
            reasoning("Hm."),
            text("Okay"),
            Piece(PieceKind.CALL, "", (), "2", "toolu_1", "f"),
            Piece(PieceKind.CALL, '{"x": 1}', (), "2"),
        ]
        assert finish_of(chunks) == Finish(FinishReason.STOP, None, 89, 0, 25)
        assert chunks[-1].cached_tokens == 5

    async def thinking_again(self, *blocks: dict[str, Any]) -> tuple[Any, Any]:
        """The requests after a call, before and after an answer with these blocks."""
        lines = [
            f"data: {json.dumps(each)}\n\n".encode()
            for each in (BEGIN, *blocks, self.stopped("tool_use"), END)
        ]
        async with canned({"/v1/models": ANTHROPIC, "/v1/messages": stream(*lines)}) as server:
            engine = await started(server, upstream_kind="anthropic")
            for _ in range(2):
                await generated(engine, asked(variables={"enable_thinking": True}))
            await generated(engine, asked())
            await engine.stop()
            before, after, without = (each.body for each in server.asked if each.path == "/v1/messages")
        assert without["messages"] == before["messages"]
        return before, after

    @pytest.mark.parametrize("hidden", [False, True])
    async def test_thinking_goes_back_with_its_signature(self, hidden: bool) -> None:
        redacted = self.block(1, "redacted_thinking", data="xyz") if hidden else []
        before, after = await self.thinking_again(
            *self.block(
                0,
                "thinking",
                {"type": "thinking_delta", "thinking": "H"},
                {"type": "thinking_delta", "thinking": "m."},
                {"type": "signature_delta", "signature": "EqQB"},
                thinking="",
                signature="",
            ),
            *redacted,
            *self.block(2, "tool_use", id="toolu_1", name="f", input={}),
        )
        called = {"type": "tool_use", "id": "call_1", "name": "f", "input": {}}
        assert (before["messages"][1]["content"], "thinking" in before) == ([called], False)
        assert after["thinking"] == {"type": "adaptive"}
        signed = {"type": "thinking", "thinking": "Hm.", "signature": "EqQB"}
        kept = [{"type": "redacted_thinking", "data": "xyz"}] if hidden else []
        assert after["messages"][1]["content"] == [signed, *kept, called]

    async def test_what_was_thought_behind_text_is_another_thought(self) -> None:
        _, after = await self.thinking_again(
            *self.block(0, "thinking", {"type": "signature_delta", "signature": "a"}, thinking="Oh, "),
            *self.block(1, "text", {"type": "text_delta", "text": "Okay"}, text=""),
            *self.block(2, "thinking", {"type": "thinking_delta", "thinking": "Hm."}, thinking=""),
            *self.block(3, "thinking", {"type": "signature_delta", "signature": "b"}, thinking=""),
        )
        blocks = after["messages"][1]["content"]
        assert [block.get("signature") for block in blocks] == ["b", None]

    async def test_what_it_is_asked(self) -> None:
        _, body = await self.heard(
            BEGIN,
            self.stopped("refusal"),
            END,
            tools=TOOLS,
            tool_choice=ToolChoice(CallMode.REQUIRED, parallel=False),
            format=JsonSchema({"type": "object"}),
            variables={"reasoning_effort": "low"},
            sampling=Sampling(temperature=0.5, top_k=4),
        )
        assert body == {
            "model": "claude-sonnet-4-5",
            "system": "Be brief.",
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "call_1", "name": "f", "input": {}}],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "42"}],
                },
            ],
            "stream": True,
            "max_tokens": 100,
            "temperature": 0.5,
            "top_k": 4,
            "tools": [
                {"name": "f", "description": "Finds.", "input_schema": TOOLS[0].parameters},
                {"name": "g", "input_schema": {"type": "object"}},
            ],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "output_config": {
                "format": {"type": "json_schema", "schema": {"type": "object"}},
                "effort": "low",
            },
        }

    @pytest.mark.parametrize(
        ("turn", "fields"),
        [
            ({"variables": {"enable_thinking": True}}, {"thinking": {"type": "adaptive"}}),
            ({"variables": {"enable_thinking": False, "thinking": False}}, {}),
            ({"reasoning_limit": 2000}, {"thinking": {"type": "enabled", "budget_tokens": 2000}}),
            (
                {"tools": TOOLS, "tool_choice": ToolChoice(CallMode.REQUIRED, frozenset({"g"}), named=True)},
                {
                    "tools": [{"name": "g", "input_schema": {"type": "object"}}],
                    "tool_choice": {"type": "tool", "name": "g"},
                },
            ),
        ],
    )
    async def test_what_some_requests_add(self, turn: dict[str, Any], fields: dict[str, Any]) -> None:
        _, body = await self.heard(BEGIN, self.stopped("end_turn"), END, messages=MESSAGES[1:2], **turn)
        assert {
            name: body[name] for name in body.keys() - {"model", "messages", "stream", "max_tokens"}
        } == fields

    @pytest.mark.parametrize(
        ("turn", "param"),
        [({"format": JsonObject()}, "format"), ({"variables": {"documents": []}}, "chat_template_kwargs")],
    )
    async def test_what_it_cannot_do_is_refused(self, turn: dict[str, Any], param: str) -> None:
        with pytest.raises(RequestError) as error:
            await self.heard(END, **turn)
        assert error.value.param == param

    @pytest.mark.parametrize(
        ("event", "kind"),
        [
            (
                {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
                EngineNotReadyError,
            ),
            ({"type": "error", "error": {"type": "api_error", "message": "Internal"}}, EngineError),
            ({"type": "message_delta", "delta": {"stop_reason": "unheard_of"}}, EngineError),
            ({"type": "message_stop"}, EngineDiedError),
        ],
    )
    async def test_errors_in_the_middle(self, event: dict[str, Any], kind: type[AntiphonError]) -> None:
        with pytest.raises(AntiphonError) as error:
            await self.heard(BEGIN, event)
        assert type(error.value) is kind


async def test_a_server_behind_tls(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = _certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    events = stream(delta("stop", content="Hi"), DONE)
    async with canned({"/v1/models": LISTS["deepseek"][0], CHAT: events}, tls=context) as server:
        with pytest.raises(EngineError) as error:
            await started(server)
        assert "certificate" in error.value.message
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        engine = await started(server)
        assert said(await generated(engine, asked())) == [text("Hi")]
        await engine.stop()


def _certificate(folder: Any) -> Any:
    """A file with a key, and a certificate for this machine that it signs itself."""
    from cryptography import x509  # noqa: PLC0415 - takes long
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    from cryptography.x509.oid import NameOID  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain, pem = serialization.NoEncryption(), serialization.Encoding.PEM
    path = folder / "certificate.pem"
    path.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain) + certificate.public_bytes(pem)
    )
    return path


@pytest.mark.parametrize(
    ("kind", "listed", "media"),
    [
        (
            "openrouter",
            {"architecture": {"input_modalities": ["text", "image", "file", "audio"]}},
            "audio image",
        ),
        ("openrouter", {"architecture": {"modality": "text->text"}}, ""),
        ("mistral", {"capabilities": {"vision": True}}, "image"),
        ("mistral", {"capabilities": {"vision": False}}, ""),
        ("chat", {"input_modalities": ["text", "video"]}, "video"),
        ("chat", {}, "image"),
        ("openai", {}, "image"),
        ("deepseek", {}, ""),
    ],
)
async def test_what_media_a_model_takes_its_list_says(kind: str, listed: dict[str, Any], media: str) -> None:
    async with canned({"/v1/models": listing({"id": "m", **listed}), CHAT: []}) as server:
        engine = await started(server, upstream_kind=kind)
        assert engine.card.capabilities.media == {*media.split()}
        await engine.stop()


async def test_sounds_and_films_have_the_names_that_openai_and_openrouter_know() -> None:
    part = MediaPart(MediaKind.AUDIO, "", "audio/mpeg", b"mp3")
    media = (part, replace(part, kind=MediaKind.VIDEO, media_type="video/mp4"))
    content = [{"type": "audio"}, {"type": "text", "text": "and"}, {"type": "video"}]
    request = replace(asked(messages=({"role": "user", "content": content},)), prompt=Prompt("", (), media))
    _, body = await heard("openrouter", delta("stop", content="Hi"), DONE, request=request)
    assert body["messages"][0]["content"] == [
        {"type": "input_audio", "input_audio": {"data": "bXAz", "format": "mp3"}},
        {"type": "text", "text": "and"},
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,bXAz"}},
    ]
