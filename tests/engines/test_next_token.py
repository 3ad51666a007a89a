"""How next tokens are scored: by generating one, and by servers that take the tokens to be scored.

The shapes of vLLM's answers are those of its `entrypoints/scale_out/token_in_token_out` (0.32), those of SGLang's
of its documentation of `/generate` (`token_ids_logprob`); servers whose answers are canned, see `test_upstream`.
"""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.core.chunks import Candidate
from antiphon.core.errors import EngineDiedError, EngineError, RequestError
from antiphon.core.items import MediaKind, MediaPart
from antiphon.core.turn import Adapter, Sampling, Turn
from antiphon.engines.engine import (
    Conversation,
    GenerationRequest,
    NextToken,
    NextTokenRequest,
    Prompt,
)
from antiphon.engines.next_token import (
    AT_ONCE,
    COUNTS,
    LIKELIEST,
    SHORT_BEGINNING,
    chosen,
    read_each,
    score_answers,
    score_next,
)
from antiphon.engines.scripted import CAPABILITIES, ScriptedEngine
from antiphon.engines.upstream import Options, UpstreamEngine
from antiphon.engines.upstreams.vllm_server import GENERATE, MAX_NAMED
from tests.engines import toy
from tests.engines.canned import answer, canned, stream
from tests.engines.test_upstream import DONE, NO_BIAS, SGLANG, VLLM

LONG = tuple(range(1, SHORT_BEGINNING + 1))


def request(*tokens, beginning=(1, 2), ends=1, **sampling):
    prompts = tuple(Prompt(f" {end}", (end,)) for end in range(70, 70 + ends))
    return NextTokenRequest(Prompt("a b", beginning), prompts, (tokens,) * ends, Sampling(**sampling))


@given(
    st.lists(st.builds(Candidate, st.integers(0, 99), st.just("x"), st.floats(-50, 0)), max_size=120),
    st.lists(st.integers(0, 99), max_size=9),
)
def test_the_likeliest_are_chosen_and_what_was_asked_for(candidates, tokens):
    result = chosen(candidates, tokens)
    ids = [one.id for one in result.candidates]
    logprobs = [one.logprob for one in result.candidates]
    assert logprobs == sorted(logprobs, reverse=True)
    assert len(ids) == len({*ids}) <= LIKELIEST + len({*tokens})
    assert {*tokens} & {one.id for one in candidates} <= {*ids}
    assert result.complete is ({*tokens} <= {*ids})


# Each prompt by itself


async def test_a_beginning_that_is_not_short_comes_first():
    for beginning, first in ((LONG, True), (LONG[1:], False)):
        read = []

        async def reading(prompt, tokens, read=read):
            read.append((prompt.ids, tokens))
            return NextToken((), cached_tokens=7 if len(read) == 1 else 90)

        results = await read_each(request(5, beginning=beginning, ends=3), reading)
        assert (read[0] == (beginning, ())) is first
        assert [ids for ids, _ in read[first:]] == [(*beginning, end) for end in (70, 71, 72)]
        assert {result.cached_tokens for result in results} == {7}


async def test_a_failure_and_a_cancellation_end_all_of_the_reads():
    running, begun = set(), []

    async def reading(prompt, tokens):
        begun.append(prompt)
        running.add(prompt)
        assert len(running) <= AT_ONCE
        try:
            if prompt.ids[-1] == 71:
                await asyncio.sleep(0)
                raise EngineDiedError
            await asyncio.Event().wait()
        finally:
            running.discard(prompt)

    with pytest.raises(EngineDiedError):
        await read_each(request(5, ends=AT_ONCE + 5), reading)
    assert not running
    scoring = asyncio.create_task(read_each(replace(request(5, ends=1), ends=(Prompt("", (9,)),)), reading))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    scoring.cancel()
    await asyncio.wait((scoring,))
    assert begun
    assert not running


# By generating


async def scripted(line, **able):
    engine = ScriptedEngine([line], capabilities=replace(CAPABILITIES, **able))
    await engine.start()
    return engine


async def test_a_script_says_how_likely_the_first_token_is():
    likely = {"A": math.log(0.5), " A": math.log(0.125), "B": math.log(0.25)}
    engine = await scripted({"output": "B is it", "next": likely})
    ids = await engine.tokenize([*likely, "C"])
    [result] = await score_next(engine, request(*ids[:3]))
    assert result.complete
    shown = {one.text: one.logprob for one in result.candidates}
    assert {text: shown[text] for text in likely} == likely
    assert [one.text for one in result.candidates[:3]] == ["A", "B", " A"]
    assert sum(map(math.exp, shown.values())) <= 1
    [missing] = await score_next(engine, request(*ids))
    assert not missing.complete
    assert await engine.token_texts(ids[:3]) == [*likely]


