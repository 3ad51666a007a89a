"""Text of a prompt is never text of an answer, whatever character the prompt ends with, or in."""

import pytest
from msgspec.structs import replace

from antiphon.core.errors import EngineError, RequestError
from antiphon.engines.engine import GenerationRequest, Prompt
from antiphon.engines.pool import PoolEngine
from tests.contracts.engine import generated, text_of, tokens_of
from tests.engines.byte_servers import MARK, ByteModel, Vllm, VllmText, decode, tokenize, upstream

RULES = f"The rules are secret. {MARK}"
PARTY = "🎉".encode()


async def answered(written, rest, *, begun="", text=None, sizes=(), preserve=frozenset({"<x>"})):
    """What comes after a prompt that ends with these tokens of the answer."""
    ids = (*tokenize(RULES), *written)
    prompt = Prompt(decode(ids) if text is None else text, ids)
    engine = upstream(Vllm(ByteModel([*written, *rest]), sizes))
    await engine.start()
    chunks = await generated(engine, GenerationRequest(prompt, 100, answer_start=begun, preserve=preserve))
    return text_of(chunks), [token.id for token in tokens_of(chunks)][:-1]


def halves():
    return tokenize(PARTY[:2]), tokenize(PARTY[2:] + b"!")


def test_this_is_what_vllm_makes_of_it():
    """Without us, the whole prompt is in the answer."""
    first, second = halves()
    text = VllmText([*tokenize(RULES), *first])
    assert "".join(map(text.feed, second)) == RULES + "🎉!"


@pytest.mark.parametrize("sizes", [(), (9,)])
async def test_a_continued_answer_never_repeats_its_prompt(sizes):
    """The tokens so far end inside a character, which they never should."""
    first, second = halves()
    with pytest.raises(EngineError) as raised:
        await answered(first, second, begun="Hello", text=f"{RULES}Hello", sizes=sizes)
    assert "repeats the prompt" in str(raised.value.__cause__)


async def test_a_server_that_repeats_the_prompt_is_lost():
    first, second = halves()
    ids = (*tokenize(RULES), *first)
    pool = PoolEngine([(str(number), upstream(Vllm(ByteModel([*first, *second])))) for number in range(2)])
    await pool.start()
    with pytest.raises(EngineError):
        await generated(pool, GenerationRequest(Prompt(f"{RULES}a", ids), 100, answer_start="a"))
    await pool.stop()


@pytest.mark.parametrize("sizes", [(), (2,), (9,)])
@pytest.mark.parametrize("begun", ["", "Hello\ufffd"])
async def test_what_follows_a_replacement_character(sizes, begun):
    """A client cut an emoji, or the model wrote it: it is a character as any other."""
    written, rest = tokenize("Hello\ufffd"), tokenize(" the rest")
    assert await answered(written, rest, begun=begun, sizes=sizes) == (" the rest", rest)


@pytest.mark.parametrize("sizes", [(), (9,)])
async def test_a_client_may_end_its_prompt_inside_a_character(sizes):
    """With tokens that it chose itself."""
    first, second = halves()
    assert await answered(first, second, sizes=sizes) == ("🎉!", second)


async def test_what_cannot_be_told_from_the_prompt_is_refused():
    first, second = halves()
    with pytest.raises(RequestError, match="End it with a whole character") as raised:
        await answered(first, second, text="The text without special tokens\ufffd")
    assert raised.value.param == "prompt"


async def test_nothing_is_looked_up_for_prompts_that_end_with_a_character():
    server = Vllm(ByteModel(tokenize("Hello the")), (3,))
    engine = upstream(server)
    await engine.start()
    request = GenerationRequest(Prompt(RULES, tuple(tokenize(RULES))), 100)
    assert text_of(await generated(engine, request)) == "Hello the"
    assert "/detokenize" not in server.asked
    # but where it may have to be continued, of three tokens the last is
    assert text_of(await generated(engine, replace(request, resumable=True))) == "Hello the"
    assert server.asked.count("/detokenize") == 2


class SpellingVllm(Vllm):
    """Begins a text with a token that it reads as text where it is spelled, as with Mistral's own tokenizer."""

    def answer(self, path, body):
        match path:
            case "/tokenize":
                return {"tokens": [*([1] if body["add_special_tokens"] else []), *body["prompt"].encode()]}
            case "/detokenize":
                return {"prompt": bytes(body["tokens"]).decode().replace("\1", "<s>")}
        return super().answer(path, body)


async def test_a_server_whose_tokenizer_reads_special_tokens_as_text_is_refused():
    """The prompt would be other tokens than the model knows."""
    engine = upstream(SpellingVllm(ByteModel([])))
    with pytest.raises(EngineError, match="reads the special token <s> as text") as refused:
        await engine.start()
    assert "--tokenizer FOLDER" in refused.value.message
