"""A real model that sees: SmolLM2 with a vision encoder of random weights, in llama.cpp's own server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import openai
import pytest
import pytest_asyncio

from antiphon.core.chunks import Chunk
from antiphon.core.items import MediaKind, MediaPart
from antiphon.core.turn import Sampling
from antiphon.engines import llama_cpp
from antiphon.engines.engine import WORD_JOINER, GenerationRequest, NextTokenRequest, Prompt
from antiphon.engines.upstream import Options, UpstreamEngine
from antiphon.run.inspect_upstream import Feature, inspect_upstream
from tests import vision_encoder
from tests.contracts.engine import EngineContract, generated
from tests.engines import llama_http
from tests.media import data_url, png
from tests.server import running

pytestmark = pytest.mark.asyncio(loop_scope="module")

EMBEDDING = 576
RED, BLUE = png(64, 64, (255, 0, 0)), png(64, 64, (0, 0, 255))
BEGIN, END = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, shallow_model: Path) -> Iterator[str]:
    file = vision_encoder.write(tmp_path_factory.mktemp("encoder") / "mmproj.gguf", EMBEDDING)
    with llama_http.serving(shallow_model, slots=2, context=512, encoder=file) as url:
        yield url


def engine_at(url: str) -> UpstreamEngine:
    return UpstreamEngine(Options(url, upstream_key=llama_http.KEY))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(url: str) -> AsyncIterator[UpstreamEngine]:
    engine = engine_at(url)
    await engine.start()
    yield engine
    await engine.stop()


async def answer(engine: UpstreamEngine, *parts: bytes | str, pieces: tuple[str, ...] = ()) -> list[Chunk]:
    """What is said to these images and texts, between which `pieces` are the first text."""
    around: list[tuple[str, ...]] = [(BEGIN, *pieces)]
    media = []
    for part in parts:
        if isinstance(part, bytes):
            media.append(MediaPart(MediaKind.IMAGE, "", "image/png", part, 64, 64))
            around.append(())
        else:
            around[-1] += (part,)
    around[-1] += (END,)
    flat = [
        piece for index, texts in enumerate(around) for piece in (*(["<image>"] if index else []), *texts)
    ]
    ids = tuple(await engine.tokenize(flat))
    prompt = Prompt("".join(flat), ids, tuple(media), tuple(around))
    return await generated(engine, GenerationRequest(prompt, 4, Sampling(temperature=0, logprobs=1, seed=1)))


def scores(chunks: list[Chunk]) -> list[tuple[int, float | None]]:
    return [(token.id, token.logprob) for chunk in chunks for token in chunk.tokens]


class TestContract:
    prompt = "<|im_start|>user\nWhat is it?" + END
    draws = True

    media = EngineContract.test_a_prompt_may_have_media_between_its_texts
    refusal = EngineContract.test_an_image_that_is_none_is_refused
    test_a_prompt_may_have_media_between_its_texts = media
    test_an_image_that_is_none_is_refused = refusal


async def test_the_server_says_that_its_model_sees(engine: UpstreamEngine) -> None:
    assert engine.card.capabilities.media == {MediaKind.IMAGE}


async def test_inspecting_the_server_says_so(url: str) -> None:
    report = await asyncio.to_thread(inspect_upstream, Options(url, upstream_key=llama_http.KEY))

    assert Feature("media", "works", "image") in report.features


async def test_each_image_takes_the_tokens_of_its_encoder(engine: UpstreamEngine) -> None:
    texts = (vision_encoder.BEFORE, vision_encoder.AFTER, "<image>", WORD_JOINER)
    before, after, placeholder, joiner = [len(await engine.tokenize([text])) for text in texts]
    each = before + vision_encoder.TOKENS + after - placeholder

    one = await answer(engine, "It is ", RED, ". What?")
    two = await answer(engine, "It is ", RED, " and ", BLUE, ". What?")

    # A joiner follows the first character, and precedes the last.
    assert [one[0].media_tokens, two[0].media_tokens] == [each + 2 * joiner, 2 * each + 2 * joiner]


async def test_the_model_sees_pixels_in_their_order(engine: UpstreamEngine) -> None:
    red_blue = scores(await answer(engine, RED, " and ", BLUE))
    again = scores(await answer(engine, RED, " and ", BLUE))
    blue_red = scores(await answer(engine, BLUE, " and ", RED))

    assert red_blue == again
    assert red_blue != blue_red


async def test_no_text_of_a_client_becomes_a_special_token(engine: UpstreamEngine) -> None:
    joiner = len(await engine.tokenize([WORD_JOINER]))
    plain = await answer(engine, RED, pieces=("Why <|", "im_end|> ends"))
    unsealed = await answer(engine, RED, pieces=("Why <|im_end|> ends",))
    none = await answer(engine, RED, pieces=("Why",))

    assert plain[0].media_tokens >= none[0].media_tokens + joiner
    assert unsealed[0].media_tokens == none[0].media_tokens


async def test_a_client_shows_an_image(tmp_path: Path, shallow_model: Path) -> None:
    """llama.cpp runs the model here, and finds its encoder in its folder."""
    model = tmp_path / "small.gguf"
    model.symlink_to(shallow_model)
    vision_encoder.write(tmp_path / "mmproj-small.gguf", EMBEDDING)
    engine = llama_cpp.Options(str(model), context=512, parallel=1, threads=1).build()
    async with (
        running(engine) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="-") as client,
    ):
        image = {"type": "image_url", "image_url": {"url": data_url(RED)}}
        text = {"type": "text", "text": "What is it?"}
        answer = await client.chat.completions.create(
            model=server.engine.card.name, max_tokens=4, messages=[{"role": "user", "content": [text, image]}]
        )

    usage = answer.usage
    assert usage is not None
    assert usage.completion_tokens == 4
    assert usage.prompt_tokens_details is not None
    assert (
        usage.prompt_tokens
        == usage.prompt_tokens_details.text_tokens + usage.prompt_tokens_details.image_tokens
    )


async def test_next_tokens_after_an_image(engine: UpstreamEngine) -> None:
    """The prompts are sent as text; they have their bits all the same."""

    async def request(image: bytes, *ends: str) -> NextTokenRequest:
        media = (MediaPart(MediaKind.IMAGE, "", "image/png", image, 64, 64),)
        ids = tuple(await engine.tokenize([BEGIN, "<image>"]))
        beginning = Prompt(BEGIN + "<image>", ids, media, ((BEGIN,), ()))
        prompts = tuple([Prompt(end + END, tuple(await engine.tokenize([end + END]))) for end in ends])
        tokens = (await engine.tokenize(["A"]))[0]
        return NextTokenRequest(beginning, prompts, ((tokens,),) * len(ends))

    red, blue = await request(RED, " What is it?", " What is the color?"), await request(BLUE, " What is it?")
    first, second = await engine.score_next(red)
    [other] = await engine.score_next(blue)
    [alone] = await engine.score_next(NextTokenRequest(red.beginning, red.ends[1:], red.tokens[1:]))
    assert first.complete
    assert alone.candidates == second.candidates != first.candidates != other.candidates


async def test_an_image_of_a_question_is_seen(engine: UpstreamEngine) -> None:
    async def asked(image: bytes) -> NextTokenRequest:
        media = (MediaPart(MediaKind.IMAGE, "", "image/png", image, 64, 64),)
        beginning = Prompt(BEGIN, tuple(await engine.tokenize([BEGIN])))
        ids = tuple(await engine.tokenize(["<image>", " What is it?" + END]))
        end = Prompt("<image> What is it?" + END, ids, media, ((), (" What is it?" + END,)))
        return NextTokenRequest(beginning, (end, end), ((), ()))

    red, again = await engine.score_next(await asked(RED))
    [blue, _] = await engine.score_next(await asked(BLUE))
    assert red.candidates == again.candidates != blue.candidates
