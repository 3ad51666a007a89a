"""How the headers of calls and the names of arguments are written, part by part."""

import pytest

from antiphon.core.grammar import ArgumentKey, CallHeader, KeyParser, NameParser, Route
from antiphon.decode.headers import (
    MAX_NAME,
    attribute_name,
    json_or_text_key,
    plain_key,
    plain_name,
    quoted_key,
    quoted_name,
    recipient_router,
    tagged_key,
    typed_key,
)


@pytest.mark.parametrize(
    ("form", "text", "name"),
    [
        (plain_name, " get_weather\n", "get_weather"),
        (plain_name, "a.b-c:d", "a.b-c:d"),
        (plain_name, "two words", None),
        (plain_name, "", None),
        (plain_name, "x" * MAX_NAME, "x" * MAX_NAME),
        (plain_name, "x" * (MAX_NAME + 1), None),
        (quoted_name, '"f"', "f"),
        (quoted_name, "'f'", "f"),
        (quoted_name, "f", "f"),
        (quoted_name, '"f', "f"),
        (quoted_name, '""', None),
        (attribute_name("tool"), 'tool="f" index="1"', "f"),
        (attribute_name("tool"), "index=1 tool=f", "f"),
        (attribute_name("tool"), 'tool="a&amp;b"', "a&b"),
        (attribute_name("tool"), 'stool="f"', None),
        (attribute_name("tool"), "tool=", None),
    ],
)
def test_names(form: NameParser, text: str, name: str | None) -> None:
    assert form(text) == (None if name is None else CallHeader(name))


TYPED = typed_key("name", "string", texts="true")
TAGGED = tagged_key("</key>", "<type>", "</type>")


@pytest.mark.parametrize(
    ("form", "text", "keyed"),
    [
        (plain_key, " two words ", ArgumentKey("two words")),
        (plain_key, " ", None),
        (quoted_key, '"city"', ArgumentKey("city")),
        (json_or_text_key, '"city"', ArgumentKey("city", "guess")),
        (json_or_text_key, '""', None),
        (TYPED, 'name="city" string="true"', ArgumentKey("city", "string")),
        (TYPED, 'string="false" name="it\'s"', ArgumentKey("it's", "json")),
        (TYPED, "name='say &quot;'", ArgumentKey('say "', "json")),
        (TYPED, "name=city string=true", ArgumentKey("city", "string")),
        (TYPED, 'string="true"', None),
        (TYPED, f'name="{"x" * (MAX_NAME + 1)}"', None),
        (TAGGED, "city</key>", ArgumentKey("city")),
        (TAGGED, "city</key> <type>string</type>", ArgumentKey("city", "string")),
    ],
)
def test_keys(form: KeyParser, text: str, keyed: ArgumentKey | None) -> None:
    assert form(text) == keyed


@pytest.mark.parametrize(
    ("text", "to"),
    [
        (" to=self", "reasoning"),
        ("assistant to=user", "text"),
        ("assistant to=a.b", "calls"),
        ("assistant", None),
        ("", None),
        ("I go to=self", None),
    ],
)
def test_recipients(text: str, to: str | None) -> None:
    route = recipient_router({"self": "reasoning", "user": "text"}, others="calls")

    assert route(text) == (Route(to) if to else None)
