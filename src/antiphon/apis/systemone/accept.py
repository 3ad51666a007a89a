"""A request to System One → a `Decision`. Every error names the parameter."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from antiphon.apis.chat.history import History
from antiphon.apis.chat.schema import RequestMessage
from antiphon.apis.questions import (
    check,
    check_depth,
    check_name,
    check_size,
    is_empty,
    json_text,
    sampling_of,
)
from antiphon.apis.systemone import schema as wire
from antiphon.apis.systemone.assets import Assets, Uploads, listed
from antiphon.apis.wire import typed_at
from antiphon.core.decision import Decision, Option, Question, QuestionKind
from antiphon.core.errors import RequestError
from antiphon.core.items import WITH_PARTS, Attachment, Item, MediaKind, Message, Part, Role, TextPart
from antiphon.core.limits import Limits

PARAMETERS = dict.fromkeys(("conversation", "max_tokens", "messages", "prompt"), "state")
"""Neutral name → parameter; see `Decision.parameters`."""

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_NO_UPLOADS: Uploads = MappingProxyType({})


def accept(
    request: wire.SystemOneRequest, limits: Limits, owner: str = "", uploads: Uploads = _NO_UPLOADS
) -> Decision:
    """The request as a decision; its `model` is empty if the request names none.

    `uploads` are the parts of its form. Raises RequestError.
    """
    check(request)
    limits.check("questions", len(request.questions), "questions")
    limits.check("attachments", len(request.assets or ()), "assets")
    reader = _Reader(limits, Assets(request.assets or {}, uploads))
    decision = Decision(
        model=request.model or "",
        items=tuple(reader.items(request)),
        questions=tuple(reader.question(*named) for named in request.questions.items()),
        orders=request.x_orders,
        sampling=sampling_of(request),
        variables=request.chat_template_kwargs or {},
        media_fallback=request.media_fallback,
        owner=owner,
        parameters=PARAMETERS,
    )
    reader.assets.check_used()
    check_size(decision, limits)
    return decision


def question_at(id_: str, given: Any) -> wire.SystemOneQuestion:
    """A question of a request. Raises RequestError."""
    where = f"questions.{id_}"
    if not isinstance(given, dict):
        raise RequestError(f"Invalid value for '{where}': Expected an object.", param=where)
    question: wire.SystemOneQuestion = typed_at(given, wire.SystemOneQuestion, where)
    return question


class _Reader:
    """Reads the parts of a request, within limits."""

    def __init__(self, limits: Limits, assets: Assets) -> None:
        self._limits = limits
        self.assets = assets

    # The state

    def items(self, request: wire.SystemOneRequest) -> Iterator[Item]:
        if request.instructions:
            yield Message(Role.SYSTEM, (TextPart(request.instructions),))
        media = listed(request.images, MediaKind.IMAGE, "images")
        media += listed(request.videos, MediaKind.VIDEO, "videos")
        if _is_conversation(request.state):
            if media:
                yield Message(Role.USER, media)
            yield from self._conversation(request.state)
        else:
            yield Message(Role.USER, (*media, *self._content(request.state, "state")))

    def _conversation(self, state: Any) -> Iterator[Item]:
        check_depth(state, "state", self._limits)
        messages = [
            typed_at(message, RequestMessage, f"state[{index}]") for index, message in enumerate(state)
        ]
        for item in History(messages, "state").items:
            if isinstance(item, WITH_PARTS):
                yield replace(item, parts=tuple(self._with_images(item.parts)))
            else:
                yield item

    def _with_images(self, parts: Sequence[Part]) -> Iterator[Part]:
        for part in parts:
            if isinstance(part, TextPart):
                yield from self.assets.parts(part.text)
            else:
                yield part

    def _content(self, content: wire.Content, where: str) -> tuple[Part, ...]:
        if isinstance(content, str):
            return self.assets.parts(content)
        check_depth(content, where, self._limits)
        return self.assets.parts(json_text(content), json=True)

    # The questions

    def question(self, id_: str, given: Any) -> Question:
        where = f"questions.{id_}"
        if not id_:
            raise RequestError("The id of a question may not be empty.", param="questions")
        self._limits.check("name_characters", len(id_), "questions")
        names: dict[Attachment, str] = {}
        match question_at(id_, given):
            case wire.NoulQuestion() as noul:
                kind, options = QuestionKind.PREDICATE, self._sides(noul, where, names)
                instructions = noul.instructions
            case wire.OptionQuestion(instructions=instructions, criteria=criteria):
                kind, options = QuestionKind.CHOICE, self._options(criteria, where, names)
            case wire.LevelQuestion(instructions=instructions, criteria=levels):
                kind, options = QuestionKind.SCORE, self._levels(levels, where, names)
            case wire.BoxQuestion():
                message = (
                    "Questions of the type 'box' are not supported: no model here finds places in images."
                )
                raise RequestError(f"{message} Ask a choice instead.", param=f"{where}.type")
        parts = self._instructions(instructions, f"{where}.instructions")
        return Question(kind, (*parts, *_legend(names)), options, where)

    def _instructions(self, content: wire.Content | None, where: str) -> tuple[Part, ...]:
        if content is None:  # of a noul with criteria
            return ()
        if is_empty(content):
            raise RequestError(f"'{where}' is empty. Say what the question is.", param=where)
        return self._content(content, where)

    def _sides(self, noul: wire.NoulQuestion, where: str, names: dict[Attachment, str]) -> tuple[Option, ...]:
        criteria = noul.criteria or wire.NoulCriteria()
        if noul.instructions is None and is_empty(criteria.yes) and is_empty(criteria.no):
            param = f"{where}.instructions"
            message = f"Missing required parameter: '{param}'. A noul needs instructions or criteria."
            raise RequestError(message, param=param, code="missing_required_parameter")
        return (
            Option("", self._meaning(criteria.yes, f"{where}.criteria.true", names)),
            Option("", self._meaning(criteria.no, f"{where}.criteria.false", names)),
        )

    def _options(
        self, criteria: Mapping[str, wire.Content | None], where: str, names: dict[Attachment, str]
    ) -> tuple[Option, ...]:
        self._limits.check("options", len(criteria), f"{where}.criteria")
        options = []
        for name, meaning in criteria.items():
            check_name(name, f"{where}.criteria", self._limits)
            options.append(Option(name, self._meaning(meaning, f"{where}.criteria.{name}", names)))
        return tuple(options)

    def _levels(
        self, levels: Sequence[wire.Content], where: str, names: dict[Attachment, str]
    ) -> tuple[Option, ...]:
        self._limits.check("levels", len(levels), f"{where}.criteria")
        options = []
        for index, level in enumerate(levels):
            param = f"{where}.criteria[{index}]"
            if is_empty(level):
                raise RequestError(f"'{param}' is empty. Say what the level means.", param=param)
            options.append(Option(self._meaning(level, param, names)))
        return tuple(options)

    def _meaning(self, content: wire.Content | None, where: str, names: dict[Attachment, str]) -> str:
        """What an option means, as text."""
        if content is None or isinstance(content, str):
            return self.assets.named(content or "", names)
        check_depth(content, where, self._limits)
        return self.assets.named(json_text(content), names, json=True) if content else ""


def _legend(names: Mapping[Attachment, str]) -> Iterator[Part]:
    """The images that the meanings of options name."""
    for image, name in names.items():
        yield TextPart(f"\n{name}: ")
        yield image


def _is_conversation(state: Any) -> bool:
    """Whether a state is a list of messages, as Chat Completions has them, and no other data."""
    fields = {*RequestMessage.__struct_fields__}
    return (
        isinstance(state, list)
        and bool(state)
        and all(
            isinstance(message, dict)
            and message.get("role") in _ROLES
            and ("content" in message or "tool_calls" in message)
            and fields.issuperset(message)
            for message in state
        )
    )
