import pytest

from antiphon.render.efforts import SCALE
from antiphon.render.renderer import ChatTemplateRenderer
from tests.render.support import renderer, say, turn

HEAD = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
REFUSES = (
    HEAD
    + "{% if reasoning_effort is defined and reasoning_effort not in [WORDS] %}{{ raise_exception('no') }}{% endif %}"
    + "effort {{ reasoning_effort }}"
)
READS = (
    HEAD + "{% if reasoning_effort == 'low' %}A{% elif reasoning_effort == 'high' %}B{% else %}C{% endif %}"
)
ONE_WORD = HEAD + "{% if reasoning_effort == 'none' %}<think></think>{% endif %}"
WRITES = HEAD + "effort {{ reasoning_effort }}"

EXPECTED = {
    REFUSES.replace("WORDS", "'no_think', 'low', 'high'"): [
        *("no_think", "low", "low", "high", "high", "high", "high"),
    ],
    REFUSES.replace("WORDS", "'low', 'medium', 'high'"): [
        *("low", "low", "low", "medium", "high", "high", "high"),
    ],
    REFUSES.replace("WORDS", "'high', 'max'"): ["high", "high", "high", "high", "high", "max", "max"],
    REFUSES.replace("WORDS", "'none'"): ["none"] * 7,
    REFUSES.replace("WORDS", ""): [*SCALE],
    READS: ["low", "low", "low", "medium", "high", "high", "high"],
    ONE_WORD: ["none", *["medium"] * 6],
    WRITES: [*SCALE],
    HEAD: [*SCALE],
}


def taken(made: ChatTemplateRenderer) -> list[str]:
    return [made.capabilities.efforts.get(effort, effort) for effort in SCALE]


@pytest.mark.parametrize(("source", "efforts"), EXPECTED.items())
def test_each_effort_becomes_the_nearest_that_the_template_takes(source: str, efforts: list[str]) -> None:
    assert taken(renderer(source)) == efforts


@pytest.mark.parametrize("source", EXPECTED)
@pytest.mark.parametrize("effort", SCALE)
def test_no_effort_is_refused_where_the_template_takes_any(source: str, effort: str) -> None:
    if "[]" not in source:
        assert renderer(source).render(turn(say("user", "Hi"), variables={"reasoning_effort": effort}))


def test_words_of_the_template_itself_are_passed_on() -> None:
    made = renderer(REFUSES.replace("WORDS", "'no_think', 'low', 'high'"))
    asked = turn(say("user", "Hi"), variables={"reasoning_effort": "no_think"})
    assert made.render(asked).endswith("effort no_think")
