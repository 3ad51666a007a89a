"""Whether an answer is what the request demanded, where the engine could not be held to it.

An answer that was cut is not judged: it says already that it is not whole. The
verdict goes to the client with the end of the answer; the answer itself stays
as the model wrote it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.constrain.matcher import matches
from antiphon.core.chunks import FinishReason
from antiphon.core.constraint import JsonObject, JsonSchema
from antiphon.core.events import Event, Finished
from antiphon.core.fold import Fold, Output
from antiphon.core.items import FunctionCall, Status
from antiphon.core.turn import Calling, Turn
from antiphon.run.plan import Held


class Check:
    """Reads along with the events of one generation, and adds to the last what is unmet."""

    def __init__(self, turn: Turn, held: Held) -> None:
        self._turn = turn
        self._held = held
        self._fold = Fold()
        self._raw: list[str] = []

    def seen(self, events: list[Event]) -> list[Event]:
        """The same events, the last one with the verdict."""
        for event in events:
            self._fold.push(event)
            self._raw.append(event.raw)
        if events and isinstance(end := events[-1], Finished) and end.reason is FinishReason.STOP:
            return [*events[:-1], replace(end, unmet=tuple(self._unmet(self._fold.output)))]
        return events

    def _unmet(self, output: Output) -> Iterator[str]:
        calls = [call for call in output.calls if call.status is Status.COMPLETED]
        if self._turn.tool_choice.calling is Calling.REQUIRED and not calls:
            yield "tool_choice: the model called no tool."
        for call in calls:
            yield from self._unmet_by_call(call)
        if self._turn.format is not None and not calls:
            yield from self._unmet_by_text(output.text)

    def _unmet_by_call(self, call: FunctionCall) -> Iterator[str]:
        for tool in self._turn.tools:
            if tool.name == call.name and tool.strict:
                yield from _violations(
                    f"tools: the arguments of '{call.name}'", tool.parameters, call.arguments
                )

    def _unmet_by_text(self, text: str) -> Iterator[str]:
        form = self._turn.format
        language = self._held.enforced.language
        if isinstance(form, JsonSchema):
            yield from _violations("response_format: the answer", form.schema, text)
        elif isinstance(form, JsonObject):
            yield from _violations("response_format: the answer", {"type": "object"}, text)
        elif language is not None and not matches(language, "".join(self._raw)):
            yield "structured_outputs: the answer does not have the form that was asked for."


def _violations(what: str, schema: Mapping[str, Any], text: str) -> Iterator[str]:
    """What is wrong with `text` as JSON of this schema."""
    import jsonschema_rs  # noqa: PLC0415 - only where there is something to check

    try:
        value = json.loads(text)
    except ValueError:
        yield f"{what}: not valid JSON."
        return
    plain = msgspec.to_builtins(schema)
    for error in jsonschema_rs.validator_for(plain).iter_errors(value):
        where = "".join(f"/{step}" for step in error.instance_path)
        yield f"{what}{where and f' at {where}'}: {error.message}."
