import tracemalloc

import pytest

from antiphon.core.errors import EngineError, RequestError
from antiphon.render.meter import LimitError
from antiphon.render.sandbox import Template
from tests.render.bombs import BOMBS, UNCOMPILABLE
from tests.search import share

PEAK = 110 * 2**20


def render(source: str, **variables: object) -> str:
    return Template(source).render(variables)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% for i in 'abc' | list %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}",
         "1/3False 2/3False 3/3True "),
        ("a{% generation %}b{{ 'c' }}{% endgeneration %}d", "abcd"),
        ("{% set ns = namespace(n=1) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "4"),
        ("{% set ns = namespace(encode=1) %}{{ ns.encode }}{{ ns.n is defined }}", "1False"),
        ("{{ {'a': '<é>', 'b': [1, none, true]} | tojson }}", '{"a": "<é>", "b": [1, null, true]}'),
        ("{{ 'é' | tojson(ensure_ascii=true) }}", '"\\u00e9"'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=2, sort_keys=true) }}", '{\n  "a": 2,\n  "b": 1\n}'),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{% for k, v in {'a': 1}.items() %}{{ k ~ v }}{% endfor %}", "a1"),
        ("{{ 'a</think>b'.split('</think>')[-1].strip() }}", "b"),
        ("{{ 'abc'[1:] }}{{ [1, 2, 3][::-1] }}{{ 'x'.startswith('x') }}", "bc[3, 2, 1]True"),
        ("{{ x is defined }}{{ {}.y is defined }}{{ x | default('d') }}", "FalseFalsed"),
        ("{{ '%s-%05d' % ('a', 7) }}{{ '{:>4}'.format('b') }}{{ 'ab' * 2 }}{{ 2 ** 10 }}", "a-00007   babab1024"),
        ("{{ [3, 1] | sort | join(', ') }}{{ ['a'] | map('upper') | list }}", "1, 3['A']"),
        ("{{ [{'r': 1}, {'r': 2}] | selectattr('r', 'equalto', 2) | list | length }}", "1"),
        ("{% macro m(a) %}<{{ a }}{{ caller() if caller }}>{% endmacro %}{{ m(1) }}{% call m(2) %}c{% endcall %}",
         "<1><2c>"),
        ("{% for x in [[1], 2] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "12"),
        ("  {% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),
        ("{% macro m() %}{{ varargs | sum }}{% endmacro %}{{ m(*[1, 2]) }}", "3"),
        ("{% set l = 'é' ~ 1 ~ none %}{{ l }}", "é1None"),
    ],
)  # fmt: skip
def test_what_real_templates_use(source: str, text: str) -> None:
    assert render(source) == text


def test_the_date_is_given() -> None:
    assert int(render("{{ strftime_now('%Y') }}")) >= 2024


@pytest.mark.parametrize("name", share(BOMBS))
def test_a_bomb_is_refused_and_does_not_eat_memory(name: str) -> None:
    template = Template(BOMBS[name])
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match=r"too much time or memory|cannot render") as caught:
            template.render({"messages": []})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.status == 400
    assert peak < PEAK


@pytest.mark.parametrize("name", UNCOMPILABLE)
def test_what_cannot_be_compiled_is_refused(name: str) -> None:
    with pytest.raises(EngineError):
        Template(UNCOMPILABLE[name])


@pytest.mark.parametrize("source", ["a\nb {% if %}", "a\n{{ x | nosuchfilter }}", "\n{% for %}"])
def test_a_broken_template_names_the_line(source: str) -> None:
    with pytest.raises(EngineError, match="line 2"):
        Template(source)


def test_what_the_template_says_is_what_the_client_reads() -> None:
    with pytest.raises(RequestError, match=r"^Only two roles\.$") as caught:
        render("{{ raise_exception('Only two roles.') }}")
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("{{ a.b.c }}", ": 'a' is undefined."),
        ("{{ 1 + 'a' }}", ": unsupported operand type(s) for +: 'int' and 'str'."),
        ("{{ {}[1].x }}", ": dict object has no element 1."),
        ("{{ namespace().a.b }}", ": 'Namespace object' has no attribute 'a'."),
        ("{{ ('x' * 500).y.z }}", ": 'str object' has no attribute 'y'."),
        ("{{ '{' | from_json }}", "."),
        ("{{ '\"\\ud800\"' | from_json }}", "."),
    ],
)
def test_a_failing_template_says_why_and_shows_no_internals(source: str, cause: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(source)
    assert caught.value.message == f"The model's chat template cannot render this conversation{cause}"


@pytest.mark.parametrize(
    ("said", "message"), [("'\\ud800'", "?"), ("'x' * 100000", "x" * 4096)], ids=["no-text", "long"]
)
def test_what_a_template_says_is_text_of_limited_length(said: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(f"{{{{ raise_exception({said}) }}}}")
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ ['a' ~ 'b'] | join }}", "ab"),
        ("{{ 'ab' == 'a' + 'b' }}", "True"),
        ("{{ {'k': 'abc'[1:]}.k }}", "bc"),
    ],
)
def test_constants_may_be_computed(source: str, text: str) -> None:
    """In a list, or in a comparison, they are looked at when the template is compiled."""
    assert render(source) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ namespace()._Namespace__attrs.items }}",
        "{{ x.append(1) }}",
        "{{ raise_exception.__globals__.json }}",
        "{{ x.clear() }}",
    ],
)
def test_python_and_the_conversation_are_out_of_reach(source: str) -> None:
    given = [1]
    with pytest.raises(RequestError):
        render(source, x=given)
    assert given == [1]


@pytest.mark.parametrize("grown", ["ns.t + m.content", "ns.t ~ m.content"])
def test_text_may_be_built_up_piece_by_piece(grown: str) -> None:
    source = (
        "{% set ns = namespace(t='') %}"
        "{% for m in messages %}{% set ns.t = " + grown + " %}{% endfor %}{{ ns.t }}"
    )
    messages = [{"content": f"{n:01000}"} for n in range(1000)]
    assert len(render(source, messages=messages)) == 1_000_000


def test_what_is_added_up_stays_as_it_was() -> None:
    assert render("{% set b = a + [2] + [3] %}{{ b|length }}{{ 1 + 2 + 3 }}", a=(a := [1])) == "36"
    assert a == [1]


def test_the_limit_is_known_to_the_log_only() -> None:
    with pytest.raises(RequestError, match=r"too much time or memory") as caught:
        render("{{ 'a' * 10 ** 9 }}")
    assert isinstance(caught.value.__cause__, LimitError)
