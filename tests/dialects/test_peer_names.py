"""Every name of a parser of vLLM and SGLang is a name of a dialect that reads what the parser reads."""

import pytest

from antiphon.core.grammar import Span, SpanKind
from antiphon.dialects.dialect import TEXT, Dialect
from antiphon.dialects.registry import find

PARSERS = {
    "vLLM 0.33.0, tool parsers": """
        apertus beam cohere_command3 cohere_command4 deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4
        deepseek_v41 dots ernie45 functiongemma gemma4 gigachat3 glm45 glm47 granite granite-20b-fc
        granite4 hermes hf hunyuan_a13b hy_v3 hy_v4 inkling internlm jamba k2_horizon kimi_k2 kimi_k3
        lfm2 ling3 llama3_json llama4_json llama4_pythonic longcat mimo minicpm5 minimax_m2 minimax_m3
        mistral muse muse_glimmer musespark1x olmo3 openai phi4_mini_json plamo3 poolside_v1 pythonic
        qwen3_coder qwen3_json qwen3_xml seed_oss step3 step3p5 step5 xlam
    """,
    "vLLM 0.33.0, reasoning parsers": """
        beam cohere_command3 cohere_command4 deepseek_r1 deepseek_v3 deepseek_v4 deepseek_v41 ernie45
        gemma4 glm45 glm47 granite granite_thinking_parser hf holo2 hunyuan_a13b hy_v3 hy_v4 inkling
        k2_horizon kimi_k2 kimi_k3 ling3 mimo minicpmv minimax_m2 minimax_m2_append_think minimax_m3
        mistral muse muse_glimmer musespark1x nemotron_v3 olmo3 openai_gptoss plamo3 poolside_v1 qwen3
        seed_oss step3 step3p5 step5
    """,
    "SGLang 0.5.23, tool parsers": """
        apertus2509 beam cohere_command4 deepseekv3 deepseekv31 deepseekv32 deepseekv4 deepseekv41 dots
        gemma4 gigachat3 gigachat35 glm glm45 glm47 gpt-oss hermes hunyuan inkling interns1 iquest_q1
        k2_horizon kimi_k2 kimi_k3 lfm2 ling3 llama3 mimo minicpm5 minimax-m2 minimax-m3 mistral muse
        nanbeige poolside_v1 pythonic qwen qwen25 qwen3_coder response_template spark25 step3 step3p5
        trinity
    """,
    "SGLang 0.5.23, reasoning parsers": """
        apertus2509 beam cohere_command4 deepseek-r1 deepseek-v3 deepseek-v4 deepseek-v41 dots gemma4
        gigachat35 glm45 gpt-oss granite_thinking_parser hunyuan inkling interns1 iquest_q1 k2_horizon
        kimi kimi_k2 kimi_k3 ling3 mimo minimax minimax-append-think minimax-m3 mistral muse nanbeige
        nemotron_3 poolside_v1 qwen3 qwen3-thinking response_template step3 step3p5
    """,
}
"""The names in their registries, of these versions."""

TEMPLATE = """{"fields": {
    "thinking": {"open": "<think>", "close": "</think>"},
    "tool_calls": {"open": "<tool_call>", "close": "</tool_call>", "content": "json", "repeats": true,
                   "transform": {"type": "function", "function": "{content}"}},
    "content": {"close": "<|im_end|>"}
}}"""
"""A response template, for the names that stand for any."""

IN_TEXT = {"minimax_m2_append_think"}
"""The dialects that leave reasoning in the text on purpose."""


def named(kind: str) -> list[str]:
    return [name for parsers, names in PARSERS.items() if kind in parsers for name in names.split()]


def reasons(dialect: Dialect) -> bool:
    spans = (state for state in dialect.grammar.states.values() if isinstance(state, Span))
    return any(span.kind is SpanKind.REASONING for span in spans)


@pytest.mark.parametrize("name", named("tool parsers"))
def test_tool_parsers_are_dialects_with_calls(name: str) -> None:
    assert find(name, TEMPLATE).calls is not TEXT


@pytest.mark.parametrize("name", named("reasoning parsers"))
def test_reasoning_parsers_are_dialects_with_reasoning(name: str) -> None:
    dialect = find(name, TEMPLATE)

    assert reasons(dialect) or dialect.names[0] in IN_TEXT


@pytest.mark.parametrize(
    "name", ["openai_gptoss+openai", "gpt-oss+gpt-oss", "muse+muse", "beam+beam", "kimi_k3+kimi_k3", "hf+hf"]
)
def test_a_reasoning_and_a_tool_parser_of_one_format_are_that_dialect(name: str) -> None:
    assert find(name, TEMPLATE) == find(name.partition("+")[2], TEMPLATE)


@pytest.mark.parametrize("peer", ["vLLM", "SGLang"])
def test_a_pair_of_parsers_of_different_families_combines(peer: str) -> None:
    """As their users name two parsers: `--reasoning-parser A --tool-call-parser B` is `A+B`."""
    tools = named(f"{peer} 0.33.0, tool" if peer == "vLLM" else f"{peer} 0.5.23, tool")
    for name in tools:
        assert find(f"qwen3+{name}", TEMPLATE).calls == find(name, TEMPLATE).calls
