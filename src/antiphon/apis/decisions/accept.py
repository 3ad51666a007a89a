"""A request for decisions → a `Decision`. Every error names the parameter."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from antiphon.apis.custom_tools import to_arguments
from antiphon.apis.decisions import schema as wire
from antiphon.apis.media import at_url
from antiphon.apis.questions import (
    check,
    check_depth,
    check_name,
    check_size,
    is_empty,
    json_text,
    sampling_of,
)
from antiphon.apis.request_object import RequestObject
from antiphon.apis.responses.tools import flat_name
from antiphon.apis.wire import typed_at
from antiphon.core.decision import Decision, Option, Question, QuestionKind
from antiphon.core.errors import RequestError
from antiphon.core.items import (
    FunctionCall,
    FunctionOutput,
    Item,
    MediaKind,
    Message,
    Part,
    Role,
    TextPart,
)
from antiphon.core.limits import Limits
from antiphon.core.surrogates import with_whole_characters_in

PARAMETERS = dict.fromkeys(("conversation", "max_tokens", "messages", "prompt"), "input")
"""Neutral name → parameter; see `Decision.parameters`."""

TRUTH = (Option(""), Option(""))
"""The options of a predicate: their labels say all of them."""


def accept(request: wire.CreateDecision, limits: Limits, owner: str = "") -> Decision:
    """The request as a decision; its `model` is empty if the request names none. Raises RequestError."""
    check(request)
    limits.check("questions", len(request.questions), "questions")
    reader = _Reader(limits)
    decision = Decision(
        model=request.model or "",
        items=tuple(reader.items(request.input)),
        questions=tuple(reader.question(question, index) for index, question in enumerate(request.questions)),
        orders=request.x_orders,
        sampling=sampling_of(request),
        variables=request.chat_template_kwargs or {},
        media_fallback=request.media_fallback,
        owner=owner,
        parameters=PARAMETERS,
    )
    check_size(decision, limits)
    return decision


class _Reader:
    """Reads the parts of a request, within limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._calls: set[str] = set()

    # The input

    def items(self, given: str | list[dict[str, Any]]) -> Iterator[Item]:
        if isinstance(given, str):
            yield Message(Role.USER, _text(given))
            return
        for index, item in enumerate(given):
            where = f"input[{index}]"
            if item.get("type", "message") == "message":
                yield self._message(typed_at(item, wire.InputMessage, where), where)
            else:
                yield self._call(typed_at(item, wire.InputCall, where), where)

    def _message(self, message: wire.InputMessage, where: str) -> Message:
        parts = self._parts(message.content, f"{where}.content")
        match message:
            case wire.AssistantMessage(phase=phase):
                return Message(Role.ASSISTANT, parts, phase=phase)
            case wire.UserMessage():
                return Message(Role.USER, parts)
            case wire.DeveloperMessage():
                return Message(Role.DEVELOPER, parts)
        return Message(Role.SYSTEM, parts)

    def _call(self, item: wire.InputCall, where: str) -> Item:
        match item:
            case wire.InputFunctionCall(call_id=call_id, arguments=arguments):
                self._calls.add(call_id)
                arguments = with_whole_characters_in(arguments)
                return FunctionCall(call_id, _called(item, where), arguments)
            case wire.InputCustomCall(call_id=call_id, input=text):
                self._calls.add(call_id)
                return FunctionCall(call_id, _called(item, where), to_arguments(text))
        if item.call_id not in self._calls:
            message = f"No tool call found for the output with call_id '{item.call_id[:64]}'."
            raise RequestError(message, param=f"{where}.call_id")
        return FunctionOutput(item.call_id, self._parts(item.output, f"{where}.output"))

    def _parts(self, content: str | Sequence[Any], where: str) -> tuple[Part, ...]:
        if isinstance(content, str):
            return _text(content)
        last = len(content) - 1  # JSON has lines of its own
        return tuple(
            self._part(part, f"{where}[{index}]", first=index == 0, last=index == last)
            for index, part in enumerate(content)
        )

    def _part(self, part: Any, where: str, *, first: bool, last: bool) -> Part:
        match part:
            case wire.InputImage() | wire.QuestionImage():
                holder = RequestObject({"image_url": part.image_url, "detail": part.detail}, where)
                return at_url(MediaKind.IMAGE, holder, where, "image_url")
            case wire.InputJson() | wire.QuestionJson():
                text = self._json(part.data, f"{where}.data")
                return TextPart(("" if first else "\n") + text + ("" if last else "\n"))
            case wire.RefusalText():
                return TextPart(part.refusal)
        return TextPart(part.text)

    def _json(self, data: wire.Data, where: str) -> str:
        """The text of JSON."""
        check_depth(data, where, self._limits)
        self._limits.check("data_values", _values_in(data), where)
        self._limits.check("data_bytes", len(msgspec.json.encode(data)), where)
        return json_text(data)

    # The questions

    def question(self, question: wire.DecisionQuestion, index: int) -> Question:
        where = f"questions[{index}]"
        instructions = self._parts(question.instructions, f"{where}.instructions")
        if not instructions or all(
            isinstance(part, TextPart) and is_empty(part.text) for part in instructions
        ):
            param = f"{where}.instructions"
            raise RequestError(f"'{param}' is empty. Say what the question is.", param=param)
        match question:
            case wire.PredicateQuestion():
                return Question(QuestionKind.PREDICATE, instructions, TRUTH, where)
            case wire.ChoiceQuestion(choices=choices):
                return Question(QuestionKind.CHOICE, instructions, self._choices(choices, where), where)
        return Question(QuestionKind.SCORE, instructions, self._levels(question.levels, where), where)

    def _choices(self, choices: Sequence[wire.ChoiceOption], where: str) -> tuple[Option, ...]:
        self._limits.check("options", len(choices), f"{where}.choices")
        names: set[str] = set()
        options = []
        for index, choice in enumerate(choices):
            param, name = f"{where}.choices[{index}].value", text_of(choice.value)
            check_name(name, param, self._limits)
            if name in names:
                message = f"Two choices read '{name}', which no model can tell apart. Use another name."
                raise RequestError(message, param=param)
            names.add(name)
            options.append(Option(name, choice.description or ""))
        return tuple(options)

    def _levels(self, levels: Sequence[wire.ScoreLevel], where: str) -> tuple[Option, ...]:
        self._limits.check("levels", len(levels), f"{where}.levels")
        for index, level in enumerate(levels):
            check_name(level.label, f"{where}.levels[{index}].label", self._limits)
        return tuple(Option(level.label, level.description or "") for level in levels)


def text_of(value: str | bool) -> str:
    """The value of a choice as the model reads it."""
    if isinstance(value, str):
        return value
    return "true" if value else "false"


def _called(call: wire.InputFunctionCall | wire.InputCustomCall, where: str) -> str:
    if not call.name:
        param = f"{where}.name"
        raise RequestError(f"Invalid value for '{param}': It may not be empty.", param=param)
    return flat_name(call.namespace, call.name)


def _text(text: str) -> tuple[Part, ...]:
    return (TextPart(text),) if text else ()


def _values_in(data: Any) -> int:
    """The number of values in JSON, objects and lists included."""
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return 1 + sum(map(_values_in, inner))
