"""The messages of llama.cpp, without llama.cpp."""

import msgspec
import pytest

from antiphon.core.chunks import Candidate, FinishReason, Token
from antiphon.core.errors import EngineError, RequestError
from antiphon.core.turn import Sampling
from antiphon.engines.llama_stream import UNKNOWN_ID, ChunkReader, ScoredReader, TokenPiece, reader_of
from tests.contracts.engine import text_of, tokens_of


def message(text="", tokens=(), count=0, logprobs=None, **rest):
    scores = [] if logprobs is None else logprobs["content"]
    told = {"content": text, "tokens": tokens, "tokens_predicted": count, "completion_probabilities": scores}
    return msgspec.json.encode({**told, **rest})


def final(count, reason="eos"):
    return msgspec.json.encode({"content": "", "tokens_predicted": count, "stop": True, "stop_type": reason})


class Tokenizer:
    """Knows the pieces of every text, and the text of every token: `<id>`."""

    def __init__(self, *pieces):
        self._pieces = [TokenPiece(*piece) for piece in pieces]

    def pieces(self, _text):
        return self._pieces

    def text(self, token):
        return f"<{token}>"


PARTY = ((6, b"\xf0\x9f"), (7, b"\x8e"), (8, b"\x89"))


def read(reader, *messages):
    return [chunk for raw in messages if (chunk := reader.read(raw)) is not None]


def ids(*messages, pieces=()):
    return [token.id for token in tokens_of(read(ChunkReader(Tokenizer(*pieces)), *messages))]


class TestChunkReader:
    def test_one_token_in_a_message(self):
        assert ids(message("a", [5], 1), message("b", [6], 2), final(2)) == [5, 6]

    def test_progress_is_no_chunk(self):
        assert ids(message("", [0], 0, prompt_progress={"total": 3})) == []

    def test_the_first_chunk_tells_what_the_prompt_cache_gave(self):
        reader = ChunkReader(Tokenizer())
        progress = message("", [0], 0, prompt_progress={"total": 9, "cache": 7})
        chunks = [
            reader.read(raw) for raw in (progress, message("a", [5], 1), message("b", [6], 2), final(2))
        ]
        assert [chunk and chunk.cached_tokens for chunk in chunks] == [None, 7, 0, 0]

    def test_lost_ids_are_recovered_if_the_text_gives_as_many_with_the_same_last(self):
        lost = message("🎉", [8], 3)
        assert ids(lost, pieces=PARTY) == [6, 7, 8]
        for wrong in ([7, 8], [6, 7, 9], [5, 6, 7, 8], []):
            assert ids(lost, pieces=[(token, b"") for token in wrong]) == [UNKNOWN_ID, UNKNOWN_ID, 8]

    def test_a_character_that_never_came_is_counted(self):
        assert ids(message("a", [5], 1), final(3, "limit")) == [5, UNKNOWN_ID, UNKNOWN_ID]

    def test_errors_show_what_the_request_did_and_hide_the_rest(self):
        reader = ChunkReader(Tokenizer())
        with pytest.raises(EngineError, match=r"refused the prompt: too long\."):
            reader.read(b'{"error":{"code":400,"message":"too long"}}')
        with pytest.raises(EngineError) as raised:
            reader.read(b'{"error":{"code":500,"message":"ggml.c:123"}}')
        assert "ggml" not in raised.value.message
        assert "ggml" in str(raised.value.__cause__)

    def test_a_grammar_that_cannot_be_read_is_the_request_s_fault(self):
        raw = b'{"error":{"code":400,"message":"Failed to initialize samplers: failed to parse grammar"}}'
        with pytest.raises(RequestError, match="not valid GBNF") as raised:
            ChunkReader(Tokenizer()).read(raw)
        assert raised.value.param == "structured_outputs.grammar"


class TestStops:
    def chunk(self, raw, *stops):
        reader = ChunkReader(Tokenizer(*PARTY), frozenset(stops))
        reader.read(message("a", [5], 1))
        return reader.read(raw)

    def test_a_stop_is_the_end_and_hidden(self):
        chunk = self.chunk(message("b", [6], 2), 9, 6)
        assert (chunk.text, chunk.tokens) == ("", (Token(6, ""),))
        finish = chunk.finish
        assert (finish.reason, finish.stop, finish.completion_tokens) == (FinishReason.STOP, 6, 2)

    def test_other_tokens_are_none(self):
        assert self.chunk(message("b", [6], 2), 9).finish is None

    @pytest.mark.parametrize(("stop", "kept"), [(6, [6]), (7, [6, 7]), (8, [6, 7, 8])])
    def test_a_stop_inside_a_character_loses_the_character(self, stop, kept):
        chunk = self.chunk(message("🎉", [8], 4), stop)
        assert [token.id for token in chunk.tokens] == kept
        assert text_of([chunk]) == "".join(token.text for token in chunk.tokens) == ""
        assert (chunk.finish.stop, chunk.finish.completion_tokens) == (stop, 1 + len(kept))


