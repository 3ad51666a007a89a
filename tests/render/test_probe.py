from typing import Any

import pytest

from antiphon.core.errors import EngineError
from antiphon.core.items import Message, Role, TextPart
from antiphon.core.turn import Turn
from antiphon.render.capabilities import ArgumentFormat, TemplateCapabilities
from antiphon.render.renderer import ChatTemplateRenderer
from tests.render import templates
from tests.render.support import renderer

EXPECTED = {
    "chatml": TemplateCapabilities(developer=False, tools=False, calls=False, results=False, reasoning=False),
    "gemma": TemplateCapabilities(
        system=False, later_system=False, developer=False, alternating_roles=True, user_first=True,
        tools=False, calls=False, results=False, reasoning=False,
    ),
    "mistral": TemplateCapabilities(
        later_system=False, developer=False, alternating_roles=True, user_first=True, content_required=True, text_with_calls=False,
        short_ids=True, answer_after_results=True, reasoning=False,
    ),
    "llama": TemplateCapabilities(developer=False, parallel_calls=False, text_with_calls=False, reasoning=False),
    "deepseek": TemplateCapabilities(
        developer=False, tools=False, text_with_calls=False, arguments=ArgumentFormat.TEXT, null_content=True,
        reasoning=False,
    ),
    "xml": TemplateCapabilities(kept_reasoning={}, tools=False, reasoning_required=True, arguments=ArgumentFormat.OBJECT),
    "parts": TemplateCapabilities(content_parts=True, developer=False, tools=False, calls=False, results=False, reasoning=False),
    "strict": TemplateCapabilities(developer=False, reasoning=False),
}  # fmt: skip


@pytest.mark.parametrize("name", templates.ALL)
def test_traits_are_found(name: str) -> None:
    assert renderer(templates.ALL[name]).capabilities == EXPECTED[name]


KEEPING = """{%- for m in messages %}{{ m.role }}: {% if m.reasoning_content and (loop.last or KEPT) %}{{ m.reasoning_content }}{% endif %}{{ m.content }}
{% endfor %}"""


@pytest.mark.parametrize(
    ("condition", "variables"),
    [
        ("true", {}),
        ("false", None),
        ("preserve_thinking", {"preserve_thinking": True}),
        ("clear_thinking is defined and not clear_thinking", {"clear_thinking": False}),
    ],
)
def test_which_variables_keep_reasoning(condition: str, variables: Any) -> None:
    assert renderer(KEEPING.replace("KEPT", condition)).capabilities.kept_reasoning == variables


def test_a_template_that_shows_nothing_is_taken_as_it_is() -> None:
    assert renderer("{{ raise_exception('no') }}").capabilities == TemplateCapabilities()


def test_without_tools_the_variable_may_have_to_be_absent() -> None:
    source = "{% for tool in tools %}{{ tool.function.name }}{% endfor %}" + templates.CHATML
    capabilities = renderer(source).capabilities
    assert capabilities.tools_undefined
    assert capabilities.tools


def test_an_operator_may_say_how_contents_are_given() -> None:
    user = Turn("m", (Message(Role.USER, (TextPart("Hi"),)),))
    both = "{% for m in messages %}{{ m.content if m.content is string else m.content[0].text + '!' }}{% endfor %}"
    for parts, text in ((None, "Hi"), (False, "Hi"), (True, "Hi!")):
        made = ChatTemplateRenderer(both, bos="", eos="", tool_prompt=None, content_parts=parts)
        assert made.capabilities.content_parts is bool(parts)
        assert made.render(user) == text


def test_what_a_template_writes_in_thousands_is_no_marker() -> None:
    """Each would be searched for in all text of clients."""
    many = "{% for m in messages %}{% for i in range(300) %}[A{{ i }}]{% endfor %}{{ m.content }}{% endfor %}"
    with pytest.raises(EngineError, match="more than 256 different markers"):
        ChatTemplateRenderer(many, bos="", eos="", tool_prompt=None)
