"""How the headers of calls and the names of arguments are written, part by part."""

import pytest

from antiphon.core.grammar import Keyed, KeyForm, Named, NameForm, Route
from antiphon.decode.headers import (
    MAX_NAME,
    addressed,
    attribute,
    guessed_key,
    plain,
    plain_key,
    quoted,
    quoted_key,
    tagged_key,
    typed_key,
)


@pytest.mark.parametrize(
    ("form", "text", "name"),
    [
        (plain, " get_weather\n", "get_weather"),
        (plain, "a.b-c:d", "a.b-c:d"),
        (plain, "two words", None),
        (plain, "", None),
        (plain, "x" * MAX_NAME, "x" * MAX_NAME),
        (plain, "x" * (MAX_NAME + 1), None),
        (quoted, '"f"', "f"),
        (quoted, "'f'", "f"),
        (quoted, "f", "f"),
        (quoted, '"f', "f"),
        (quoted, '""', None),
        (attribute("tool"), 'tool="f" index="1"', "f"),
        (attribute("tool"), "index=1 tool=f", "f"),
        (attribute("tool"), 'tool="a&amp;b"', "a&b"),
        (attribute("tool"), 'stool="f"', None),
        (attribute("tool"), "tool=", None),
    ],
)
def test_names(form: NameForm, text: str, name: str | None) -> None:
    assert form(text) == (None if name is None else Named(name))


TYPED = typed_key("name", "string", texts="true")
TAGGED = tagged_key("</key>", "<type>", "</type>")


@pytest.mark.parametrize(
    ("form", "text", "keyed"),
    [
        (plain_key, " two words ", Keyed("two words")),
        (plain_key, " ", None),
        (quoted_key, '"city"', Keyed("city")),
        (guessed_key, '"city"', Keyed("city", "guess")),
        (guessed_key, '""', None),
        (TYPED, 'name="city" string="true"', Keyed("city", "string")),
        (TYPED, 'string="false" name="it\'s"', Keyed("it's", "json")),
        (TYPED, "name='say &quot;'", Keyed('say "', "json")),
        (TYPED, "name=city string=true", Keyed("city", "string")),
        (TYPED, 'string="true"', None),
        (TYPED, f'name="{"x" * (MAX_NAME + 1)}"', None),
        (TAGGED, "city</key>", Keyed("city")),
        (TAGGED, "city</key> <type>string</type>", Keyed("city", "string")),
    ],
)
def test_keys(form: KeyForm, text: str, keyed: Keyed | None) -> None:
    assert form(text) == keyed


@pytest.mark.parametrize(
    ("text", "to"),
    [
        (" to=self", "thinking"),
        ("assistant to=user", "text"),
        ("assistant to=a.b", "calls"),
        ("assistant", None),
        ("", None),
        ("I go to=self", None),
    ],
)
def test_recipients(text: str, to: str | None) -> None:
    route = addressed({"self": "thinking", "user": "text"}, others="calls")

    assert route(text) == (Route(to) if to else None)
