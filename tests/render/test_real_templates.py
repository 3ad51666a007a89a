"""Conversations that every template of a real model must render."""

import json
import re

import pytest

from antiphon.core.errors import RequestError
from antiphon.core.items import Item, Reasoning
from antiphon.core.turn import Function, Turn
from antiphon.render.renderer import ChatTemplateRenderer
from antiphon.render.special_tokens import split_at_separators
from tests.real_templates import marks, real_templates
from tests.render.support import WEATHER, call, output, renderer, say, turn

pytestmark = marks

UNUSABLE = {
    "fireworks-ai-llama-3-firefunction-v2": "wants the variables `functions` and `datetime`",
    "google-translategemma-4b-it": "wants languages in every part of a message",
}
"""Templates that do not take a plain conversation, and why."""

MIN_TEMPLATES = 60

CONVERSATIONS: dict[str, tuple[tuple[Item, ...], list[str]]] = {
    "system": ((say("system", "w1w"), say("user", "w2w")), ["w1w", "w2w"]),
    "two systems": (
        (say("system", "w1w"), say("user", "w2w"), say("system", "w3w"), say("user", "w4w")),
        ["w1w", "w2w", "w3w", "w4w"],
    ),
    "developer": ((say("developer", "w1w"), say("user", "w2w")), ["w1w", "w2w"]),
    "both": ((say("system", "w1w"), say("developer", "w2w"), say("user", "w3w")), ["w1w", "w2w", "w3w"]),
    "two users": ((say("user", "w1w"), say("user", "w2w")), ["w1w", "w2w"]),
    "answer first": ((say("assistant", "w1w"), say("user", "w2w")), ["w1w", "w2w"]),
    "a call": (
        (say("user", "w1w"), call(arguments='{"city": "w2w"}'), output(text="w3w"), say("user", "w4w")),
        ["w1w", "w2w", "w3w", "w4w", "get_weather", "noon"],
    ),
    "an agent": (
        (
            *(
                say("user", "w1w"),
                Reasoning("hm"),
                say("assistant", "w2w"),
                call(arguments='{"city": "w3w"}'),
            ),
            *(output(text="w4w"), say("assistant", "w5w"), say("user", "w6w")),
        ),
        ["w1w", "w2w", "w3w", "w4w", "w5w", "w6w", "get_weather", "noon"],
    ),
    "two calls": (
        (
            *(say("user", "w1w"), call("a", arguments='{"city": "w2w"}'), call("b", "noon", "{}")),
            *(output("a", "w3w"), output("b", "w4w"), say("user", "w5w")),
        ),
        ["w1w", "w2w", "w3w", "w4w", "w5w"],
    ),
    "a broken call": (
        (say("user", "w1w"), call(arguments='{"city": "'), output(text="w2w"), say("user", "w3w")),
        ["w1w", "w2w", "w3w"],
    ),
    "long": (tuple(say(role, "x" * 1000) for role in ["user", "assistant"] * 500), []),
}


@pytest.fixture(scope="module")
def templates() -> dict[str, ChatTemplateRenderer]:
    return {name: renderer(source) for name, source in real_templates().items() if name not in UNUSABLE}


def test_there_are_templates(templates: dict[str, ChatTemplateRenderer]) -> None:
    assert len(templates) >= MIN_TEMPLATES


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_every_template_renders(templates: dict[str, ChatTemplateRenderer], name: str) -> None:
    items, words = CONVERSATIONS[name]
    tools = (WEATHER, Function("noon")) if "call" in name or name == "an agent" else ()
    lost = {}
    for template, made in templates.items():
        try:
            text = made.render(turn(*items, tools=tools))
        except RequestError as error:
            lost[template] = [str(error), repr(error.__cause__)]
            continue
        if missing := [word for word in words if word not in text]:
            lost[template] = missing
    assert lost == {}


def test_no_client_can_spell_a_special_token(templates: dict[str, ChatTemplateRenderer]) -> None:
    """Nor does it notice: the text is the one that it would be without any."""
    wrong = {}
    for template, made in templates.items():
        parts = split_at_separators(made.render(_all_places("<|{}|>")))
        plain = made.render(_all_places("<| {} |>"))
        text = re.sub(r"\|(a_\d)\|", r"| \1 |", "".join(parts))
        spelled = [found for part in parts for found in re.findall(r"<\|a_\d\|>", part)]
        if spelled or text != plain or "a_1" not in text:
            wrong[template] = spelled
    assert wrong == {}


def _all_places(spelling: str) -> Turn:
    """A conversation in which a client says so wherever it can."""
    system, user, reasoning, city, result, answer, again, about = (
        spelling.format(f"a_{n}") for n in range(8)
    )
    items = (
        *(say("system", system), say("user", user), Reasoning(reasoning)),
        *(call("123456789", arguments=json.dumps({"city": city})), output("123456789", result)),
        *(say("assistant", answer), say("user", again)),
    )
    return turn(*items, tools=(Function("get_weather", about, WEATHER.parameters),))
