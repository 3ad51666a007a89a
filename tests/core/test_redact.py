"""What is shown of texts of other servers."""

import pytest

from antiphon.core.redact import HIDDEN, SHOWN, redacted

KEYS = [
    "sk-proj-abcdEFGH12345678",
    "hf_abcdefghijklmnop",
    "ghp_abcdefghijklmnop1234",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "0123456789abcdef0123456789abcdef",
    "dGhpc2lzYXNlY3JldGtleXRoYXRpc2xvbmdlcnRoYW4zMg==",
]
NAMED = [
    "Authorization: Bearer {}",
    "bearer {}",
    "api_key={}",
    '{{"api-key": "{}"}}',
    "https://host/path?token={}&more=1",
    "X-API-Key: {}",
    "password='{}'",
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "around", ["{}", "Incorrect API key provided: {}. Get another.", '{{"error": "{}"}}']
)
def test_what_looks_like_a_key_is_hidden(key: str, around: str) -> None:
    shown = redacted(around.format(key))
    assert key not in shown
    assert not any(part in shown for part in (key[:12], key[-12:]))
    assert HIDDEN in shown


@pytest.mark.parametrize("around", NAMED)
def test_what_is_called_a_key_is_hidden(around: str) -> None:
    assert "correct-horse" not in redacted(around.format("correct-horse"))


@pytest.mark.parametrize(
    "text",
    [
        "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens.",
        "The model `Qwen/Qwen3-30B-A3B-Instruct-2507-GPTQ-Int4-sym` does not exist.",
        "max_tokens is too large: 131072",
        "Unknown path /v1/chat/completions/with/many/short/words/in/it",
    ],
)
def test_other_texts_are_shown(text: str) -> None:
    assert redacted(text) == text


def test_it_is_short_and_on_one_line() -> None:
    shown = redacted("a\n\x1b[31mred\x00 line\n" + "word " * 1_000_000)
    assert len(shown) == SHOWN + len(HIDDEN)
    assert shown.isprintable()
