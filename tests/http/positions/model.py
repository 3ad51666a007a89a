"""A model that calls what its test says, in the words of its dialect, for the tests of tools and settings by place.

Its dialect writes the calls itself: every one that describes tools in plain messages has a writer of calls.
"""

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from antiphon.core.constraint import Gbnf
from antiphon.dialects.registry import DIALECTS, find
from antiphon.dialects.tool_description import tool_prompt_of
from antiphon.engines.engine import GenerationRequest, Receiver, Work
from antiphon.engines.script import Line, answer_of
from antiphon.engines.scripted import CAPABILITIES, ScriptedEngine
from antiphon.render.tool_prompt import ToolPromptRenderer
from tests.constrain.language import language_of
from tests.pushing import Pushing
from tests.search import CI

HARMONY = "openai"
_SOME = ("hermes", "qwen3_coder", "mistral", HARMONY, "glm45", "deepseek_v31", "kimi_k2", "pythonic")
SOME = _SOME[: 4 if CI else None]
"""Dialects that differ in how they write calls. CI has time for half of them."""
EVERY = tuple(sorted(dialect.names[0] for dialect in DIALECTS if tool_prompt_of(dialect) is not None))

Call = tuple[str, Mapping[str, Any]]


def written(dialect: str, call: Call) -> str:
    """A call as a model of this dialect writes it."""
    name, arguments = call
    if dialect == HARMONY:
        text = json.dumps(arguments)
        return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{text}<|call|>"
    prompt = tool_prompt_of(find(dialect))
    assert prompt is not None
    function = {"name": name, "arguments": json.dumps(arguments)}
    message = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": function}]}
    text: str = ToolPromptRenderer(prompt)._write_calls(message)["content"]
    return text


def begins(prompts: list[str]) -> bool:
    """Whether each prompt begins with the one before, but for the beginning of an answer."""
    return all(_head(later).startswith(_head(earlier)) for earlier, later in pairwise(prompts))


def _head(prompt: str) -> str:
    for start in ("<think>\n", "<|im_start|>assistant\n", "<|start|>assistant"):
        prompt = prompt.removesuffix(start)
    return prompt


class CallingModel(ScriptedEngine):
    """Writes what it is told, one generation after the other; `prompts` are those that it has got."""

    def __init__(self, dialect: str, **options: Any) -> None:
        super().__init__([], capabilities=replace(CAPABILITIES, constraints=(Gbnf,)), **options)
        self._dialect = dialect
        self._lines: list[str] = []
        self.constraints: list[Any] = []

    def will(self, *steps: Call | str) -> None:
        """What the next generations write: calls, or texts."""
        said = "<|channel|>final<|message|>{}<|return|>" if self._dialect == HARMONY else "{}"
        self._lines = [
            said.format(step) if isinstance(step, str) else written(self._dialect, step) for step in steps
        ]

    @property
    def prompts(self) -> list[str]:
        return [request.prompt.text for request in self.seen]

    def generate(self, request: GenerationRequest, receiver: Receiver) -> Work:
        self.seen.append(request)
        self.constraints.append(request.constraint)
        line = Line(self._lines.pop(0), split="chars")
        return Pushing(([chunk] for chunk in answer_of(line).play(request)), receiver)

    def allows(self, step: Call, number: int = -1) -> bool:
        """Whether the constraint on a generation lets a call through."""
        constraint = self.constraints[number]
        assert isinstance(constraint, Gbnf)
        return written(self._dialect, step) in language_of(constraint.text)
