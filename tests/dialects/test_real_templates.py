"""Real templates: the dialect that each gets, and that decoding is the inverse of rendering."""

import json
from collections.abc import Mapping, Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.core.items import FunctionCall, Message, OutputItem, Status
from antiphon.core.turn import Function
from antiphon.decode.table import Table
from antiphon.dialects.detection.detect import Detection, Evidence, detect
from antiphon.dialects.detection.samples import collect_samples, samples_of
from antiphon.dialects.detection.scorers import decode_sample
from antiphon.render.renderer import ChatTemplateRenderer
from tests.real_templates import marks, real_templates
from tests.search import examples

pytestmark = marks

EXPECTED = {
    "Apertus-8B-Instruct": "apertus",
    "Apriel-1.6-15b-Thinker-fixed": "generic+jamba",
    "Bielik-11B-v3.0-Instruct": "hermes",
    "ByteDance-Seed-OSS": "seed_oss",
    "Cohere2MoE": "cohere_command3",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere_command3",
    "GLM-4.6": "glm45",
    "GLM-4.7-Flash": "glm45",
    "GigaChat3-10B-A1.8B": "gigachat3",
    "GigaChat3.1-10B-A1.8B": "gigachat3",
    "IFM-K2-Horizon": "k2_horizon",
    "Kimi-K2-Instruct": "kimi_k2",
    "Kimi-K2-Thinking": "kimi_k2",
    "Kimi-K3": "kimi_k3",
    "LFM2.5-8B-A1B": "lfm2",
    "MiMo-VL": "hermes",
    "MiniMax-M1": "jamba",
    "MiniMax-M2": "minimax_m2",
    "MiniMax-M3": "minimax_m3",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3_coder",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen3_coder",
    "Qwen3.5-4B": "qwen3_coder",
    "Reka-Edge": "hermes",
    "Spark2.5": "glm45",
    "StepFun3.5-Flash": "qwen3_coder",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "deepseek_v3",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek_v3",
    "deepseek-ai-DeepSeek-V3.1": "deepseek_v31",
    "deepseek-ai-DeepSeek-V3.2": "deepseek_v32",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "deepseek_v4",
    "deepseek-ai-DeepSeek-V4": "deepseek_v4",
    "fireworks-ai-llama-3-firefunction-v2": "phi4_mini_json",
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "google-gemma-4-31B-it": "gemma4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "inclusionai-ling-3.0-flash": "glm45",
    "llama-cpp-deepseek-r1": "deepseek_v3",
    "llm-jp-llm-jp-4.1-8b-thinking": "openai",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3_json",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3_json",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3_json",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "moonshotai-Kimi-K2": "kimi_k2",
    "muse-glimmer": "muse_glimmer",
    "openai-gpt-oss-120b": "openai",
    "openbmb-MiniCPM5-1B": "minicpm5",
    "poolside-Laguna-S-2.1": "glm45",
    "poolside-Laguna-XS-2.1": "glm45",
    "poolside-Laguna-XS.2": "glm45",
    "tencent-Hy3": "hy_v3",
    "unsloth-Apriel-1.5": "jamba",
    "unsloth-mistral-Devstral-Small-2507": "mistral",
}
"""Without any name, from the template alone."""

NAMED = {"LFM2-8B-A1B": "lfm2", "LFM2.5-Instruct": "lfm2"}
"""These templates show no calls, and no marker of one: only the name of the model indicates the dialect."""

TAUGHT = {
    "HuggingFaceTB-SmolLM3-3B": "takes its tools from a variable of its own, `xml_tools`",
    "google-gemma-2-2b-it": "knows no tools",
    "google-translategemma-4b-it": "knows no tools",
    "llama-cpp-rwkv-world": "knows no tools",
    "microsoft-Phi-3.5-mini-instruct": "knows no tools",
}
"""Their models are taught the format of `hermes`, and why."""

MADE = {
    "CohereForAI-c4ai-command-r-plus-tool_use": "an action in a fence, a form of 2024",
    "NVIDIA-Nemotron-Nano-v2": "`<TOOLCALL>[…]</TOOLCALL>`",
    "meetkai-functionary-medium-v3.1": "`<function=name>{…}</function>`",
    "upstage-Solar-Open-100B": "ids, names and arguments between tokens",
}
"""No dialect describes these families: one is derived from their templates, and that is reported."""

MISSED = {"meetkai-functionary-medium-v3.2": "the prompt ends with the marker of the call"}
"""Nor could a dialect be made."""

