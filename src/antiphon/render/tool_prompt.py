"""Describes tools to a model whose template does not render them.

The texts are the `ToolPrompt` of the model's dialect; which of them are needed depends
on the `TemplateCapabilities`. Functions are described in the system message, earlier
calls are written into the assistant's text, and results become messages of the user.
"""

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from antiphon.render.capabilities import ArgumentFormat, TemplateCapabilities
from antiphon.render.messages import TemplateMessage, add_to_system, parse_arguments
from antiphon.render.sandbox import Template
from antiphon.render.special_tokens import GENERIC_ESCAPER, SpecialTokenEscaper

CallWriter = Callable[[str, Any], str]
"""Writes one call of this name with these arguments: an object; the raw text if it does not parse."""


class ToolPrompt(Struct, frozen=True):
    """How a dialect writes tools into plain messages. Its texts are the sources of Jinja templates.

    `system` describes `tools`, a list of OpenAI function tools. `call` writes one call of `name` with
    `arguments`, as a `CallWriter` does. `result` writes `content`, the result of the function `name`.
    """

    system: str
    call: str | CallWriter
    result: str


PLAIN_HISTORY = ToolPrompt(
    system="",
    call='{{ {"name": name, "arguments": arguments} | tojson }}',
    result="{{ content }}",
)
"""Writes earlier calls and results if the dialect has no tool prompt: a conversation started with
another model must still render."""


class ToolPromptRenderer:
    """A compiled `ToolPrompt`. Raises `EngineError` if one of its templates does not compile.

    Its input is escaped already; `escaper` escapes text that it parses from JSON.
    """

    def __init__(self, prompt: ToolPrompt, escaper: SpecialTokenEscaper = GENERIC_ESCAPER) -> None:
        self._escaper = escaper
        self._system = Template(prompt.system)
        self._call = _from_template(prompt.call) if isinstance(prompt.call, str) else prompt.call
        self._result = Template(prompt.result)

    def describe_tools(self, messages: list[TemplateMessage], tools: Sequence[Any]) -> list[TemplateMessage]:
        """Describe `tools` in the system message."""
        return add_to_system(messages, self._system.render({"tools": tools}))

    def write_history(
        self, messages: list[TemplateMessage], capabilities: TemplateCapabilities
    ) -> list[TemplateMessage]:
        """Earlier calls and results as text, where the template does not render them."""
        if not capabilities.calls:
            messages = [self._write_calls(message) for message in messages]
        return messages if capabilities.results else self._write_results(messages)

    def _write_calls(self, message: TemplateMessage) -> TemplateMessage:
        if "tool_calls" not in message:
            return message
        functions = [call["function"] for call in message["tool_calls"]]
        texts = [self._write_call(function) for function in functions]
        content = [message["content"]] if message["content"] else []
        rest = {key: value for key, value in message.items() if key != "tool_calls"}
        return rest | {"content": "\n".join([*content, *texts])}

    def _write_call(self, function: dict[str, Any]) -> str:
        arguments = parse_arguments(function["arguments"], ArgumentFormat.ANY, self._escaper)
        return self._call(function["name"], arguments)

    def _write_results(self, messages: list[TemplateMessage]) -> list[TemplateMessage]:
        """Results as messages of the user. Consecutive ones belong to one message, so they are merged."""
        result: list[TemplateMessage] = []
        in_results = False
        for message in messages:
            is_result = message["role"] == "tool"
            if is_result:
                message = self._write_result(message)  # noqa: PLW2901
            if is_result and in_results:
                message = {**message, "content": result.pop()["content"] + "\n" + message["content"]}  # noqa: PLW2901
            result.append(message)
            in_results = is_result
        return result

    def _write_result(self, message: TemplateMessage) -> TemplateMessage:
        variables = {"name": message.get("name", ""), "content": message["content"]}
        return {"role": "user", "content": self._result.render(variables)}


def _from_template(source: str) -> CallWriter:
    template = Template(source)
    return lambda name, arguments: template.render({"name": name, "arguments": arguments})
