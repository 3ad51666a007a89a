"""Images on a real vLLM, in the process and behind its own server: `make test-vllm`.

The model is a small Idefics3 of random weights (`load_format=dummy`), with SmolLM2's tokenizer.

What it says means nothing, but how many tokens an image has depends on its size, as its processor in Transformers
says, and vLLM's prefix cache on its pixels. Idefics3 is one of those
whose module in vLLM needs no torchvision, of which there is no build for processors.
"""

import json
import re
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec.structs import replace
from PIL import Image

from antiphon.core.constraint import StructuralTag
from antiphon.core.errors import RequestError
from antiphon.core.items import MediaKind
from antiphon.core.turn import Sampling
from antiphon.engines.engine import Engine
from antiphon.engines.upstream import Options as UpstreamOptions
from antiphon.engines.upstream import UpstreamEngine
from antiphon.engines.vllm import Options
from tests.contracts.engine import generated, request_with_images, text_of, tokens_of
from tests.media import png
from tests.real_engine import VLLM_ARGUMENTS, VLLM_MODEL, vllm_server

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not VLLM_MODEL, reason="vLLM is not here: make test-vllm"),
    pytest.mark.timeout(900),
]

CONTEXT = 1024
IMAGE = "<image>"
DUMMY = "load_format=dummy"
_TILE = 64
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.content is string %}"
    "{{ message.content }}{% else %}{% for part in message.content %}{% if part.type == 'image' %}<image>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write(model: str, folder: Path) -> Path:
    """Write the model into a folder, with the tokenizer of another one."""
    from transformers import AutoTokenizer, Idefics3Config, LlamaConfig  # noqa: PLC0415 - only where vLLM is
    from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(model)
    places = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    added = [IMAGE, "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *places]
    tokenizer.add_special_tokens({"additional_special_tokens": added})
    tokenizer.chat_template = _TEMPLATE
    tokenizer.save_pretrained(folder)
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2}
    config = Idefics3Config(
        vision_config=Idefics3VisionConfig(
            hidden_size=32, intermediate_size=64, image_size=_TILE, patch_size=16, **heads
        ),
        text_config=LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            pad_token_id=0,
            **heads,
        ),
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        scale_factor=2,
        pad_token_id=0,
    )
    config.architectures = ["Idefics3ForConditionalGeneration"]
    config.dtype = "bfloat16"
    config.save_pretrained(folder)
    pixels = {
        "image_processor_type": "Idefics3ImageProcessor",
        "size": {"longest_edge": 2 * _TILE},
        "max_image_size": {"longest_edge": _TILE},
        "do_image_splitting": True,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))
    processor = {"processor_class": "Idefics3Processor", "image_seq_len": 4}
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return folder


class ImageContract:
    """The tests, of `engine`."""

    async def test_it_is_known_to_see(self, engine: Engine) -> None:
        assert engine.card.capabilities.media == {MediaKind.IMAGE}

    @pytest.mark.parametrize("sizes", [[(80, 40)], [(64, 64)], [(30, 90), (128, 128)]])
    async def test_images_have_as_many_tokens_as_the_processor_of_the_model_gives_them(
        self, engine: Engine, folder: Path, sizes: list[tuple[int, int]]
    ) -> None:
        from transformers import AutoProcessor  # noqa: PLC0415 - only where vLLM is

        images = [png(*size) for size in sizes]
        request = await request_with_images(engine, "What is this?", images)
        given = AutoProcessor.from_pretrained(folder)(
            text=[request.prompt.text], images=[Image.open(BytesIO(data)) for data in images]
        )
        [first, *_] = await generated(engine, request)
        assert len(request.prompt.ids) + first.media_tokens == len(given["input_ids"][0])

    async def test_the_prompt_cache_knows_an_image_by_its_pixels(self, engine: Engine) -> None:
        words, cached = " cached" * 300, []
        for colour in ((200, 0, 0), (200, 0, 0), (0, 0, 200)):
            request = await request_with_images(engine, words, [png(64, 64, colour)])
            cached.append(sum(chunk.cached_tokens for chunk in await generated(engine, request)))
        assert cached[0] == cached[2] == 0
        assert cached[1] >= 256

    async def test_it_is_held_to_a_grammar_and_scored(self, engine: Engine) -> None:
        grammar = {"type": "grammar", "grammar": 'root ::= "<" [0-9]{2,4} ">"'}
        tag = StructuralTag(json.dumps({"type": "structural_tag", "format": grammar}))
        request = await request_with_images(engine, "What is this?", [png()])
        sampling = Sampling(temperature=0, logprobs=2, logit_bias={9: 1.5}, cache_salt="salt")
        wanted = replace(request, constraint=tag, max_tokens=20, sampling=sampling)
        chunks = await generated(engine, wanted)
        assert re.fullmatch("<[0-9]{2,4}>", text_of(chunks))
        assert all(token.logprob is not None and len(token.top) == 2 for token in tokens_of(chunks))

    async def test_what_is_no_image_is_refused(self, engine: Engine) -> None:
        with pytest.raises(RequestError):
            await generated(engine, await request_with_images(engine, "What is this?", [b"no image"]))

    async def test_more_than_the_context_holds_is_refused(self, engine: Engine) -> None:
        images = [png(128, 128, (number, 0, 0)) for number in range(40)]
        with pytest.raises(RequestError, match="longer than the maximum model length"):
            await generated(engine, await request_with_images(engine, "What is this?", images))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(VLLM_MODEL, tmp_path_factory.mktemp("model"))


@pytest_asyncio.fixture(scope="class", loop_scope="module")
async def inside(folder: Path) -> AsyncIterator[Engine]:
    engine = Options(str(folder), context=CONTEXT, parallel=2, vllm=(*VLLM_ARGUMENTS, DUMMY)).build()
    await engine.start()
    yield engine
    await engine.stop()


@pytest_asyncio.fixture(scope="class", loop_scope="module")
async def behind(folder: Path) -> AsyncIterator[Engine]:
    more = f"max_model_len={CONTEXT}", "enable_scale_out=true", "enable_prompt_tokens_details=true"
    with vllm_server(str(folder), DUMMY, *more) as url:
        engine = UpstreamEngine(UpstreamOptions(url, parallel=2))
        await engine.start()
        yield engine
        await engine.stop()


class TestInside(ImageContract):
    @pytest.fixture
    def engine(self, inside: Engine) -> Engine:
        return inside


class TestBehindItsServer(ImageContract):
    @pytest.fixture
    def engine(self, behind: Engine) -> Engine:
        return behind
