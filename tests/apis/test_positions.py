"""A law of every API and dialect: the prompt of a turn begins with that of the turn before, byte for byte.

Conversations are drawn: what is said, and what changes tools and settings, in any order. Each is rendered
turn by turn, as clients send it: whole. That changes count, and how, is tested over HTTP.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.apis.chat.accept import accept as accept_chat
from antiphon.apis.chat.schema import ChatRequest
from antiphon.core.positions import FunctionsByPlace, begun_anew
from antiphon.core.turn import Function, Placement, Turn
from antiphon.dialects.registry import find
from antiphon.dialects.tool_description import tool_prompt_of
from antiphon.render.harmony import HarmonyRenderer
from antiphon.render.renderer import CHATML, ChatTemplateRenderer, Renderer
from tests.apis.messages.support import accepted as accept_message
from tests.apis.responses.support import accepted as accept_response
from tests.http.positions.model import EVERY, HARMONY
from tests.render import templates
from tests.search import share

NAMES = ("a", "b", "c", "d")
SCHEMAS = ({"type": "object", "properties": {}}, {"type": "object", "properties": {"x": {"type": "integer"}}})
Step = tuple[str, Any]

names = st.sampled_from(NAMES)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("user"), st.text("xyz ", min_size=1, max_size=5)),
        st.tuples(st.just("assistant"), st.text("xyz", min_size=1, max_size=5)),
        st.tuples(st.just("add"), st.tuples(st.sampled_from((*NAMES, "own")), st.sampled_from(SCHEMAS))),
        st.tuples(st.just("remove"), names),
        st.tuples(st.just("find"), names),
        st.tuples(st.just("effort"), st.sampled_from(["low", "high", "max"])),
        st.tuples(st.just("format"), st.sampled_from(SCHEMAS)),
        st.tuples(st.just("compact"), st.text("xyz", min_size=1, max_size=5)),
    ),
    min_size=1,
    max_size=8,
)


def renderer(dialect: str) -> Renderer:
    if dialect == HARMONY:
        return HarmonyRenderer("2025-06-28")
    return ChatTemplateRenderer(CHATML, bos="", eos="", tool_prompt=tool_prompt_of(find(dialect)))


RENDERERS: dict[str, Renderer] = {
    **{dialect: renderer(dialect) for dialect in sorted({*EVERY, HARMONY})},
    **{
        f"like {family}": ChatTemplateRenderer(
            template, bos="<s>", eos="</s>", tool_prompt=tool_prompt_of(find("hermes"))
        )
        for family, template in templates.ALL.items()
    },
}


def function(name: str, schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": schema, **more}


def items(number: int, step: Step) -> list[Any]:
    match step:
        case (("user" | "assistant") as role, text):
            return [{"role": role, "content": text}]
        case "add", (name, schema):
            return [{"type": "additional_tools", "role": "developer", "tools": [function(name, schema)]}]
        case "find", name:
            tools = [function(name, SCHEMAS[0], defer_loading=True)]
            common = {"call_id": None, "execution": "server", "status": "completed"}
            call = {"type": "tool_search_call", "id": f"s{number}", "arguments": {"query": name}, **common}
            return [call, {"type": "tool_search_output", "tools": tools, **common}]
        case "effort", effort:
            return [{"type": "configuration_update", "reasoning": {"effort": effort}}]
        case "format", schema:
            form = {"type": "json_schema", "name": "n", "schema": schema}
            return [{"type": "configuration_update", "text": {"format": form}}]
    return []


def response(steps: list[Step]) -> Turn:
    given = [item for number, step in enumerate(steps) for item in items(number, step)]
    tools = [function("own", SCHEMAS[0]), {"type": "tool_search", "execution": "client"}]
    return accept_response(input=[{"role": "user", "content": "Hi"}, *given], tools=tools).turn


def message(steps: list[Step]) -> Turn:
    sent: list[Any] = [{"role": "user", "content": "Hi"}]
    for number, step in enumerate(steps):
        match step:
            case (("user" | "assistant") as role, text):
                sent.append({"role": role, "content": text})
            case "add", (name, _):
                definition = {"name": f"{name}_later", "input_schema": SCHEMAS[0]}
                tool: Any = {"type": "tool_definition", "definition": definition}
                sent.append({"role": "system", "content": [{"type": "tool_addition", "tool": tool}]})
            case "remove", name:
                tool = {"type": "tool_reference", "name": name}
                sent.append({"role": "system", "content": [{"type": "tool_removal", "tool": tool}]})
            case "find", name:
                id_ = f"srvtoolu_{number}"
                found = {
                    "type": "tool_search_tool_search_result",
                    "tool_references": [{"type": "tool_reference", "tool_name": name}],
                }
                call = {"type": "server_tool_use", "id": id_, "name": "tool_search_tool_bm25", "input": {}}
                result = {"type": "tool_search_tool_result", "tool_use_id": id_, "content": found}
                sent.append({"role": "assistant", "content": [call, result]})
            case "compact", summary:
                block = {"type": "compaction", "content": summary}
                sent.append({"role": "assistant", "content": [block]})
            case "effort", effort:
                sent.append({"role": "system", "output_config": {"effort": effort}})
    tools = [{"name": name, "input_schema": SCHEMAS[1], "defer_loading": True} for name in NAMES]
    return accept_message(sent, tools=[{"name": "own", "input_schema": SCHEMAS[0]}, *tools]).turn


def chat(steps: list[Step]) -> Turn:
    sent: list[Any] = [{"role": "user", "content": "Hi"}]
    for step in steps:
        match step:
            case (("user" | "assistant") as role, text):
                sent.append({"role": role, "content": text})
            case "add", (name, schema):
                tool = {"type": "function", "function": {"name": name, "parameters": schema}}
                sent.append({"role": "system", "tools": [tool]})
    own = {"type": "function", "function": {"name": "own"}}
    body = {"model": "m", "messages": sent, "tools": [own]}
    return accept_chat(msgspec.convert(body, ChatRequest), "").turn


APIS: dict[str, Callable[[list[Step]], Turn]] = {"responses": response, "messages": message, "chat": chat}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("dialect", share(RENDERERS, 3))
@settings(max_examples=12)
@given(steps=STEPS)
def test_a_prompt_is_only_appended_to(dialect: str, api: str, steps: list[Step]) -> None:
    prompts = [RENDERERS[dialect].transcript(APIS[api](steps[:count])) for count in range(len(steps) + 1)]
    for number, (earlier, later) in enumerate(pairwise(prompts)):
        before = [name for name, _ in steps[:number] if name in ("user", "assistant", "find")]
        if steps[number][0] == "find" and before[-1:] == ["assistant"]:
            continue  # text before a call of the same answer, which is no turn: harmony has it elsewhere
        if steps[number][0] == "compact":
            continue  # the prompt begins anew
        assert later.startswith(_open(earlier)), (steps[number], earlier, later)


def _open(prompt: str) -> str:
    """A transcript without the end of its last message: neighbouring texts of one role are one message."""
    for end in ENDS:
        prompt = prompt.removesuffix(end)
    return prompt


ENDS = (
    "<|im_end|>\n",
    "<|end|>",
    "<|return|>",
    "<|assistant|>",
    "<end_of_turn>\n",
    "[/INST]",
    "</s>",
    "<think></think>",
)


@given(st.lists(st.tuples(st.sampled_from(["add", "find", "restore", "remove", "anew"]), names), max_size=12))
def test_what_can_be_called_was_described(changes: list[Step]) -> None:
    """Whatever happens to functions: those that may be called are listed, or were described since."""
    places = FunctionsByPlace([Function("own"), Function("d", placement=Placement.SEARCH)])
    told: set[str] = {"own"}
    for change, name in changes:
        match change:
            case "add":
                told |= {function.name for function in places.add([Function(name)])}
            case "find":
                told |= {function.name for function in places.find([name])}
            case "restore":
                told |= {function.name for function in places.restore([name])}
            case "remove":
                told -= {*places.remove([name])}
            case "anew":
                places.begin_anew()
                kinds = {function.placement for function in places.functions}
                assert kinds <= {Placement.PROMPT, Placement.SEARCH}
    turn = Turn("m", tools=places.functions)
    callable_ = {function.name for function in turn.known_tools} - places.removed
    assert callable_ == told
    assert len({function.name for function in turn.known_tools}) == len(turn.known_tools)
    assert all(tool.placement in (Placement.PROMPT, Placement.SEARCH) for tool in begun_anew(turn).tools)
