"""Determines the features of a chat template, by rendering small conversations with it.

The name of a model is not considered, so templates that are edited or new work, too. Each probe contains
unique words, and checks whether they are rendered. This takes some dozens of short renderings, once, when a
model is loaded. A template that renders nothing of a plain conversation in any form is treated as supporting
everything: its own error is then the best message for a client.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Protocol

from msgspec.structs import replace

from antiphon.core.errors import EngineError, RequestError
from antiphon.core.items import MediaKind
from antiphon.render.capabilities import ArgumentFormat, TemplateCapabilities
from antiphon.render.efforts import nearest_efforts
from antiphon.render.media import placeholder_in
from antiphon.render.messages import REASONING_KEYS, TemplateMessage

Messages = Sequence[TemplateMessage]

MOST_MARKERS = 256
"""The most different markers of turns that a template may write: ten times as many as any known one does."""


class RenderProbe(Protocol):
    """Renders messages and tools, in the form for `capabilities`, or raises `RequestError`."""

    def __call__(
        self,
        messages: Messages,
        tools: Sequence[Any],
        capabilities: TemplateCapabilities,
        more: Mapping[str, Any] = ...,
        /,
    ) -> str:
        """The prompt."""
        ...


SYSTEM, LATER, USER, USER_2 = "maple brook", "copper vale", "linden hill", "amber shore"
ANSWER, REASONING, RESULT, RESULT_2 = "silver reed", "violet marsh", "walnut ridge", "cedar falls"
TOOL, TOOL_2, KEY, VALUE, VALUE_2 = "count_otters", "count_herons", "river_name", "Zambezi", "Orinoco"
ID, ID_2 = "call_0123456789abcdef", "call_fedcba9876543210"


def _message(role: str, content: str) -> TemplateMessage:
    return {"role": role, "content": content}


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(call_id: str, name: str, content: str) -> TemplateMessage:
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": content}


def _tool(name: str) -> dict[str, Any]:
    properties = {KEY: {"type": "string", "description": "Which river."}}
    parameters = {"type": "object", "properties": properties, "required": [KEY]}
    described = {"name": name, "description": "Counts animals.", "parameters": parameters}
    return {"type": "function", "function": described}


_TOOLS = [_tool(TOOL), _tool(TOOL_2)]
_system, _user, _user_2 = _message("system", SYSTEM), _message("user", USER), _message("user", USER_2)
_later, _answer, _empty_answer = (
    _message("system", LATER),
    _message("assistant", ANSWER),
    _message("assistant", ""),
)
_with_reasoning = dict.fromkeys(REASONING_KEYS, REASONING)
_call_1 = _call(ID, TOOL, json.dumps({KEY: VALUE}))
_call_2 = _call(ID_2, TOOL_2, json.dumps({KEY: VALUE_2}))
_with_call = _empty_answer | {"tool_calls": [_call_1]}
_with_two_calls = _empty_answer | {"tool_calls": [_call_1, _call_2]}
_with_invalid_call = _empty_answer | {"tool_calls": [_call(ID, TOOL, VALUE)]}
_result_1, _result_2 = _result(ID, TOOL, RESULT), _result(ID_2, TOOL_2, RESULT_2)


def probe_capabilities(render: RenderProbe, content_parts: bool | None = None) -> TemplateCapabilities:
    """The features that the template of `render` supports. Never raises.

    `content_parts` says whether contents are lists of parts; None: what the template needs.
    """
    forms = [form for form in _plain_forms() if content_parts in (None, form.content_parts)]
    capabilities = next((form for form in forms if _Probe(render, form).shows([_user], USER)), None)
    if capabilities is None:
        return TemplateCapabilities(content_parts=bool(content_parts))
    for find in (_assistant, _roles, _tools_and_calls, _reasoning, _efforts, _media):
        capabilities = find(_Probe(render, capabilities), capabilities)
    return replace(capabilities, media={}) if content_parts is False else capabilities


class _Probe:
    """Renders messages in one form, and checks the output."""

    def __init__(self, render: RenderProbe, form: TemplateCapabilities) -> None:
        self._render = render
        self.form = form

    def text(self, messages: Messages, tools: Sequence[Any] = ()) -> str:
        """The output, or "" if the template raises or fails."""
        try:
            return self._render(messages, tools, self.form)
        except RequestError:
            return ""

    def shows_with(self, variables: Mapping[str, Any], messages: Messages, mark: str) -> bool:
        """Whether the mark is rendered with these template variables."""
        try:
            return mark in self._render(messages, (), self.form, {"add_generation_prompt": True, **variables})
        except RequestError:
            return False

    def with_variables(self, variables: Mapping[str, Any]) -> str:
        """The output for one message with these template variables. Raises `RequestError`."""
        return self._render([_user], (), self.form, {"add_generation_prompt": True, **variables})

    def shows(self, messages: Messages, *marks: str, tools: Sequence[Any] = ()) -> bool:
        """Whether all marks are rendered, in any order."""
        text = self.text(messages, tools)
        return all(mark in text for mark in marks)

    def keeps(self, messages: Messages) -> bool:
        """Whether the contents of all messages are rendered, in order."""
        at, text = 0, self.text(messages)
        for message in messages:
            at = text.find(message["content"], at)
            if at < 0:
                return False
        return True

    def with_form(self, form: TemplateCapabilities) -> "_Probe":
        """The same template with another form."""
        return _Probe(self._render, form)


def _plain_forms() -> Iterator[TemplateCapabilities]:
    for parts, undefined in product((False, True), repeat=2):
        yield TemplateCapabilities(content_parts=parts, tools_undefined=undefined)


def _assistant(probe: _Probe, capabilities: TemplateCapabilities) -> TemplateCapabilities:
    talk = [_user, _answer, _user_2]
    if not probe.keeps(talk):
        form = replace(capabilities, reasoning_required=True)
        capabilities = form if probe.with_form(form).keeps(talk) else capabilities
    silent = [_user, _empty_answer, _user_2]
    return replace(capabilities, content_required=not probe.with_form(capabilities).keeps(silent))


def _roles(probe: _Probe, capabilities: TemplateCapabilities) -> TemplateCapabilities:
    takes_system = probe.keeps([_system, _user])
    takes_later = [[_system, _later, _user], [_system, _user, _answer, _later, _user_2]]
    repeats = [[_user, _user_2], [_user, _answer, _message("assistant", LATER), _user_2]]
    starts = [[_answer, _user], *([[_system]] if takes_system else [])]
    return replace(
        capabilities,
        system=takes_system,
        later_system=all(map(probe.keeps, takes_later)),
        developer=_knows_developer(probe),
        alternating_roles=not all(map(probe.keeps, repeats)),
        user_first=not all(map(probe.keeps, starts)),
    )


def _knows_developer(probe: _Probe) -> bool:
    """Whether the role is known. Many templates print any role by its name."""
    developer = _message("developer", LATER)
    as_developer = probe.text([developer, _user])
    as_stranger = probe.text([_message("stranger", LATER), _user])
    if LATER not in as_developer or as_developer.replace("developer", "stranger") == as_stranger:
        return False
    talks = [[_system, developer, _user], [_user, _answer, developer, _user_2]]
    return all(map(probe.keeps, talks))


def _tools_and_calls(probe: _Probe, capabilities: TemplateCapabilities) -> TemplateCapabilities:
    shows_tools = any(probe.shows(talk, TOOL, tools=_TOOLS) for talk in ([_user], [_system, _user]))
    capabilities = replace(capabilities, tools=shows_tools)
    form = next((form for form in _call_forms(capabilities) if _shows_call(probe.with_form(form))), None)
    if form is None:
        return replace(capabilities, calls=False, results=False)
    probe = probe.with_form(form)
    parallel = [_user, _with_two_calls, _result_1, _result_2]
    called = _with_call | {"content": ANSWER}
    talks = [[_user, answer, _result_1] for answer in (called, called | _with_reasoning)]
    return replace(
        form,
        results=probe.shows([_user, _with_call, _result_1], RESULT, tools=_TOOLS),
        parallel_calls=probe.shows(parallel, VALUE, VALUE_2, tools=_TOOLS),
        text_with_calls=all(probe.shows(talk, ANSWER, VALUE, tools=_TOOLS) for talk in talks),
        arguments=_argument_format(probe, form.arguments),
        answer_after_results=_needs_answer_after_results(probe),
    )


def _call_forms(capabilities: TemplateCapabilities) -> Iterator[TemplateCapabilities]:
    """Forms of a call, the best first."""
    for arguments, null, short in product(
        (ArgumentFormat.OBJECT, ArgumentFormat.TEXT), (False, True), (False, True)
    ):
        yield replace(capabilities, arguments=arguments, null_content=null, short_ids=short)


def _shows_call(probe: _Probe) -> bool:
    """Whether a call is rendered whole, and its arguments not as a Python dict."""
    talk = [_user, _with_call, _result_1]
    text = probe.text(talk, _TOOLS) or probe.text(talk[:2], _TOOLS)
    return VALUE in text and f"'{KEY}': '{VALUE}'" not in text


def _argument_format(probe: _Probe, arguments: ArgumentFormat) -> ArgumentFormat:
    if arguments is ArgumentFormat.TEXT:
        return arguments
    # With ANY, arguments that do not parse are passed as text.
    talk = [_user, _with_invalid_call, _result_1]
    takes_text = probe.with_form(replace(probe.form, arguments=ArgumentFormat.ANY)).shows(
        talk, VALUE, tools=_TOOLS
    )
    return ArgumentFormat.ANY if takes_text else ArgumentFormat.OBJECT


def _needs_answer_after_results(probe: _Probe) -> bool:
    talk = [_user, _with_call, _result_1]
    asked, closed = [*talk, _user_2], [*talk, _empty_answer, _user_2]
    fails = not probe.shows(asked, USER_2, tools=_TOOLS)
    return fails and probe.shows(closed, USER_2, tools=_TOOLS)


def _reasoning(probe: _Probe, capabilities: TemplateCapabilities) -> TemplateCapabilities:
    talks = [[_user, _answer | _with_reasoning], [_user, _with_call | _with_reasoning, _result_1]]
    earlier = [_user, _answer | _with_reasoning, _user_2]
    kept = next((keep for keep in _KEEPING if probe.shows_with(keep, earlier, REASONING)), None)
    shown = any(probe.shows(talk, REASONING) for talk in talks)
    return replace(capabilities, reasoning=shown, kept_reasoning=kept)


_KEEPING: Sequence[Mapping[str, Any]] = (
    {},
    {"preserve_thinking": True},
    {"clear_thinking": False},
    {"truncate_history_thinking": False},
    {"keep_all_reasoning": True},
    {"drop_thinking": False},
)
"""The variables by which templates keep the reasoning of earlier turns."""


def _efforts(probe: _Probe, capabilities: TemplateCapabilities) -> TemplateCapabilities:
    return replace(capabilities, efforts=nearest_efforts(probe.with_variables))


_CONTENTS = re.compile("|".join((SYSTEM, USER, USER_2, ANSWER, RESULT, REASONING)))
_MARKER = re.compile(r"<[^<>\s]{1,64}>|\[[^\[\]\s]{1,64}\]|\]~[^\s\[\]]{1,64}[\[\]]")
_TOOL_MARKER = re.compile(r"\[/?[A-Z_]{2,64}\]")
_OF_REASONING = re.compile("think|thought|reason", re.IGNORECASE)


def turn_markers(render: RenderProbe, capabilities: TemplateCapabilities) -> frozenset[str]:
    """What looks like a marker in the texts that are written between messages: `[INST]`, `<end_of_turn>`.

    Markers of reasoning are left out. Around tools only markers in capitals count: tags there are words of
    the prompt. Raises EngineError if there are too many to be markers.
    """
    probe = _Probe(render, capabilities)
    talk = [_user, _answer, _user_2]
    frames = [_CONTENTS.sub("\n", probe.text(messages)) for messages in ([_user], [_system, *talk], talk)]
    tools = probe.text([_user, _with_call, _result_1], _TOOLS)
    markers = {*_TOOL_MARKER.findall(tools)}.union(*map(_MARKER.findall, frames))
    if len(markers) > MOST_MARKERS:
        message = f"The chat template writes more than {MOST_MARKERS} different markers around messages."
        raise EngineError(message)
    return frozenset(marker for marker in markers if not _OF_REASONING.search(marker))


_MEDIA = (MediaKind.IMAGE, MediaKind.AUDIO, MediaKind.VIDEO)


def _media(probe: _Probe, capabilities: TemplateCapabilities) -> TemplateCapabilities:
    """The placeholders of media that are parts of a content, and whether results may have such."""
    plain = probe.with_form(replace(capabilities, content_parts=False))  # lists are passed unchanged
    placeholders = ((kind, _placeholder(plain, kind)) for kind in _MEDIA)
    media = {kind: placeholder for kind, placeholder in placeholders if placeholder}
    if not media:
        return capabilities
    kind, placeholder = next(iter(media.items()))
    content = [{"type": "text", "text": RESULT}, {"type": kind.value}]
    talk = [_user, _with_call, {**_result_1, "content": content}]
    return replace(
        capabilities, media=media, media_in_results=plain.shows(talk, RESULT, placeholder, tools=_TOOLS)
    )


def _placeholder(probe: _Probe, kind: MediaKind) -> str | None:
    """The text for one such part, and for each of two."""
    part = {"type": kind.value}
    none, one, two = (probe.text([_with_parts(*parts)]) for parts in ((), (part,), (part, part)))
    if USER not in one or USER not in two:
        return None
    return placeholder_in(none, one, two)


def _with_parts(*parts: dict[str, Any]) -> TemplateMessage:
    content = [{"type": "text", "text": USER}, *parts, {"type": "text", "text": USER_2}]
    return {"role": "user", "content": content}