@pytest.mark.parametrize("likely", [{"": -1.0}, {"A": 0.5}, {"A": -0.1, "B": -0.1}, {"A": 1000}, {"A": "x"}])
def test_log_probabilities_of_a_script_that_cannot_be(likely):
    with pytest.raises(EngineError, match="next"):
        ScriptedEngine([{"output": "a", "next": likely}])
    with pytest.raises(EngineError, match="next"):
        ScriptedEngine([{"output": "", "next": {"A": -1.0}}])


async def test_more_alternatives_are_asked_for_until_all_are_there():
    for alternatives, counts in ((10**6, [*COUNTS]), (COUNTS[1], [*COUNTS[:2]]), (10, [10])):
        engine = await scripted({"output": "a"}, alternatives=alternatives)
        [result] = await score_next(engine, request(123456))
        assert not result.complete
        assert [one.sampling.logprobs for one in engine.seen] == counts
        assert {one.max_tokens for one in engine.seen} == {1}
    engine = await scripted({"output": "a"}, alternatives=10**6)
    [token] = await engine.tokenize(["a"])
    assert (await score_next(engine, request(token)))[0].complete
    assert len(engine.seen) == 1


async def test_what_belongs_to_a_decision_goes_to_each_request():
    engine = await scripted({"output": "a"})
    sampling = {"lora": (Adapter("x"),), "cache_salt": "s", "priority": -3}
    await score_next(engine, request(1, beginning=LONG, ends=2, **sampling))
    assert len(engine.seen) == 3
    for one in engine.seen:
        assert (one.sampling.lora, one.sampling.cache_salt, one.sampling.priority) == (*sampling.values(),)


async def test_an_engine_without_log_probabilities_is_refused():
    engine = toy.ToyEngine()
    await engine.start()
    with pytest.raises(RequestError, match="no log probabilities"):
        await score_next(engine, request(1))


# By servers


async def started(server, **options):
    engine = UpstreamEngine(Options(server.url, **options))
    await engine.start()
    return engine


async def of_server(before, path, answers, asked):
    """What a server says, and what it was asked."""
    async with canned(before) as server:
        engine = await started(server)
        server.answers = {**before, path: answers}
        server.asked.clear()
        try:
            return await score_next(engine, asked), [one.body for one in server.asked if one.path == path]
        finally:
            await engine.stop()


NAMED = {
    "choices": [
        {
            "index": 0,
            "token_ids": [504],
            "finish_reason": "length",
            "logprobs": {
                "content": [
                    {
                        "token_id": 504,
                        "logprob": -0.5,
                        "rank": 1,
                        "top_logprobs": [
                            {"token_id": 504, "logprob": -0.5, "rank": 1},
                            {"token_id": 49, "logprob": -3.5, "rank": None},
                            {"token_id": 50, "logprob": -2.5, "rank": None},
                        ],
                    }
                ]
            },
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}},
}


async def test_a_vllm_that_takes_tokens_is_told_which():
    before = {**VLLM, GENERATE: [answer(400, {"error": {"message": "token_ids: Field required"}})]}
    asked = request(49, 50, cache_salt="s", lora=(Adapter("tone"),), ends=2)
    results, bodies = await of_server(before, GENERATE, [answer(200, NAMED)], asked)
    expected = (Candidate(504, "", -0.5), Candidate(50, "", -2.5), Candidate(49, "", -3.5))
    assert results == (NextToken(expected, cached_tokens=2),) * 2
    assert bodies[0] == {
        "model": "tone",
        "token_ids": [1, 2, 70],
        "sampling_params": {
            "max_tokens": 1,
            "temperature": 0,
            "logprobs": 3,  # the likeliest is one of them
            "logprob_token_ids": [49, 50, 49],
        },
        "cache_salt": "s",
    }


async def test_more_tokens_than_a_vllm_lets_name_take_several_requests():
    before = {**VLLM, GENERATE: [answer(400, {"error": {"message": "token_ids: Field required"}})]}
    asked = request(*range(100, 100 + MAX_NAMED + 1))
    [result], bodies = await of_server(before, GENERATE, [answer(200, NAMED)], asked)
    assert not result.complete
    named = [body["sampling_params"]["logprob_token_ids"] for body in bodies]
    assert named == [[*range(100, 100 + MAX_NAMED), 100], [100 + MAX_NAMED] * 2]


async def test_another_vllm_is_asked_for_the_likeliest():
    names = {"token_id:504": -0.5, "token_id:49": -3.5}
    scores = {"token_logprobs": [-0.5], "tokens": ["token_id:504"], "top_logprobs": [names]}
    choice = {"index": 0, "text": "The", "logprobs": scores, "finish_reason": "length", "token_ids": [504]}
    answers = stream({"choices": [choice]}, DONE)
    [result], bodies = await of_server(VLLM, "/v1/completions", answers, request(49))
    assert result == NextToken((Candidate(504, "The", -0.5), Candidate(49, " text", -3.5)))
    assert [body["logprobs"] for body in bodies] == [20]
    [missing], bodies = await of_server(VLLM, "/v1/completions", answers, request(49, 50))
    assert not missing.complete
    assert [body["logprobs"] for body in bodies] == [*COUNTS]