LOSSES = {
    ("google-gemma-4-31B-it", "text and call"): "the template writes the text behind the call",
    ("openai-gpt-oss-120b", "text and call"): "the template writes the text as reasoning",
}
"""What does not come back, and why."""


@cache
def detections() -> Mapping[str, Detection]:
    return {name: detect(Evidence(source, (), "<s>", "</s>")) for name, source in real_templates().items()}


def test_every_template_gets_the_dialect_of_its_family() -> None:
    found = detections()
    chosen = {name: found[name].name for name in EXPECTED if name in found}

    assert chosen == {name: EXPECTED[name] for name in chosen}
    assert not [name for name in chosen if found[name].doubtful]
    assert len(chosen) >= 55


def test_names_decide_where_templates_do_not() -> None:
    for name, dialect in NAMED.items():
        assert detect(Evidence(real_templates()[name], (name,))).name == dialect


def test_names_mislead_nobody() -> None:
    found = detections()
    for name in EXPECTED:
        assert detect(Evidence(real_templates()[name], (name,), "<s>", "</s>")).name == found[name].name


def test_models_without_a_format_are_taught_one() -> None:
    found = detections()
    assert {found[name].dialect.names[0].split("+")[-1] for name in TAUGHT} == {"hermes"}
    assert not any(found[name].doubtful for name in TAUGHT)


def test_what_nobody_described_is_reported() -> None:
    found = detections()
    assert {name for name in found if found[name].doubtful} == {*MADE, *MISSED}
    assert {found[name].name for name in MADE} == {"generic"}


def test_what_templates_write_is_read_back() -> None:
    found = detections()
    wrong = {}
    for name in EXPECTED:
        table = Table(found[name].dialect.grammar)
        for sample in collect_samples(renderer(name)).answers:
            if (name, sample.name) in LOSSES:
                continue
            items = decode_sample(sample, found[name].dialect, table)
            if essence(items) != essence(sample.items):
                wrong[name, sample.name] = (sample.written, items)
    assert wrong == {}


WORDS = (
    st.text("abc éß漢🙂0123456789.,:;!?'\"\\/()-+*=&%$#@\n", min_size=1, max_size=30)
    .map(str.strip)
    .filter(bool)
)
VALUES = st.fixed_dictionaries(
    {"text": WORDS},
    optional={
        "count": st.integers(-1000, 1000),
        "flag": st.booleans(),
        "parts": st.lists(st.integers(0, 9), max_size=3),
    },
)
TYPES = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "flag": {"type": "boolean"},
    "parts": {"type": "array", "items": {"type": "integer"}},
}
PROPERTIES = {key: {"description": key, **schema} for key, schema in TYPES.items()}
SPEND = Function("spend_time", "Spends time.", {"type": "object", "properties": PROPERTIES})

UNESCAPED = {"LFM2.5-8B-A1B"}
"""These templates write strings as they are: what a backslash or quote in them means is anyone's guess."""


@pytest.mark.parametrize("name", EXPECTED)
@settings(max_examples=examples(25), derandomize=True)
@given(values=st.lists(VALUES, min_size=1, max_size=2))
def test_rendering_then_decoding_gives_any_calls_back(name: str, values: list[dict[str, object]]) -> None:
    calls = [
        FunctionCall(f"spend000{n}", SPEND.name, json.dumps(value, ensure_ascii=False))
        for n, value in enumerate(values)
    ]
    if (name, "two calls") in LOSSES:
        calls = calls[:1]
    if name in UNESCAPED:
        calls = [
            replace(call, arguments=call.arguments.replace("\\\\", "/").replace("'", "/")) for call in calls
        ]
    dialect = detections()[name].dialect
    for sample in samples_of(renderer(name), tuple(calls), (SPEND,)):
        items = decode_sample(sample, dialect, Table(dialect.grammar), {SPEND.name: SPEND.parameters})
        assert essence(items) == essence(calls), sample.written


@cache
def renderer(name: str) -> ChatTemplateRenderer:
    return ChatTemplateRenderer(real_templates()[name], bos="<s>", eos="</s>", tool_prompt=None)


def essence(items: Sequence[OutputItem]) -> list[object]:
    """Items without their ids, and without a last text that is nothing but tokens."""
    short: list[object] = []
    for item in items:
        if isinstance(item, FunctionCall):
            whole = item.status is Status.COMPLETED
            short.append((item.name, json.loads(item.arguments) if whole else item))
        else:
            short.append((type(item).__name__, item.text.strip()))
    last = items[-1] if len(items) > 1 else None
    if isinstance(last, Message) and last.text.strip().startswith("<") and last.text.strip().endswith(">"):
        short.pop()
    return short
