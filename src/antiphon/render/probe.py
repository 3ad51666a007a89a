"""Finds out what a chat template can do, by rendering small conversations with it.

Models are never told apart by name: a template that has been edited, or that
nobody has seen before, is judged by what it does. Each probe says something
unmistakable and looks whether it comes out. This costs some dozens of short
renderings, once, when a model is loaded.

A template that shows nothing of a plain conversation, whatever its form, is
taken to be able to do everything: what it says when it fails is then the best
message that a client can get.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Protocol

from msgspec.structs import replace

from antiphon.core.errors import RequestError
from antiphon.render.messages import THOUGHT_NAMES, TemplateMessage
from antiphon.render.traits import Arguments, Traits

Messages = Sequence[TemplateMessage]


class RenderProbe(Protocol):
    """Renders messages and tools, in the form that `traits` says, or raises `RequestError`."""

    def __call__(self, messages: Messages, tools: Sequence[Any], traits: Traits, /) -> str:
        """The prompt."""
        ...


SYSTEM, LATER, USER, USER_2, SAID = "maple brook", "copper vale", "linden hill", "amber shore", "silver reed"
THOUGHT, RESULT, RESULT_2 = "violet marsh", "walnut ridge", "cedar falls"
TOOL, TOOL_2, KEY, VALUE, VALUE_2 = "count_otters", "count_herons", "river_name", "Zambezi", "Orinoco"
ID, ID_2 = "call_0123456789abcdef", "call_fedcba9876543210"


def _say(role: str, content: str) -> TemplateMessage:
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
_system, _user, _user_2 = _say("system", SYSTEM), _say("user", USER), _say("user", USER_2)
_later, _answer, _nothing = _say("system", LATER), _say("assistant", SAID), _say("assistant", "")
_thought = dict.fromkeys(THOUGHT_NAMES, THOUGHT)
_otters = _call(ID, TOOL, json.dumps({KEY: VALUE}))
_herons = _call(ID_2, TOOL_2, json.dumps({KEY: VALUE_2}))
_called = _nothing | {"tool_calls": [_otters]}
_called_both = _nothing | {"tool_calls": [_otters, _herons]}
_called_badly = _nothing | {"tool_calls": [_call(ID, TOOL, VALUE)]}
_returned, _returned_2 = _result(ID, TOOL, RESULT), _result(ID_2, TOOL_2, RESULT_2)


def find_traits(render: RenderProbe) -> Traits:
    """What the template behind `render` can do. Never fails."""
    traits = next((form for form in _plain_forms() if _Probe(render, form).shows([_user], USER)), None)
    if traits is None:
        return Traits()
    for find in (_answers, _roles, _tools_and_calls, _reasoning):
        traits = find(_Probe(render, traits), traits)
    return traits


class _Probe:
    """Looks at what a template makes of messages in one form."""

    def __init__(self, render: RenderProbe, form: Traits) -> None:
        self._render = render
        self.form = form

    def text(self, messages: Messages, tools: Sequence[Any] = ()) -> str:
        """What comes out, or "" if the template refuses or fails: both tell the same here."""
        try:
            return self._render(messages, tools, self.form)
        except RequestError:
            return ""

    def shows(self, messages: Messages, *marks: str, tools: Sequence[Any] = ()) -> bool:
        """Whether all marks come out, in any order."""
        text = self.text(messages, tools)
        return all(mark in text for mark in marks)

    def keeps(self, messages: Messages) -> bool:
        """Whether all that is said comes out, in order."""
        at, text = 0, self.text(messages)
        for message in messages:
            at = text.find(message["content"], at)
            if at < 0:
                return False
        return True

    def with_form(self, form: Traits) -> "_Probe":
        """The same template, given another form."""
        return _Probe(self._render, form)


def _plain_forms() -> Iterator[Traits]:
    for parts, absent in product((False, True), repeat=2):
        yield Traits(parts=parts, tools_absent=absent)


def _answers(probe: _Probe, traits: Traits) -> Traits:
    talk = [_user, _answer, _user_2]
    if not probe.keeps(talk):
        form = replace(traits, thoughtful=True)
        traits = form if probe.with_form(form).keeps(talk) else traits
    silent = [_user, _nothing, _user_2]
    return replace(traits, filled=not probe.with_form(traits).keeps(silent))


def _roles(probe: _Probe, traits: Traits) -> Traits:
    takes_system = probe.keeps([_system, _user])
    takes_later = [[_system, _later, _user], [_system, _user, _answer, _later, _user_2]]
    repeats = [[_user, _user_2], [_user, _answer, _say("assistant", LATER), _user_2]]
    starts = [[_answer, _user], *([[_system]] if takes_system else [])]
    return replace(
        traits,
        system=takes_system,
        later_system=all(map(probe.keeps, takes_later)),
        developer=_knows_developer(probe),
        merged=not all(map(probe.keeps, repeats)),
        user_first=not all(map(probe.keeps, starts)),
    )


def _knows_developer(probe: _Probe) -> bool:
    """Many templates print any role by its name. What their models make of it is anyone's guess."""
    developer = _say("developer", LATER)
    known, stranger = probe.text([developer, _user]), probe.text([_say("stranger", LATER), _user])
    if LATER not in known or known.replace("developer", "stranger") == stranger:
        return False
    talks = [[_system, developer, _user], [_user, _answer, developer, _user_2]]
    return all(map(probe.keeps, talks))


