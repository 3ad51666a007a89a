"""How chunks are ranked, and how several rankings are joined."""

from math import isclose

from hypothesis import given
from hypothesis import strategies as st

from antiphon.app.search import RANK_SMOOTHING, RankedChunk, bm25, fused
from antiphon.store.records import ChunkRecord, Postings

WORDS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=12)


def chunk(number: int, terms: str = "") -> ChunkRecord:
    return ChunkRecord(number, "f", "f.txt", b"{}", number, terms, terms)


def postings(texts: list[list[str]], terms: str) -> Postings:
    counts = {term: sum(term in text for text in texts) for term in terms}
    chunks = [chunk(number, " ".join(text)) for number, text in enumerate(texts) if set(text) & set(terms)]
    return Postings(len(texts), sum(map(len, texts)), counts, chunks)


@given(st.lists(WORDS, min_size=1, max_size=8))
def test_scores_are_shares(texts: list[list[str]]):
    ranked = bm25(postings(texts, "ab"))
    assert [it.score for it in ranked] == sorted((it.score for it in ranked), reverse=True)
    assert all(0 < it.score < 1 for it in ranked)


@given(st.lists(WORDS, min_size=1, max_size=8))
def test_another_occurrence_in_the_place_of_nothing_is_no_worse(texts: list[list[str]]):
    texts = [["a", "x", *texts[0]], ["a", "a", *texts[0]], *texts]
    scores = {it.chunk.id: it.score for it in bm25(postings(texts, "a"))}
    assert scores[1] > scores[0]


def test_rare_terms_count_for_more():
    texts = [["a", "x"], ["b", "x"], *[["b", "y"]] * 8]
    assert bm25(postings(texts, "ab"))[0].chunk.id == 0


def test_one_ranking_stays_as_it_is():
    ranking = [RankedChunk(chunk(2), 0.9), RankedChunk(chunk(1), 0.2)]
    assert fused([ranking]) == ranking
    assert fused([[]]) == []


@given(st.permutations(range(6)), st.permutations(range(6)))
def test_several_are_joined_by_rank(one: list[int], other: list[int]):
    rankings = [
        [RankedChunk(chunk(number), 1 / (place + 1)) for place, number in enumerate(order)]
        for order in (one, other)
    ]
    joined = fused(rankings)
    assert {it.chunk.id for it in joined} == set(range(6))
    for it in joined:
        expected = sum(1 / (RANK_SMOOTHING + order.index(it.chunk.id) + 1) for order in (one, other))
        assert isclose(it.score, expected / 2 * (RANK_SMOOTHING + 1))
    if one == other:
        assert [it.chunk.id for it in joined] == one
        assert joined[0].score == 1
