"""The messages of llama.cpp, without llama.cpp."""

import msgspec
import pytest

from antiphon.core.errors import EngineError
from antiphon.core.turn import Sampling
from antiphon.engines.engine import Generation, Prompt
from antiphon.engines.llama_stream import UNKNOWN_ID, ChunkReader, request_of
from tests.contracts.engine import tokens_of


def message(text="", tokens=(), count=0, **rest):
    verbose = {"tokens": tokens, "tokens_predicted": count}
    return msgspec.json.encode(
        {"choices": [{"text": text, "finish_reason": None}], "__verbose": verbose, **rest}
    )


def final(count, reason="stop"):
    usage = {"completion_tokens": count}
    return msgspec.json.encode({"choices": [{"text": "", "finish_reason": reason}], "usage": usage})


class TestChunkReader:
    def ids(self, *messages, tokenize=lambda text: []):
        reader = ChunkReader(tokenize)
        chunks = [chunk for raw in messages if (chunk := reader.read(raw)) is not None]
        return [token.id for token in tokens_of(chunks)]

    def test_one_token_in_a_message(self):
        assert self.ids(message("a", [5], 1), message("b", [6], 2), final(2)) == [5, 6]

    def test_progress_is_no_chunk(self):
        assert self.ids(message("", [0], 0, prompt_progress={"total": 3})) == []

    def test_the_first_chunk_tells_what_the_prompt_cache_gave(self):
        reader = ChunkReader(lambda text: [])
        progress = message("", [0], 0, prompt_progress={"total": 9, "cache": 7})
        chunks = [
            reader.read(raw) for raw in (progress, message("a", [5], 1), message("b", [6], 2), final(2))
        ]
        assert [chunk and chunk.cached_tokens for chunk in chunks] == [None, 7, 0, 0]

    def test_lost_ids_are_recovered_if_the_text_gives_as_many_with_the_same_last(self):
        lost = message("🎉", [8], 3)
        assert self.ids(lost, tokenize=lambda text: [6, 7, 8]) == [6, 7, 8]
        for wrong in ([7, 8], [6, 7, 9], [5, 6, 7, 8], []):
            assert self.ids(lost, tokenize=lambda text, wrong=wrong: wrong) == [UNKNOWN_ID, UNKNOWN_ID, 8]

    def test_a_character_that_never_came_is_counted(self):
        assert self.ids(message("a", [5], 1), final(3, "length")) == [5, UNKNOWN_ID, UNKNOWN_ID]

    def test_errors_show_what_the_request_did_and_hide_the_rest(self):
        reader = ChunkReader(lambda text: [])
        with pytest.raises(EngineError, match=r"refused the prompt: too long\."):
            reader.read(b'{"error":{"code":400,"message":"too long"}}')
        with pytest.raises(EngineError) as raised:
            reader.read(b'{"error":{"code":500,"message":"ggml.c:123"}}')
        assert "ggml" not in raised.value.message
        assert "ggml" in str(raised.value.__cause__)


def test_a_request_has_only_what_was_asked_for():
    sampling = Sampling(temperature=0, seed=-1)
    asked = msgspec.json.decode(request_of(Generation(Prompt("a", (1, 2)), 9, sampling, frozenset("ba"))))
    assert asked.pop("seed") in range(2**32 - 1)  # 2**32 - 1 would mean "any"
    assert asked == {
        "prompt": [1, 2],
        "n_predict": 9,
        "temperature": 0,
        "preserved_tokens": ["a", "b"],
        "cache_prompt": False,
        "stream": True,
        "return_progress": True,
        "verbose": True,
    }
