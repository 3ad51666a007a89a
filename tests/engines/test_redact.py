"""What is shown of texts of other servers."""

import json
from base64 import b64encode
from urllib.parse import quote

import pytest

from antiphon.engines.redact import HIDDEN, SHOWN, know, redacted, without_known

KEYS = [
    "sk-proj-abcdEFGH12345678",
    "hf_abcdefghijklmnop",
    "ghp_abcdefghijklmnop1234",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "0123456789abcdef0123456789abcdef",
    "dGhpc2lzYXNlY3JldGtleXRoYXRpc2xvbmdlcnRoYW4zMg==",
    "gsk_abcdefghijklmnop1234",
    "nvapi-abcdefghijklmnop1234",
    "ya29.a0AfH6SMBx-abc_defgh12345",
    "3f0e6c6a-1f2b-4c3d-9e8f-0a1b2c3d4e5f",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
]
NAMED = [
    "Authorization: Bearer {}",
    "bearer {}",
    "api_key={}",
    '{{"api-key": "{}"}}',
    "https://host/path?token={}&more=1",
    "X-API-Key: {}",
    "password='{}'",
    r'{{"error": "{{\"api_key\":\"{}\"}}"}}',
    "(b'authorization', b'{}')",
    '[["x-api-key", "{}"]]',
    "Authorization: Bearer\t{}",
    "Authorization: Token {}",
    "authorization=Bearer%20{}",
    "Cookie: session={}; sid={}",
    "Set-Cookie: sessionid={}; Path=/",
    "cannot reach http://user:{}@host/path",
    "https://host/v1?key={}",
    "https://host/v1?X-Amz-Signature={}&more=1",
    '{{"api_key":\n  "{}"}}',
    "&quot;api_key&quot;:&quot;{}&quot;",
    "<password>{}</password>",
    "api_key%3D{}",
    "pwd={}",
    "Incorrect API key provided: {}. Get another.",
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
    assert "correct-horse" not in redacted(around.format(*["correct-horse"] * 2))


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


KNOWN = 'k3y"/+Zq-77wLm'


@pytest.mark.parametrize(
    "form",
    [
        KNOWN,
        json.dumps(KNOWN)[1:-1],
        quote(KNOWN, safe=""),
        b64encode(KNOWN.encode()).decode(),
        repr(KNOWN),
        "y " * 147 + KNOWN,
    ],
)
def test_a_key_of_this_server_is_hidden_in_every_form(form: str) -> None:
    know(KNOWN)
    shown = redacted(f"It said {form} to me")
    assert not any(
        part in shown for part in (KNOWN[:4], KNOWN[-4:], form[:6] if len(form) < 40 else KNOWN[:3])
    )
    assert without_known(f"a {KNOWN} b") == f"a {HIDDEN} b"


def test_what_is_short_is_no_key() -> None:
    know("no")
    assert without_known("not now") == "not now"
