"""Mistral's own tokenizer: every version of it, as mistral-common itself writes and reads it."""

import json
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.validator import ValidationMode
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer as Theirs
from msgspec.structs import replace

from antiphon.core.errors import EngineError, RequestError
from antiphon.core.items import FunctionCall, FunctionOutput, Message, Reasoning, Role, TextPart
from antiphon.core.turn import Function, PromptEnding, Turn
from antiphon.dialects.detection.detect import Evidence, detect
from antiphon.engines.engine import GenerationRequest, Prompt
from antiphon.engines.mistral_tokenizer import MistralTokenizer, mistral_file
from antiphon.engines.token_cache import TokenCache
from antiphon.engines.upstreams.tokenizers import LocalMistralTokenizer, LocalTokenizer, local_tokenizer
from antiphon.engines.vllm_stream import OutputReader, Vocabulary
from antiphon.engines.vllm_tokenizers import MistralCodec
from antiphon.render.renderer import ChatTemplateRenderer
from antiphon.render.special_tokens import split_at_separators
from tests.engines.fake_vllm import EngineCoreOutput
from tests.mistral import WRITERS

every = pytest.mark.parametrize("name", WRITERS)

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = Function("weather", "How is it?", PARAMETERS)
ID = "a1B2c3D4e"


@cache
def theirs(name):
    write, version = WRITERS[name]
    return Theirs.from_file(str(write(Path(tempfile.mkdtemp()), version)), mode=ValidationMode.test)


@cache
def ours(name):
    return MistralTokenizer(theirs(name))


@cache
def renderer(name):
    tokenizer = ours(name)
    return ChatTemplateRenderer(
        tokenizer,
        bos=tokenizer.bos,
        eos=tokenizer.eos,
        tool_prompt=None,
        special_tokens=frozenset(tokenizer.added),
    )


def tokens_of(name, turn):
    """As a prompt is tokenized: its pieces, one by one."""
    cache_ = TokenCache(ours(name).encode, ours(name).added)
    return [
        token for piece in split_at_separators(renderer(name).render(turn)) for token in cache_.encode(piece)
    ]


def message(role, text):
    return Message(role, (TextPart(text),))


def called(name, *, reasoning=False):
    """A conversation with a call, as items and as the library's messages."""
    calls = [{"id": ID, "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}]
    items = [
        message(Role.SYSTEM, "Be kind."),
        message(Role.USER, "How is Rome? Ä 漢"),
        *([Reasoning("I ask.")] if reasoning else []),
        FunctionCall(ID, "weather", '{"city": "Rome"}'),
        FunctionOutput(ID, (TextPart("sunny"),), "weather"),
        message(Role.ASSISTANT, "Sunny."),
        message(Role.USER, "And\n\nParis?"),
    ]
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "How is Rome? Ä 漢"},
        {"role": "assistant", "content": "", "tool_calls": calls}
        | ({"reasoning": "I ask."} if reasoning else {}),
        {"role": "tool", "tool_call_id": ID, "name": "weather", "content": "sunny"},
        {"role": "assistant", "content": "Sunny."},
        {"role": "user", "content": "And\n\nParis?"},
    ]
    return Turn("m", tuple(items), (WEATHER,)), messages


def expected(name, messages, **more):
    tools = [
        {
            "type": "function",
            "function": {"name": WEATHER.name, "description": WEATHER.description, "parameters": PARAMETERS},
        }
    ]
    request = ChatCompletionRequest.from_openai(messages=messages, tools=tools, **more)
    return theirs(name).encode_chat_completion(request).tokens


@every
def test_the_tokens_of_a_conversation_are_the_librarys(name):
    turn, messages = called(name)
    assert tokens_of(name, turn) == expected(name, messages)


@pytest.mark.parametrize("name", ["tekken v13", "tekken v15"])
def test_reasoning_is_written_where_the_version_has_it(name):
    turn, messages = called(name, reasoning=True)
    assert tokens_of(name, turn) == expected(name, messages)
    assert "[THINK]I ask.[/THINK]" in renderer(name).render(turn)


def test_the_effort_is_a_setting_of_the_model():
    turn, messages = called("tekken v15")
    turn = replace(turn, variables={"reasoning_effort": "high"})
    assert tokens_of("tekken v15", turn) == expected("tekken v15", messages, reasoning_effort="high")


@every
def test_an_answer_is_continued_where_it_ends(name):
    turn, messages = called(name)
    turn = replace(turn, items=(*turn.items[:-1],), ending=PromptEnding.CONTINUED)
    assert tokens_of(name, turn) == expected(name, messages[:-1], continue_final_message=True)


@every
def test_a_transcript_ends_with_the_end_of_the_answer(name):
    turn, _ = called(name)
    text = renderer(name).transcript(replace(turn, items=turn.items[:-1]))
    assert text.endswith("Sunny.</s>")


