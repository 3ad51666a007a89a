import pytest

from antiphon.render.traits import Arguments, Traits
from tests.render import templates
from tests.render.support import renderer

EXPECTED = {
    "chatml": Traits(developer=False, tools=False, calls=False, results=False, reasoning=False),
    "gemma": Traits(
        system=False, later_system=False, developer=False, merged=True, user_first=True,
        tools=False, calls=False, results=False, reasoning=False,
    ),
    "mistral": Traits(
        later_system=False, developer=False, merged=True, user_first=True, filled=True, text_with_calls=False,
        short_ids=True, closed_results=True, reasoning=False,
    ),
    "llama": Traits(developer=False, parallel=False, text_with_calls=False, reasoning=False),
    "deepseek": Traits(
        developer=False, tools=False, text_with_calls=False, arguments=Arguments.TEXT, null_content=True,
        reasoning=False,
    ),
    "xml": Traits(tools=False, thoughtful=True, arguments=Arguments.OBJECT),
    "parts": Traits(parts=True, developer=False, tools=False, calls=False, results=False, reasoning=False),
}  # fmt: skip


@pytest.mark.parametrize("name", templates.ALL)
def test_traits_are_found(name: str) -> None:
    assert renderer(templates.ALL[name]).traits == EXPECTED[name]


def test_a_template_that_shows_nothing_is_taken_as_it_is() -> None:
    assert renderer("{{ raise_exception('no') }}").traits == Traits()


def test_without_tools_the_variable_may_have_to_be_absent() -> None:
    source = "{% for tool in tools %}{{ tool.function.name }}{% endfor %}" + templates.CHATML
    traits = renderer(source).traits
    assert traits.tools_absent
    assert traits.tools
