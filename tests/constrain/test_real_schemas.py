"""A real engine held to schemas: SmolLM2-135M, mostly with few of its layers. It answers what fits, or is cut."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import xllamacpp

from antiphon.constrain import gbnf
from antiphon.constrain.compile import OutputRequirements, compile_constraint
from antiphon.constrain.grammar_ir import GrammarIR, sequence
from antiphon.core.constraint import Format, Gbnf, JsonObject, JsonSchema, OneOf, Regex
from antiphon.core.turn import CallMode, Function, ToolChoice
from antiphon.dialects.registry import find
from antiphon.engines.models import resolve
from tests.constrain.schemas import SCHEMAS
from tests.search import CI

pytestmark = pytest.mark.timeout(600)  # 40 s on a quiet machine

TOKENS = 100
MAX_CUT = 0.25
"""The share of answers that may be cut by the limit: a small model may continue strings and lists
endlessly."""

TRIED = dict([*SCHEMAS.items()][:: 5 if CI else 1])
"""Each takes a while: CI tries some."""

PLAIN, HERMES = find("plain").grammar, find("hermes").grammar
PROMPT = "<|im_start|>user\nAnswer with a short JSON.<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def engine(shallow_model: Path) -> Any:
    return started(shallow_model)


@pytest.fixture(scope="module")
def able() -> Any:
    """Its model answers what it is asked."""
    return started(resolve(None))


def started(model: Path) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx, params.n_parallel, params.warmup = 2048, 1, False
    params.cpuparams.n_threads = 1  # two wait for each other where tests run side by side
    return xllamacpp.Server(params)


def answer(
    engine: Any, constraint: Gbnf, prompt: str = PROMPT, seed: int = 1, **more: Any
) -> tuple[str, bool]:
    """The text, and whether the model ended it itself."""
    lazy = [{"type": 2, "value": re.escape(trigger)} for trigger in constraint.triggers]
    found = engine.handle_completions(
        {
            "prompt": prompt,
            "max_tokens": TOKENS,
            "grammar": constraint.text,
            "grammar_lazy": bool(lazy),
            "grammar_triggers": lazy,
            "temperature": 0.8,
            "seed": seed,
            **more,
        }
    )
    assert "choices" in found, found
    choice = found["choices"][0]
    return choice["text"], choice["finish_reason"] == "stop"


def held(format_: Format) -> Gbnf:
    compiled = compile_constraint(OutputRequirements(format=format_), PLAIN)
    assert compiled.grammar_ir is not None
    return gbnf.write(compiled.grammar_ir)


def test_answers_fit_their_schemas(engine: Any) -> None:
    cut = []
    for name, schema in TRIED.items():
        text, whole = answer(engine, held(JsonSchema(schema)))
        if not whole:
            cut.append(name)
            continue
        jsonschema_rs.validator_for(schema, validate_formats=True).validate(json.loads(text))
    assert len(cut) < MAX_CUT * len(TRIED), cut


@pytest.mark.parametrize(
    ("format_", "fits"),
    [
        (Regex(r"[0-9]{3}-(cat|dog)"), lambda text: text[:3].isdigit() and text[4:] in ("cat", "dog")),
        (OneOf(("red", 'gr"een', "b\\lue\n")), lambda text: text.strip() in ("red", 'gr"een', "b\\lue")),
        (JsonObject(), lambda text: isinstance(json.loads(text), dict)),
    ],
)
def test_other_formats(engine: Any, format_: Format, fits: Any) -> None:
    text, whole = answer(engine, held(format_))
    assert fits(text) if whole else isinstance(format_, JsonObject)


TOOL = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
}
TOOLS = (Function("get_weather", None, TOOL, strict=True), Function("now", None, {}))


@pytest.mark.parametrize(
    "dialect", ["hermes", "qwen3_coder", "glm45", "mistral", "pythonic", "gemma4", "deepseek_v32"]
)
def test_a_call_that_must_come_comes(engine: Any, dialect: str) -> None:
    choice = ToolChoice(CallMode.REQUIRED, frozenset({"get_weather"}), parallel=False)
    compiled = compile_constraint(OutputRequirements(TOOLS, choice, state="text"), find(dialect).grammar)
    assert compiled.grammar_ir is not None
    text, whole = answer(engine, gbnf.write(compiled.grammar_ir), max_tokens=250)
    assert whole
    assert "get_weather" in text
    assert "Rome" in text or "Oslo" in text


def test_text_before_a_trigger_is_free_and_a_call_behind_it_is_held(able: Any) -> None:
    compiled = compile_constraint(OutputRequirements(TOOLS, ToolChoice(parallel=False)), HERMES)
    assert compiled.grammar_ir is not None
    constraint = gbnf.write(compiled.grammar_ir, compiled.triggers)
    assert constraint.triggers == ("<",)
    said, _ = answer(able, constraint)
    assert said
    forced, whole = answer(
        able, constraint, PROMPT + "Let me look.\n", logit_bias=[["<", 8.0], ["tool", 5.0]]
    )
    assert forced
    assert whole or "<tool_call>" not in forced


def test_a_token_that_holds_a_trigger_and_what_may_not_follow_it_is_not_drawn(able: Any) -> None:
    """llama.cpp looks for triggers in generated text: after such a token it could only fail."""
    constraint = gbnf.write(GrammarIR(sequence("is Par", "k")), ("is Par",))
    asked = PROMPT.replace("Answer with a short JSON.", "What is the capital of France?")
    free, _ = answer(able, Gbnf('root ::= "Par"', ("no such text",)), asked, temperature=0)
    assert "Paris" in free
    said, _ = answer(able, constraint, asked, temperature=0)
    assert said.partition("is ")[0] == free.partition("is ")[0]
    assert "Paris" not in said