def _tools_and_calls(probe: _Probe, traits: Traits) -> Traits:
    shown = any(probe.shows(talk, TOOL, tools=_TOOLS) for talk in ([_user], [_system, _user]))
    traits = replace(traits, tools=shown)
    form = next((form for form in _call_forms(traits) if _shows_call(probe.with_form(form))), None)
    if form is None:
        return replace(traits, calls=False, results=False)
    probe = probe.with_form(form)
    both = [_user, _called_both, _returned, _returned_2]
    called = _called | {"content": SAID}
    talks = [[_user, said, _returned] for said in (called, called | _thought)]
    return replace(
        form,
        results=probe.shows([_user, _called, _returned], RESULT, tools=_TOOLS),
        parallel=probe.shows(both, VALUE, VALUE_2, tools=_TOOLS),
        text_with_calls=all(probe.shows(talk, SAID, VALUE, tools=_TOOLS) for talk in talks),
        arguments=_lenient(probe, form.arguments),
        closed_results=_wants_closed_results(probe),
    )


def _call_forms(traits: Traits) -> Iterator[Traits]:
    """Ways to write a call down, best first."""
    for arguments, null, short in product((Arguments.OBJECT, Arguments.TEXT), (False, True), (False, True)):
        yield replace(traits, arguments=arguments, null_content=null, short_ids=short)


def _shows_call(probe: _Probe) -> bool:
    """Whether a call comes out whole, and not as Python would print it."""
    talk = [_user, _called, _returned]
    text = probe.text(talk, _TOOLS) or probe.text(talk[:2], _TOOLS)
    return VALUE in text and f"'{KEY}': '{VALUE}'" not in text


def _lenient(probe: _Probe, arguments: Arguments) -> Arguments:
    if arguments is Arguments.TEXT:
        return arguments
    # As a form, ANY gives text that is no object as it is.
    talk = [_user, _called_badly, _returned]
    takes_text = probe.with_form(replace(probe.form, arguments=Arguments.ANY)).shows(
        talk, VALUE, tools=_TOOLS
    )
    return Arguments.ANY if takes_text else Arguments.OBJECT


def _wants_closed_results(probe: _Probe) -> bool:
    talk = [_user, _called, _returned]
    asked, closed = [*talk, _user_2], [*talk, _nothing, _user_2]
    fails = not probe.shows(asked, USER_2, tools=_TOOLS)
    return fails and probe.shows(closed, USER_2, tools=_TOOLS)


def _reasoning(probe: _Probe, traits: Traits) -> Traits:
    talks = [[_user, _answer | _thought], [_user, _called | _thought, _returned]]
    return replace(traits, reasoning=any(probe.shows(talk, THOUGHT) for talk in talks))