@every
def test_text_of_a_client_never_becomes_a_special_token(name):
    tokenizer = ours(name)
    plain = Turn("m", (message(Role.USER, "hello"),))
    frame = [token for token in tokens_of(name, plain) if token in tokenizer.special]
    for text in (" ".join(tokenizer.added), "[INST][/INST]</s>[TOOL_CALLS][]", "[ INST ]\ufdd0[INST]"):
        spelled = tokens_of(name, Turn("m", (message(Role.USER, f"say {text} twice"),)))
        assert [token for token in spelled if token in tokenizer.special] == frame, text


@every
def test_a_conversation_that_the_format_lacks_is_a_clients_error(name):
    with pytest.raises(RequestError) as refused:
        ours(name).render({"messages": [{"role": "narrator", "content": "once"}]})
    assert refused.value.param == "messages"
    with pytest.raises(RequestError, match="cannot express") as refused:
        ours(name).render({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]})
    assert "\n" not in refused.value.message


@every
def test_its_dialect_is_found_by_what_the_library_writes(name):
    assert detect(Evidence(ours(name), ("mistral",), "<s>", "</s>")).name == "mistral"


@pytest.mark.parametrize("name", ["tekken v3", "tekken v13"])
@pytest.mark.parametrize("names", [(), ("model", "LlamaForCausalLM")])
def test_it_is_found_whatever_the_model_is_called(name, names):
    assert detect(Evidence(ours(name), names, "<s>", "</s>")).name == "mistral"


# Text


@every
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40), cut=st.integers(0, 8))
def test_text_of_tokens_is_whole_characters_however_they_are_cut(name, text, cut):
    vocabulary = Vocabulary(MistralCodec(ours(name)))
    ids = vocabulary.codec.encode(text)  # special tokens are hidden, whoever spells them
    begun = vocabulary.encode("[INST]hello[/INST]")
    reader = OutputReader(vocabulary, GenerationRequest(Prompt("", tuple(begun)), 99))
    outputs = [ids[start : start + cut + 1] for start in range(0, len(ids), cut + 1)]
    chunks = [reader.read(EngineCoreOutput(request_id="r", new_token_ids=some)) for some in outputs]
    chunks.append(reader.read(EngineCoreOutput(request_id="r", new_token_ids=[], finish_reason="length")))
    written = "".join(chunk.text for chunk in chunks if chunk is not None)
    assert written == vocabulary.decode(ids)
    assert [token.id for chunk in chunks if chunk for token in chunk.tokens] == ids


@every
def test_special_tokens_are_shown_by_their_texts(name):
    vocabulary = Vocabulary(MistralCodec(ours(name)))
    ids = vocabulary.encode("[TOOL_CALLS]weather</s>")
    assert vocabulary.decode(ids) == "[TOOL_CALLS]weather</s>"
    assert next(iter(vocabulary.written(ids))) == "[TOOL_CALLS]"
    with pytest.raises(RequestError, match="There is no token"):
        vocabulary.decode([vocabulary.size])


def test_half_a_character_has_its_bytes():
    vocabulary = Vocabulary(MistralCodec(ours("tekken v13")))
    halves = [token for token in vocabulary.encode("🦊") if vocabulary.raw(token)]
    assert b"".join(map(vocabulary.raw, halves)) == "🦊".encode()


# Folders


@every
async def test_the_folder_of_a_model_at_a_url(name, tmp_path):
    write, version = WRITERS[name]
    file = write(tmp_path, version)
    assert mistral_file(tmp_path) == file
    tokenizer = local_tokenizer(tmp_path)
    assert isinstance(tokenizer, LocalMistralTokenizer)
    ids = await tokenizer.tokenize(["[INST]", "hello", "[/INST]"])
    assert await tokenizer.detokenize(ids) == "[INST]hello[/INST]"
    assert await tokenizer.detokenize((await tokenizer.opening(),)) == "<s>"
    assert tokenizer.conversation_template is not None
    with pytest.raises(RequestError, match="There is no token"):
        await tokenizer.detokenize([10**6])


def test_hugging_faces_is_preferred_if_its_template_is_there(tmp_path):
    write, version = WRITERS["tekken v13"]
    write(tmp_path, version)
    (tmp_path / "tokenizer.json").write_text(json.dumps(EMPTY))
    assert isinstance(local_tokenizer(tmp_path), LocalMistralTokenizer)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert isinstance(local_tokenizer(tmp_path), LocalTokenizer)


def test_a_file_that_is_none_is_an_error(tmp_path):
    (tmp_path / "tekken.json").write_text("{}")
    with pytest.raises(EngineError, match="There is no tokenizer that can be read in"):
        local_tokenizer(tmp_path)


EMPTY = {
    "version": "1.0",
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "BPE", "vocab": {}, "merges": []},
}
