"""Which dialect a template or model gets, and what is reported of it."""

import json

import pytest
from msgspec.structs import replace

from antiphon.core.errors import EngineError
from antiphon.core.grammar import ReasoningMarkers
from antiphon.core.items import FunctionCall, Message, Reasoning
from antiphon.decode.table import Table
from antiphon.dialects.detection.detect import OVERRIDE, Detection, Evidence, choose, detect
from antiphon.dialects.detection.families import HINTS
from antiphon.dialects.detection.samples import CALL, OTHER_CALL, REASONING, TEXT, collect_samples, samples_of
from antiphon.dialects.detection.scorers import decode_sample, round_trip_score
from antiphon.dialects.hermes import HERMES
from antiphon.dialects.qwen3_coder import QWEN3_CODER
from antiphon.dialects.registry import BY_NAME, DIALECTS, find
from antiphon.render.renderer import CHATML, ChatTemplateRenderer
from tests.dialects.templates import CODER, MADE_UP, MISTRAL, NAMED, TAGS, TEACHING, THINKS, TWO_WAYS
from tests.laws import check, decode, fold


def found(template: str | None, *names: str, **more: str) -> Detection:
    return detect(Evidence(template, names, "<s>", "</s>", **more))


def reads(detection: Detection, template: str) -> float:
    renderer = ChatTemplateRenderer(template, bos="<s>", eos="</s>", tool_prompt=None)
    return round_trip_score(collect_samples(renderer).answers, detection.dialect)


@pytest.mark.parametrize(
    ("template", "name"),
    [(TAGS, "hermes"), (CODER, "qwen3_coder"), (MISTRAL, "mistral"), (CHATML, "hermes"), (None, "hermes")],
    ids=["tags", "coder", "mistral", "chatml", "none"],
)
def test_the_dialect_that_reads_the_calls_wins(template: str | None, name: str) -> None:
    detection = found(template)

    assert detection.name == name
    assert not detection.doubtful
    if template not in (None, CHATML):
        assert reads(detection, str(template)) == 1


def test_the_names_of_a_model_do_not_overrule_what_its_template_writes() -> None:
    assert found(CODER, "Mistral-Hermes-Llama-3").name == "qwen3_coder"


def test_a_template_without_calls_leaves_the_choice_to_names() -> None:
    assert found(TEACHING, "LFM2-1.2B").name == "lfm2"
    assert found(TEACHING).name == "hermes"
    # The template renders no tools. Hermes has a tool prompt, the model's own dialect has none.
    assert found(CHATML, "LFM2-1.2B").name == "hermes"


def test_a_marker_in_a_template_without_calls_is_a_sign() -> None:
    told = TEACHING + "{# <|tool_call_start|> and <|tool_call_end|> #}"

    assert found(told, "Some-Llama-3").name == "lfm2"


def test_a_longer_name_tells_more() -> None:
    assert found(TEACHING, "Qwen2.5-7B").name == "hermes"
    assert found(TEACHING, "Qwen3_Coder.30B").name == "qwen3_coder"


def test_a_response_template_votes() -> None:
    spec = {
        "fields": {"tool_calls": {"open": "<|tool_call_start|>", "close_pattern": r"<\|tool_call_end\|>"}}
    }
    detection = found(TEACHING, "Qwen3", response_template=json.dumps(spec))

    assert detection.name == "lfm2"
    assert found(CODER, response_template="no JSON").name == "qwen3_coder"


def test_reasoning_comes_from_another_dialect_where_the_calls_have_none() -> None:
    bare = replace(HERMES, names=("bare",), reasoning=None)
    other = replace(HERMES, names=("thinker",), reasoning=ReasoningMarkers(("<mull>",), ("</mull>",)))
    template = TAGS.replace("think>", "mull>")
    detection = detect(
        Evidence(template), [bare, replace(other, names=("thinker",), calls=QWEN3_CODER.calls)]
    )

    assert detection.name == "thinker+bare"
    assert reads(detection, template) == 1


def test_reasoning_that_no_dialect_knows_is_derived_from_the_template() -> None:
    detection = found(THINKS.replace("think>", "deep_thought>"))

    assert detection.dialect.reasoning == ReasoningMarkers(("<deep_thought>",), ("</deep_thought>",))
    assert detection.name == "generic+hermes"


@pytest.mark.parametrize("template", [MADE_UP, NAMED], ids=["json", "name and json"])
def test_calls_that_no_dialect_reads_make_a_dialect(template: str) -> None:
    detection = found(template)

    assert detection.unmatched
    assert detection.doubtful
    assert detection.name == "generic"
    assert "derived from what it renders" in detection.reason
    assert reads(detection, template) == 1


def test_a_format_that_is_not_recognized_is_reported() -> None:
    template = MADE_UP.replace("{{ made | tojson }}", "{{ made.fn }} {{ made.given | dictsort }}")
    template = template.replace("call.function.arguments", "call.function.arguments | default({})")
    detection = found(template)

    assert detection.unmatched
    assert "None could be derived" in detection.reason