def listed(token, text, logprob, raw=None):
    return {
        "id": token,
        "token": text,
        "bytes": list(text.encode() if raw is None else raw),
        "logprob": logprob,
    }


def scored(token, text, logprob, *top, raw=None):
    return {"content": [{**listed(token, text, logprob, raw), "top_logprobs": list(top)}]}


class TestScoredReader:
    def tokens(self, raw, most=2, pieces=PARTY):
        return tokens_of(read(ScoredReader(Tokenizer(*pieces), candidate_count=most), raw))

    def test_a_token_and_the_likeliest_beside_it(self):
        top = (listed(6, "b", -0.1), listed(5, "a", -2.5))
        [token] = self.tokens(message("a", [5], 1, scored(5, "a", -2.5, *top)))
        assert token == Token(5, "a", -2.5, (Candidate(6, "b", -0.1), Candidate(5, "a", -2.5)))

    def test_no_more_are_listed_than_were_asked_for(self):
        [token] = self.tokens(message("a", [5], 1, scored(5, "a", -1, listed(6, "b", -0.1))), most=0)
        assert (token.logprob, token.top) == (-1, ())

    def test_candidates_have_their_bytes_if_they_are_no_characters(self):
        top = (listed(6, "", -0.1, b"\xf0\x9f"), listed(7, " ", -0.2, b" \xe6"), listed(8, "é", -0.3))
        [token] = self.tokens(message("a", [5], 1, scored(5, "a", -1, *top)), most=3)
        assert token.top == (
            Candidate(6, "\ufffd", -0.1, b"\xf0\x9f"),
            Candidate(7, " \ufffd", -0.2, b" \xe6"),
            Candidate(8, "é", -0.3),
        )

    def test_special_candidates_get_the_text_that_llama_cpp_hides(self):
        [token] = self.tokens(message("a", [5], 1, scored(5, "a", -1, listed(2, "", -0.1))))
        assert token.top == (Candidate(2, "<2>", -0.1),)

    def test_tokens_that_share_a_character_have_their_own_bytes(self):
        tokens = self.tokens(message("🎉", [8], 3, scored(8, "🎉", -0.5)))
        assert [(token.id, token.text, token.raw) for token in tokens] == [
            (6, "", b"\xf0\x9f"),
            (7, "", b"\x8e"),
            (8, "🎉", b"\x89"),
        ]
        assert [token.logprob for token in tokens] == [None, None, -0.5]

    def test_what_cannot_be_recovered_is_kept_whole_in_the_last(self):
        broken = b"\xe7\xae again"
        raw = message("\ufffd again", [9], 3, scored(9, "\ufffd again", -0.5, raw=broken))
        tokens = self.tokens(raw)
        assert [(token.id, token.raw) for token in tokens] == [(-1, None), (-1, None), (9, broken)]

    def test_the_end_and_progress_are_read_as_without(self):
        reader = ScoredReader(Tokenizer(), frozenset({5}), candidate_count=1)
        assert reader.read(message("", [0], 0, prompt_progress={"total": 3, "cache": 2})) is None
        chunk = reader.read(message("a", [5], 1, scored(5, "a", -1)))
        assert (chunk.text, chunk.cached_tokens, chunk.finish.stop) == ("", 2, 5)
        assert chunk.tokens == (Token(5, "", -1),)
        assert reader.read(final(1)).finish.reason is FinishReason.STOP


def test_the_reader_is_chosen_by_what_is_asked_for():
    tokenizer = Tokenizer()
    assert type(reader_of(Sampling(), tokenizer)) is ChunkReader
    assert type(reader_of(Sampling(logprobs=0), tokenizer)) is ScoredReader


class TestSpecialTokens:
    @pytest.mark.parametrize("logprobs", [None, 1])
    @pytest.mark.parametrize(("reason", "end"), [("eos", ""), ("limit", "<2>")])
    def test_all_are_shown_but_the_one_that_ended_the_answer(self, logprobs, reason, end):
        messages = [message("", [7], 1), message("a", [5], 2), message("", [8], 3), message("", [2], 4)]
        for wanted, text in ((None, "a"), (False, "<7>a<8>" + end)):
            sampling = Sampling(logprobs=logprobs, skip_special_tokens=wanted)
            chunks = read(reader_of(sampling, Tokenizer()), *messages, final(4, reason))
            assert text_of(chunks) == text == "".join(token.text for token in tokens_of(chunks))
            assert [token.id for token in tokens_of(chunks)] == [7, 5, 8, 2]
            assert chunks[-1].finish.completion_tokens == 4

    def test_a_text_that_has_to_be_fetched_is_waited_for(self):
        class Slow(Tokenizer):
            known = False

            def text(self, token):
                if not self.known:
                    raise LookupError
                return super().text(token)

        tokenizer = Slow()
        reader = reader_of(Sampling(skip_special_tokens=False), tokenizer)
        assert reader.read(message("", [7], 1)) is None
        with pytest.raises(LookupError):
            reader.read(message("a", [5], 2))
        tokenizer.known = True
        assert text_of([reader.read(message("a", [5], 2))]) == "<7>a"