async def test_sglang_is_told_which_tokens():
    meta = {
        "finish_reason": {"type": "length", "length": 1},
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "cached_tokens": 2,
        "output_token_logprobs": [[-0.5, 504, "The"]],
        "output_top_logprobs": [[[-0.5, 504, "The"], [-2.5, 50, "B"]]],
        "output_token_ids_logprobs": [[[-3.5, 49, "A"], [-2.5, 50, "B"]]],
    }
    async with canned({**SGLANG, "/generate": [answer(400, NO_BIAS)]}) as server:
        engine = await started(server)
        server.answers = {**SGLANG, "/generate": [answer(200, {"text": "The", "meta_info": meta})]}
        [result] = await score_next(engine, request(49, 50, cache_salt="s"))
        body = server.asked[-1].body
        with pytest.raises(RequestError):  # it would end the server
            await score_next(engine, request(10**6))
        await engine.stop()
    assert result == NextToken(
        (Candidate(504, "The", -0.5), Candidate(50, "B", -2.5), Candidate(49, "A", -3.5)), cached_tokens=2
    )
    assert body["input_ids"] == [1, 2, 70]
    assert (body["token_ids_logprob"], body["top_logprobs_num"]) == ([49, 50], LIKELIEST)
    assert (body["return_logprob"], body["extra_key"]) == (True, "s")
    assert body["sampling_params"] == {"max_new_tokens": 1, "temperature": 0}


CHAT = {"/v1/models": [answer(200, {"object": "list", "data": [{"id": "m", "owned_by": "somebody"}]})]}


async def test_the_first_token_of_an_answer_to_a_conversation():
    tops = [
        {"token": "A", "logprob": -0.5, "bytes": [65]},
        {"token": " A", "logprob": -1.5, "bytes": [32, 65]},
    ]
    content = [{**tops[0], "top_logprobs": tops}]
    choice = {"index": 0, "delta": {"content": "A"}, "logprobs": {"content": content}, "finish_reason": None}
    events = stream(
        {"choices": [choice]}, {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}, DONE
    )
    thinking = stream(
        {"choices": [{"index": 0, "delta": {"reasoning_content": "Hm"}, "finish_reason": "length"}]}, DONE
    )
    message = ({"role": "user", "content": "Which?"},)
    asked = GenerationRequest(Prompt("", ()), 50, conversation=Conversation(Turn("m", ()), message))
    async with canned(CHAT) as server:
        engine = await started(server, upstream_kind="chat")
        server.answers["/v1/chat/completions"] = events
        results = await score_answers(engine, [asked, asked])
        body = server.asked[-1].body
        server.answers["/v1/chat/completions"] = thinking
        [nothing] = await score_answers(engine, [asked])
        await engine.stop()
    expected = (Candidate(-1, "A", -0.5), Candidate(-1, " A", -1.5))
    assert [result.candidates for result in results] == [expected] * 2
    assert nothing.candidates == ()
    assert (body["logprobs"], body["top_logprobs"], body["max_tokens"], body["temperature"]) == (
        True,
        20,
        1,
        0,
    )


def picture(number):
    return MediaPart(MediaKind.IMAGE, str(number), "image/png", b"png")


def prompts():
    """Prompts with pictures between their texts, as `around` has them."""
    texts = st.lists(st.tuples(st.text("ab", min_size=1)).map(tuple) | st.just(()), min_size=1, max_size=3)
    return texts.map(
        lambda around: Prompt(
            "<image>".join("".join(pieces) for pieces in around),
            tuple(range(len(around))),
            tuple(map(picture, range(len(around) - 1))),
            (*around,) if len(around) > 1 else (),
            placeholders=("<image>",) * (len(around) - 1),
        )
    )


@given(prompts(), prompts())
def test_a_prompt_is_followed_with_all_that_is_in_it(beginning, end):
    whole = beginning.followed_by(end)
    assert (whole.text, whole.ids) == (beginning.text + end.text, beginning.ids + end.ids)
    assert whole.media == beginning.media + end.media
    assert len(whole.placeholders) == len(whole.media)
    if whole.media:
        assert "<image>".join("".join(pieces) for pieces in whole.around) == whole.text
    else:
        assert whole == Prompt(whole.text, whole.ids)


async def test_the_media_of_an_end_are_read():
    image = MediaPart(MediaKind.IMAGE, "digest", "image/png", b"an image")
    end = Prompt("<image>?", (1, 2), (image,), ((), ("?",)), placeholders=("<image>",))
    seen = []

    async def read(prompt, _):
        seen.append(prompt)
        return NextToken(())

    beginning = Prompt("See ", (3,))
    await read_each(NextTokenRequest(beginning, (end,), ((),)), read)
    assert seen == [beginning.followed_by(end)]
    assert seen[0].media == (image,)
