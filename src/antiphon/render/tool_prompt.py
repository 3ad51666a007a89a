"""Teaches tools to a model whose template knows nothing of them.

The texts come from the model's dialect as data, `ToolPrompt`; which of them are
needed is up to the template's `Traits`. Functions are described in the system
message, earlier calls are written into what the assistant said, and results
become messages of the user.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from antiphon.render.messages import TemplateMessage, add_to_system, object_of
from antiphon.render.sandbox import Template
from antiphon.render.seams import ANY_MODEL, Seams
from antiphon.render.traits import Arguments, Traits


class ToolPrompt(Struct, frozen=True):
    """How a dialect writes tools into plain messages. Each field is the source of a Jinja template.

    `system` describes `tools`, a list of OpenAI function tools. `call` writes
    one call of `name` with `arguments` (an object; the raw text if that is not
    one). `result` writes what the function `name` answered, `content`.
    """

    system: str
    call: str
    result: str


PLAIN_HISTORY = ToolPrompt(
    system="",
    call='{{ {"name": name, "arguments": arguments} | tojson }}',
    result="{{ content }}",
)
"""How calls and results of the past are written if the dialect does not say: a conversation begun
with another model must go on."""


class ToolWriter:
    """A compiled `ToolPrompt`. Raises `EngineError` if one of its templates does not compile.

    What it is given has seams already; `seams` go into what it reads out of JSON.
    """

    def __init__(self, prompt: ToolPrompt, seams: Seams = ANY_MODEL) -> None:
        self._seams = seams
        self._system = Template(prompt.system)
        self._call = Template(prompt.call)
        self._result = Template(prompt.result)

    def teach(self, messages: list[TemplateMessage], tools: Sequence[Any]) -> list[TemplateMessage]:
        """Describe `tools` in the system message."""
        return add_to_system(messages, self._system.render({"tools": tools}))

    def write_history(self, messages: list[TemplateMessage], traits: Traits) -> list[TemplateMessage]:
        """Earlier calls and results as text, where the template does not show them."""
        if not traits.calls:
            messages = [self._write_calls(message) for message in messages]
        return messages if traits.results else self._write_results(messages)

    def _write_calls(self, message: TemplateMessage) -> TemplateMessage:
        if "tool_calls" not in message:
            return message
        functions = [call["function"] for call in message["tool_calls"]]
        texts = [self._write_call(function) for function in functions]
        said = [message["content"]] if message["content"] else []
        written = {key: value for key, value in message.items() if key != "tool_calls"}
        return written | {"content": "\n".join([*said, *texts])}

    def _write_call(self, function: dict[str, Any]) -> str:
        arguments = object_of(function["arguments"], Arguments.ANY, self._seams)
        return self._call.render({"name": function["name"], "arguments": arguments})

    def _write_results(self, messages: list[TemplateMessage]) -> list[TemplateMessage]:
        """Results as messages of the user, those in a row as one: they answer calls of one message."""
        written: list[TemplateMessage] = []
        in_results = False
        for message in messages:
            is_result = message["role"] == "tool"
            if is_result:
                message = self._write_result(message)  # noqa: PLW2901
            if is_result and in_results:
                message = {**message, "content": written.pop()["content"] + "\n" + message["content"]}  # noqa: PLW2901
            written.append(message)
            in_results = is_result
        return written

    def _write_result(self, message: TemplateMessage) -> TemplateMessage:
        variables = {"name": message.get("name", ""), "content": message["content"]}
        return {"role": "user", "content": self._result.render(variables)}
