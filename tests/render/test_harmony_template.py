"""Harmony compared with the chat template of the gpt-oss models: where they agree, where not, and why."""

import pytest

from antiphon.core.errors import RequestError
from antiphon.render.harmony import HarmonyRenderer
from antiphon.render.renderer import ChatTemplateRenderer
from antiphon.render.special_tokens import SEPARATOR
from tests.real_templates import marks, real_templates
from tests.render.harmony_conversations import CASES
from tests.render.support import renderer

pytestmark = marks

INSTRUCTIONS = "two more line breaks behind instructions that no tools follow"
RESULT = "results as strings of JSON, in quotes"
TYPES = "types in a manner of its own, and `// ` above a function that has no description"
ARGUMENTS = "what is no object as a string of JSON, nothing as {}"
PREAMBLE = "what is said before a call as an answer"
EFFORT = "whatever effort it is told"
BUILT_IN = "calls of built-in tools as calls of functions"

DIFFERENT = {
    "a system message": INSTRUCTIONS,
    "a developer message": INSTRUCTIONS,
    "both": INSTRUCTIONS,
    "instructions later": "only the first message, so all instructions are merged there",
    "reasoning last": "reasoning that nothing follows as an answer of nothing",
    "a call": RESULT,
    "reasoning before a call": RESULT,
    "calls in a row": RESULT,
    "calls at once": "only the first call of a message, so each is a message, with its result behind it",
    "an answered call": RESULT,
    "a second question with a call": RESULT,
    "a preamble": PREAMBLE,
    "a preamble that does not say so": PREAMBLE,
    "a preamble and no call": "nothing of preambles",
    "a result that has a name of its own": RESULT,
    "a broken call": ARGUMENTS,
    "a call without arguments": ARGUMENTS,
    "a name": "no names",
    "tokens everywhere": ARGUMENTS,
    "tools": TYPES,
    "tools and instructions": TYPES,
    "tools that may not be called": RESULT,
    "no effort": EFFORT,
    "minimal effort": EFFORT,
    "very high effort": EFFORT,
    "everything": TYPES,
    "a search": BUILT_IN,
    "a program": BUILT_IN,
    "a program that is none": BUILT_IN,
    "a function called python": RESULT,
    "a form for the answer": "nothing of forms",
}
"""Conversations that the template writes in another way: it writes …"""

REFUSED = {
    "nothing at all": "wants a first message",
    "a result whose call is gone": "wants the call",
    "a result of nobody knows what": "wants the call",
}


@pytest.fixture(scope="module")
def template() -> ChatTemplateRenderer:
    return renderer(real_templates()["openai-gpt-oss-120b"], None)


@pytest.mark.parametrize("name", [name for name in CASES if name not in REFUSED])
def test_prompts_are_the_template_s_but_for_its_known_manners(
    template: ChatTemplateRenderer, name: str
) -> None:
    turn = CASES[name].turn
    same = HarmonyRenderer().render(turn).replace(SEPARATOR, "") == template.render(turn).replace(
        SEPARATOR, ""
    )
    assert same == (name not in DIFFERENT), DIFFERENT.get(name)


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_template_refuses_is_rendered(template: ChatTemplateRenderer, name: str) -> None:
    with pytest.raises(RequestError):
        template.render(CASES[name].turn)
    assert HarmonyRenderer().render(CASES[name].turn)
