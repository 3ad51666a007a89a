"""The token cache: it gives the tokens that the tokenizer gives, and asks it for new segments only."""

import tracemalloc
from functools import partial
from sys import getsizeof
from threading import get_ident

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from antiphon.engines import token_cache
from antiphon.engines.token_cache import (
    LONG,
    MANY_SEGMENTS,
    SEGMENT_BYTES,
    TokenCache,
    added_tokens,
    encode_fast,
)

ADDED = ("<|im_start|>", "<|im_end|>", "<|im_end|><|x|>", "<think>", "</think>", "\n\n")
TEXTS = [
    "system\nYou are a helpful assistant.",
    " hello you",
    "hello",
    "user\n",
    " ",
    "\n",
    "äöü 😀",
    "12 345",
]


def made(pre_tokenizer, normalizer=None, added=ADDED, **settings):
    """A tokenizer of Hugging Face's, trained on a few words."""
    tokenizer = tokenizers.Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXTS, BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    tokenizer.add_tokens([AddedToken(text, normalized=False, **settings) for text in added])
    return tokenizer


def direct(tokenizer):
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
WORDS = pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}|\s+"), "isolated")
SPLIT = {
    "bytes": made(BYTES),
    "a space before each segment": made(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "a pattern": made(pre_tokenizers.Sequence([WORDS, pre_tokenizers.ByteLevel(use_regex=False)])),
    "digits": made(pre_tokenizers.Sequence([pre_tokenizers.Digits(), BYTES])),
    "normalized": made(BYTES, normalizers.Sequence([normalizers.NFC(), normalizers.Prepend("_")])),
    "metaspace": made(pre_tokenizers.Metaspace(prepend_scheme="always")),
    "no pre-tokenizer": made(pre_tokenizers.Sequence([])),
}
WHOLE = {
    "the beginning differs": made(pre_tokenizers.Metaspace(prepend_scheme="first")),
    "space after": made(BYTES, rstrip=True),
    "space before": made(BYTES, lstrip=True),
    "words": made(BYTES, single_word=True),
    "not known": made(pre_tokenizers.UnicodeScripts()),
    "nothing added": made(BYTES, added=()),
}
WHOLE["cut"] = made(BYTES)
WHOLE["cut"].enable_truncation(4)
WHOLE["filled up"] = made(BYTES)
WHOLE["filled up"].enable_padding(length=40)

PARTS = st.one_of(st.sampled_from([*ADDED, *TEXTS]), st.text(max_size=6))


@pytest.mark.parametrize("kind", [*SPLIT, *WHOLE])
@given(conversation=st.lists(PARTS, max_size=12))
def test_the_tokens_are_those_of_the_tokenizer(kind, conversation):
    tokenizer = {**SPLIT, **WHOLE}[kind]
    cache = TokenCache(partial(encode_fast, tokenizer), added_tokens(tokenizer))
    for end in range(len(conversation) + 1):
        text = "".join(conversation[:end])
        assert cache.encode(text) == direct(tokenizer)(text)


@pytest.mark.parametrize("kind", SPLIT)
def test_only_new_segments_are_tokenized(kind):
    asked = []

    def encode(text):
        asked.append(text)
        return direct(SPLIT[kind])(text)

    cache = TokenCache(encode, added_tokens(SPLIT[kind]))
    turn = "<|im_start|>user\nhello<|im_end|>"
    cache.encode(turn)
    cache.encode(f"{turn}\n{turn}<|im_start|>assistant")
    assert asked == ["user\nhello", "\n", "assistant"]


@pytest.mark.parametrize("kind", WHOLE)
def test_texts_that_cannot_be_split_are_tokenized_whole(kind):
    asked = []
    cache = TokenCache(lambda text: asked.append(text) or [], added_tokens(WHOLE[kind]))
    cache.encode("a<|im_end|>b")
    assert asked == ["a<|im_end|>b"]


def test_a_normalized_token_is_searched_for_in_its_segment():
    tokenizer = made(BYTES, normalizers.Lowercase())
    tokenizer.add_tokens([AddedToken("<end>", normalized=True)])
    cache = TokenCache(direct(tokenizer), added_tokens(tokenizer))
    text = "hello<END>you<|im_end|>"
    assert cache.encode(text) == direct(tokenizer)(text)
    assert tokenizer.token_to_id("<end>") in cache.encode(text)


def test_old_segments_are_forgotten(monkeypatch):
    of_four = SEGMENT_BYTES + getsizeof("aaaa") + getsizeof((1,))
    monkeypatch.setattr(token_cache, "CACHED_BYTES", 2 * of_four)
    asked = []
    cache = TokenCache(lambda text: asked.append(text) or [1] * (1 + 200 * (text[0] == "d")), {"|": 0})
    for text in ("aaaa", "bbbb", "aaaa", "cccc", "aaaa", "dddd", "bbbb", "aaaa"):
        assert cache.encode(text)[0] == 1
    assert asked == ["aaaa", "bbbb", "cccc", "dddd", "bbbb"]


@pytest.mark.parametrize(
    "segment", ["", "hello", "😀" * 9], ids=["many of few characters", "words", "tokens for each character"]
)
def test_the_memory_of_segments_is_bounded(segment, monkeypatch):
    """By what they take, and not by their characters: a client may send as many as it likes."""
    monkeypatch.setattr(token_cache, "CACHED_BYTES", 2**20)
    cache = TokenCache(lambda text: [ord(mark) % 999 for mark in text for _ in range(4)], {"|": 0})
    tracemalloc.start()
    try:
        for number in range(100):
            cache.encode("|".join(f"{segment}{number * 100 + index:x}" for index in range(100)))
        assert tracemalloc.get_traced_memory()[0] < 2.5 * 2**20
    finally:
        tracemalloc.stop()


async def test_a_long_text_is_tokenized_in_a_thread():
    threads = {}

    def encode(text):
        threads[text] = get_ident()
        return [len(text)]

    cache = TokenCache(encode, {"|": 0})
    assert await cache.tokenize(["a|b", "cc"]) == [1, 0, 1, 2]
    assert await cache.tokenize(["a" * LONG, "bbb"]) == [LONG, 3]
    assert {threads[text] for text in ("a", "b", "cc")} == {get_ident()} != {threads["bbb"]}


async def test_a_long_text_that_has_grown_by_little_needs_no_thread(monkeypatch):
    """Each turn of an agent sends its whole conversation: only what is new takes time."""
    hops = 0

    async def to_thread(function, *arguments):
        nonlocal hops
        hops += 1
        return function(*arguments)

    monkeypatch.setattr(token_cache.asyncio, "to_thread", to_thread)
    cache = TokenCache(lambda text: [len(text)], {"|": 0})
    message = "a" * (LONG - 1)
    conversation = f"{message}|{message}b"
    assert len(await cache.tokenize([conversation])) == 3
    assert hops == 1
    grown = f"{conversation}|{message}"
    assert await cache.tokenize([grown, "b" * 99]) == [LONG - 1, 0, LONG, 0, LONG - 1, 99]
    assert hops == 1
    await cache.tokenize([f"{grown}|{'c' * LONG}"])
    assert hops == 2


async def test_what_is_forgotten_while_it_is_read_holds_nobody_up(monkeypatch):
    """A long history is known, but is among what is forgotten next."""
    segments = [f"{number:0500}" for number in range(60)]
    size = SEGMENT_BYTES + getsizeof(segments[0]) + getsizeof((1,))
    monkeypatch.setattr(token_cache, "CACHED_BYTES", 70 * size)
    inline = []

    def encode(text):
        inline.append(text if get_ident() == main else "")
        return [1]

    main = get_ident()
    cache = TokenCache(encode, {"|": 0})
    cache.encode("|".join(segments))
    for number in range(70):
        cache.encode(f"other {number:0494}")
    inline.clear()
    await cache.tokenize(["|".join(segments)])
    assert sum(map(len, inline)) < LONG


async def test_a_known_text_that_takes_long_to_split_is_tokenized_in_a_thread(monkeypatch):
    monkeypatch.setattr(token_cache, "MANY_CHARACTERS", 2 * LONG)
    threads = set()
    read = TokenCache._ids_of
    monkeypatch.setattr(
        TokenCache, "_ids_of", lambda *arguments: threads.add(get_ident()) or read(*arguments)
    )
    cache = TokenCache(lambda text: [len(text)], {"|": 0})
    known = "a" * LONG
    cache.encode(known)
    threads.clear()
    assert await cache.tokenize([f"{known}|{known[1:]}"]) == [LONG, 0, LONG - 1]
    assert get_ident() in threads
    threads.clear()
    assert await cache.tokenize([f"{known}||{known[1:]}"]) == [LONG, 0, 0, LONG - 1]
    assert get_ident() not in threads


@pytest.mark.parametrize("pieces", [["|" * 2 * MANY_SEGMENTS], ["a"] * LONG, ["a|" * LONG]])
async def test_many_segments_are_looked_up_in_a_thread(pieces):
    """However short they are: a client may send any number of them."""
    threads = set()
    cache = TokenCache(lambda text: threads.add(get_ident()) or [1], {"|": 0})
    assert len(await cache.tokenize([*pieces, "new", "|" * LONG])) > LONG
    assert get_ident() not in threads