def test_a_tie_is_reported_and_a_dialect_made() -> None:
    twin = replace(HERMES, names=("twin",), reasoning=ReasoningMarkers(("<muse>",), ("</muse>",)))
    detection = detect(Evidence(TWO_WAYS), [replace(HERMES, reasoning=twin.reasoning), twin, QWEN3_CODER])
    assert not detection.tied  # the same grammar by two names is no tie

    twin = replace(twin, reasoning=ReasoningMarkers(("<amuse>",), ("</amuse>",)))
    detection = detect(Evidence(TWO_WAYS), [replace(HERMES, reasoning=THOUGHTS), twin, QWEN3_CODER])

    assert set(detection.tied) == {"hermes", "twin"}
    assert detection.doubtful
    assert detection.name == "generic"
    assert reads(detection, TWO_WAYS) == 1


THOUGHTS = ReasoningMarkers(("<muse>",), ("</muse>",))


def test_a_user_overrides() -> None:
    detection = choose("qwen3+hermes", Evidence(CODER))

    assert detection.name == "think+hermes"
    assert "--dialect" in OVERRIDE
    with pytest.raises(EngineError, match="no dialect 'nope'"):
        choose("nope", Evidence(CODER))
    assert choose(None, Evidence(CODER)).name == "qwen3_coder"


def test_a_broken_template_is_an_error() -> None:
    with pytest.raises(EngineError, match="error in line 1"):
        detect(Evidence("{% if %}"))


def test_an_unusable_template_is_not() -> None:
    assert found("{{ raise_exception('Not today.') }}").name == "hermes"


def test_every_hint_names_a_dialect() -> None:
    assert set(HINTS) <= set(BY_NAME)


def test_a_specimen_begins_where_an_answer_begins() -> None:
    renderer = ChatTemplateRenderer(THINKS, bos="", eos="", tool_prompt=None)
    (sample,) = samples_of(renderer, (REASONING, TEXT))

    assert sample.generation_prompt == "<|im_start|>assistant\n<think>\n"
    assert sample.text_after(sample.generation_prompt).startswith(REASONING.text)
    assert decode_sample(sample, find("qwen3"), Table(find("qwen3").grammar)) == (REASONING, TEXT)


@pytest.mark.parametrize("template", [TAGS, CODER], ids=["hermes", "qwen3_coder"])
def test_rendering_then_decoding_gives_the_items_back(template: str) -> None:
    dialect = found(template).dialect
    renderer = ChatTemplateRenderer(template, bos="<s>", eos="</s>", tool_prompt=None)
    for items in [(TEXT,), (REASONING, TEXT), (CALL,), (REASONING, TEXT, CALL, OTHER_CALL)]:
        (sample,) = samples_of(renderer, items)
        back = decode_sample(sample, dialect, Table(dialect.grammar))

        assert [type(item) for item in back] == [type(item) for item in items]
        for item, given in zip(back, items, strict=True):
            if isinstance(item, FunctionCall):
                assert isinstance(given, FunctionCall)
                assert (item.name, json.loads(item.arguments)) == (given.name, json.loads(given.arguments))
            else:
                assert isinstance(given, Message | Reasoning)
                assert item.text == given.text


def test_there_are_dialects() -> None:
    assert {"hermes", "qwen3_coder"} <= {dialect.names[0] for dialect in DIALECTS}


SUFFIXED = """\
{%- for m in messages -%}
<|{{ m.role }}|>
{%- if m.reasoning_content %}<think:x1>{{ m.reasoning_content }}</think:x1>{% endif %}{{ m.content or '' }}
{%- if m.tool_calls %}<tool_calls:x1>
{%- for c in m.tool_calls %}<tool_call:x1>{{ c.function.name }}<tool_sep:x1>
{%- for k, v in c.function.arguments.items() %}
<arg_key:x1>{{ k }}</arg_key:x1>
<arg_value:x1>{{ v if v is string else v | tojson }}</arg_value:x1>
{%- endfor %}
</tool_call:x1>{% endfor %}</tool_calls:x1>{% endif %}
{%- endfor -%}
{%- if tools %}<!-- {{ tools | tojson }} -->{% endif %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""


@pytest.mark.parametrize("name", [None, "hy_v4"])
def test_a_suffix_of_every_tag_is_taken_from_the_template(name: str | None) -> None:
    detection = choose(name, Evidence(SUFFIXED))

    assert detection.name == "hy_v3"
    assert "<tool_call:x1>" in detection.dialect.grammar.markers
    assert "<think:x1>" in detection.dialect.grammar.markers
    text = "<tool_calls:x1><tool_call:x1>f<tool_sep:x1>\n<arg_key:x1>a</arg_key:x1>\n<arg_value:x1>b</arg_value:x1>\n</tool_call:x1></tool_calls:x1>"
    check(Table(detection.dialect.grammar), text)
    assert [
        (call.name, call.arguments) for call in fold(decode(Table(detection.dialect.grammar), [text])).calls
    ] == [("f", '{"a": "b"}')]
