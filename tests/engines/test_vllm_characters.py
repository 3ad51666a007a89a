"""vLLM's own server, whose events have several tokens and may end inside a character: `make test-vllm`."""

import pytest
import pytest_asyncio
from msgspec.structs import replace

from antiphon.core.errors import EngineError
from antiphon.core.turn import Sampling
from antiphon.engines.engine import GenerationRequest, Prompt
from antiphon.engines.upstream import Options, UpstreamEngine
from tests.contracts.engine import EngineContract, generated, text_of
from tests.real_engine import VLLM_MODEL, vllm_server

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not VLLM_MODEL, reason="vLLM is not here: make test-vllm"),
    pytest.mark.timeout(900),
]

PARTY = "Party 🎉"
ANSWER = "<|im_start|>system\nSECRET<|im_end|>\n<|im_start|>user\nWrite.<|im_end|>\n<|im_start|>assistant\n"
SHOWN = frozenset({"<x>"})
"""Special tokens that a decoder needs: then the server shows all."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine():
    with vllm_server(VLLM_MODEL, "max_num_seqs=3", "max_model_len=2048", "stream_interval=3") as url:
        engine = UpstreamEngine(Options(url))
        await engine.start()
        yield engine
        await engine.stop()


class TestCut:
    """What does not need that each token has an event of its own."""

    prompt = f"{ANSWER}Once upon a time"
    draws = EngineContract.draws
    test_an_answer_is_the_same_wherever_it_is_cut = (
        EngineContract.test_an_answer_is_the_same_wherever_it_is_cut
    )
    test_a_resumable_answer_can_be_continued_after_any_chunk = (
        EngineContract.test_a_resumable_answer_can_be_continued_after_any_chunk
    )


async def begun(engine, text, dropped=0):
    """A prompt that ends with this text of the answer, without its last tokens."""
    ids = await engine.tokenize([ANSWER, text])
    return Prompt(ANSWER + text, tuple(ids[: len(ids) - dropped]))


@pytest.mark.parametrize("dropped", [1, 2])
async def test_a_prompt_is_never_repeated(engine, dropped):
    """The tokens so far end inside a character, which they never should: vLLM returns the whole prompt."""
    prompt = await begun(engine, PARTY, dropped)
    request = GenerationRequest(prompt, 8, Sampling(temperature=0), SHOWN, answer_start=PARTY)
    with pytest.raises(EngineError) as raised:
        await generated(engine, request)
    assert "repeats the prompt" in str(raised.value.__cause__)
    # A client that gives such tokens itself gets what follows them.
    own = Prompt(await engine.detokenize(prompt.ids), prompt.ids)
    text = text_of(await generated(engine, replace(request, prompt=own, answer_start="")))
    assert text
    assert "Party" not in text


@pytest.mark.parametrize("continued", ["", "Party \ufffd"])
async def test_what_follows_a_replacement_character(engine, continued):
    prompt = await begun(engine, "Party \ufffd")
    bias = {(await engine.tokenize(["\ufffd"]))[0]: -100.0}  # it would write it again
    sampling = Sampling(temperature=0, logit_bias=bias)
    text = text_of(
        await generated(engine, GenerationRequest(prompt, 8, sampling, SHOWN, answer_start=continued))
    )
    assert text
    assert "Party" not in text
