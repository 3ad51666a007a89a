"""Each dialect's grammar of each demand meets real engines: llama.cpp's parser, xgrammar, and a model that has to call.

Most of it is tried only by `make test-all`, where the templates are those of real models.
"""

import json
import os
from collections.abc import AsyncIterator, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio
import xllamacpp
from msgspec.structs import replace

from antiphon.constrain import gbnf, structural_tag
from antiphon.constrain.compile import CompiledConstraint, OutputRequirements, compile_constraint
from antiphon.core.accumulator import Output
from antiphon.core.chunks import FinishReason
from antiphon.core.grammar import Span, SpanKind
from antiphon.core.items import Message, Role, Status, TextPart
from antiphon.core.turn import CallMode, Function, Sampling, ToolChoice, Turn
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.registry import DIALECTS
from antiphon.engines import llama_cpp
from antiphon.engines.llama_cpp import LlamaCppEngine
from antiphon.engines.llama_request import _grammar
from antiphon.engines.models import resolve
from antiphon.render.renderer import ChatTemplateRenderer
from antiphon.run.answer_source import AnswerSource
from antiphon.run.drive import Driver
from antiphon.run.token_model import TokenModel
from tests.clients.test_real_constraints import Collected
from tests.constrain.sampler import samples
from tests.constrain.test_dialects import NO_CALLS
from tests.constrain.xgrammar_alone import Grammars, xgrammar
from tests.dialects.templates import TWO_WAYS
from tests.dialects.test_real_templates import EXPECTED, detections
from tests.real_templates import real_templates
from tests.run.test_boundary import DEMANDS
from tests.search import share

ALL = os.environ.get("ANTIPHON_TEST_TEMPLATES") == "1"
pytestmark = pytest.mark.timeout(1200)


def named(dialect: Dialect) -> str:
    return dialect.names[0]


def compiled(dialect: Dialect) -> Iterator[tuple[int, OutputRequirements, CompiledConstraint]]:
    """What each demand becomes, at the start of an answer and inside of a thought."""
    states = dialect.grammar.states.items()
    thoughts = [
        name for name, state in states if isinstance(state, Span) and state.kind is SpanKind.REASONING
    ]
    for number, (required, state) in enumerate(product(DEMANDS, (None, *thoughts[:1]))):
        if ALL or (number + len(named(dialect))) % 3 == 0:
            constraint = compile_constraint(replace(required, state=state), dialect.grammar)
            if constraint.grammar_ir is not None:
                yield number, required, constraint


@pytest.fixture(scope="module")
def llama(shallow_model: Path) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = str(shallow_model)
    params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
    params.cpuparams.n_threads = 1
    return xllamacpp.Server(params)


@pytest.mark.parametrize("dialect", share(DIALECTS), ids=named)
def test_llama_cpp_takes_each_demand(llama: Any, dialect: Dialect) -> None:
    refused = {}
    for number, _, constraint in compiled(dialect):
        assert constraint.grammar_ir is not None
        written = gbnf.write(constraint.grammar_ir, constraint.triggers)
        answer = llama.handle_completions({"prompt": "Hi", "max_tokens": 1, **_grammar(written)})
        if "choices" not in answer:
            refused[number] = answer
    assert refused == {}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars()


@pytest.mark.skipif(xgrammar() is None, reason="xgrammar is not installed")
@pytest.mark.parametrize("dialect", share(DIALECTS), ids=named)
def test_xgrammar_takes_each_demand_and_what_it_lets_through(grammars: Grammars, dialect: Dialect) -> None:
    refused = []
    for number, _, constraint in compiled(dialect):
        assert constraint.grammar_ir is not None
        tag = grammars.structural_tag(structural_tag.write(constraint.grammar_ir, constraint.triggers).text)
        for text in samples(constraint.grammar_ir, 4 if ALL else 1):
            written = f"Let me look.\n{text}" if constraint.triggers else text
            if not grammars.admits(tag, written):
                refused.append((number, written))
    assert refused == []


# A model that has to call

PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "detailed": {"type": "boolean"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
CLOCK: dict[str, Any] = {
    "type": "object",
    "properties": {
        "zones": {"type": "array", "items": {"enum": ["UTC", "CET"]}, "minItems": 1, "maxItems": 2}
    },
    "required": ["zones"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": PLACE, "now": CLOCK}
OFFERED = tuple(Function(name, "Tells it.", schema, strict=True) for name, schema in SCHEMAS.items())
CHOICES = {
    "required": ToolChoice(CallMode.REQUIRED),
    "single": ToolChoice(CallMode.REQUIRED, parallel=False),
    "named": ToolChoice(CallMode.REQUIRED, frozenset({"now"}), named=True),
    "allowed": ToolChoice(CallMode.REQUIRED, frozenset({"get_weather"})),
}
TOKENS = 300
"""Several calls may take more: then the last one is cut."""
THOUGHT = 12
"""Tokens of reasoning, which nothing holds."""
LIST_NONE = {
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
}
"""Templates that list no tools: a dialect may describe them instead."""
OTHERWISE = {
    "fireworks-ai-llama-3-firefunction-v2": "takes its tools from a variable of its own, `functions`"
}
CALLING = [dialect for dialect in DIALECTS if named(dialect) not in NO_CALLS]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(shallow_model: Path) -> AsyncIterator[LlamaCppEngine]:
    """One with all of its layers, if all is tried."""
    path = resolve(None) if ALL else shallow_model
    engine = LlamaCppEngine(path, llama_cpp.Options(context=4096, parallel=2, threads=1))
    await engine.start()
    yield engine
    await engine.stop()


async def call(engine: LlamaCppEngine, dialect: Dialect, template: str, choice: ToolChoice) -> Output:
    """The answer of a model of that family, which has to call."""
    renderer = (
        dialect.renderer(None)
        if dialect.renderer is not None
        else ChatTemplateRenderer(template, bos="<s>", eos="</s>", tool_prompt=dialect.tool_prompt)
    )
    model = TokenModel(engine, renderer, dialect)
    asked = Turn(
        "m",
        (Message(Role.USER, (TextPart("What is the weather in Rome, and what time is it?"),)),),
        tools=OFFERED,
        tool_choice=choice,
        sampling=Sampling(seed=1, temperature=0.7, max_tokens=TOKENS),
        reasoning_limit=THOUGHT if dialect.reasoning_end else None,
    )
    collected = Collected()
    await Driver(AnswerSource([asked], model), collected).run()
    return collected.items.output


def check(output: Output, choice: ToolChoice) -> None:
    """Every call is as it was demanded; the last of several may be cut."""
    whole = [each for each in output.calls if each.status is Status.COMPLETED]
    assert whole, output
    assert len(whole) == len(output.calls) or output.reason is FinishReason.LENGTH
    assert choice.max_calls is None or len(whole) <= choice.max_calls
    for each in whole:
        assert choice.admits(each.name)
        jsonschema_rs.validate(SCHEMAS[each.name], json.loads(each.arguments))


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("dialect", CALLING if ALL else CALLING[::8], ids=named)
async def test_a_model_that_has_to_call_calls(engine: LlamaCppEngine, dialect: Dialect) -> None:
    for name in CHOICES if ALL else ("single",):
        check(await call(engine, dialect, TWO_WAYS, CHOICES[name]), CHOICES[name])


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.skipif(not ALL, reason="downloads templates: set ANTIPHON_TEST_TEMPLATES=1")
@pytest.mark.parametrize("name", EXPECTED)
async def test_a_model_with_the_template_of_its_family_calls(engine: LlamaCppEngine, name: str) -> None:
    if name not in real_templates() or name in OTHERWISE:
        pytest.skip(OTHERWISE.get(name, "the template is in other releases"))
    dialect, choice = detections()[name].dialect, CHOICES["named" if len(name) % 2 else "single"]
    if name in LIST_NONE and dialect.tool_prompt is None:
        pytest.skip("the template lists no tools, and nothing describes them instead")
    check(await call(engine, dialect, real_templates()[name], choice), choice)
