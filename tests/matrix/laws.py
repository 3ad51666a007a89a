"""What must hold for every answer of the matrix, judged by the request alone."""

import json
import re
from collections.abc import Iterator
from functools import cache

import jsonschema_rs

from antiphon.core.grammar import Span
from antiphon.dialects.registry import find
from tests.contracts.dialect import TOOLS
from tests.matrix.apis import Answer, Call
from tests.matrix.case import FORMAT_SCHEMA, INPUT, REGEX, RUN, TAG, Case
from tests.matrix.model import known

_FORMAT = jsonschema_rs.validator_for(FORMAT_SCHEMA)
_WORD = re.compile(r"\w{3}")
"""What a marker has that does not occur in ordinary text."""
_FINISHES = ("stop", "tool_calls", "length")


@cache
def _validator(name: str, strict: bool) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(TOOLS[name] | ({"additionalProperties": False} if strict else {}))


def _is_whole(call: Call) -> bool:
    """It is complete. Where the API does not tell, its arguments do."""
    if call.whole is not None:
        return call.whole
    return call.name == RUN or json_value(call.arguments) != call.arguments


def is_valid(call: Call, case: Case) -> bool:
    """The arguments are such as the tool takes."""
    if call.name == RUN:
        return re.fullmatch(INPUT, call.arguments) is not None if case.custom == "regex" else True
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        return False
    return call.name in TOOLS and _validator(call.name, bool(case.strict)).is_valid(arguments)


def has_format(text: str, case: Case) -> bool:
    """The visible text has the form that is asked for."""
    match case.format:
        case "regex" | "grammar":
            return re.fullmatch(REGEX, text) is not None
        case "structural tag":
            inner = text.removeprefix(TAG["format"]["begin"]).removesuffix(TAG["format"]["end"])
            return len(inner) < len(text) and _is_json(inner, schema=True)
        case "schema" | "object":
            return _is_json(text, schema=case.format == "schema")
    return True


def _is_json(text: str, *, schema: bool) -> bool:
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return _FORMAT.is_valid(value) if schema else isinstance(value, dict)


def faults(answer: Answer, case: Case) -> Iterator[str]:
    """What is wrong with an answer."""
    yield from _leaks(answer.text, case)
    names = [call.name for call in answer.calls]
    if answer.finish not in _FINISHES:
        yield f"it finished with {answer.finish!r}"
    if answer.finish == "tool_calls" and not names:
        yield "it finished with calls that it has not"
    if case.offers or case.obeys or not find(case.dialect).grammar.has_message_headers:
        # A message to a function is a call in these dialects, though none was offered.
        if len(names) > case.most:
            yield f"it has {len(names)} calls, not at most {case.most}"
        if case.names is not None and not case.names.issuperset(names):
            yield f"it calls {names}, not only {sorted(case.names)}"
    if answer.finish == "length" and case.limit is None:
        yield "it was cut by nothing"
    if answer.closed and (answer.finish != "length" or not case.limit):
        yield f"it was closed, and finished with {answer.finish!r}"
    yield from _end(answer, case)


def _end(answer: Answer, case: Case) -> Iterator[str]:
    """What is wrong with the end of an answer."""
    if case.stop == "e":
        return
    if answer.finish == "length":
        if _is_held(answer, case):
            yield from _demands(answer, case)
        return
    if answer.calls and answer.finish != "tool_calls":
        yield f"it calls tools, and finished with {answer.finish!r}"
    yield from _demands(answer, case)


def _is_held(answer: Answer, case: Case) -> bool:
    """The answer is in the demanded form though it was cut: it was closed, or held to the form until then."""
    return answer.closed or (case.demands and case.obeys and case.engine == "enforces")


def _leaks(text: str, case: Case) -> Iterator[str]:
    """Nothing of the format is shown. Where no call is allowed one may be text, but without special tokens."""
    grammar = find(case.dialect).grammar
    hidden = frozenset[str]()  # a call that is broken, and allowed, is text
    if case.obeys:
        hidden = frozenset(filter(_WORD.search, grammar.markers))
    elif case.names == frozenset():
        hidden = grammar.special_tokens
    shown = [marker for marker in sorted(hidden) if marker in text]
    if shown and not _thinks_aloud(case):
        yield f"it shows {shown} in {text!r}"


def _demands(answer: Answer, case: Case) -> Iterator[str]:
    """Demands are met, or the answer says that they are not; it says so of no demand that is met."""
    whole = [call for call in answer.calls if _is_whole(call)]
    no_call = case.must and not whole
    broken = [f"{call.name}({call.arguments})" for call in whole if not _is_met(call, case)]
    if not whole and not has_format(answer.text, case):  # a call that is broken is no answer
        broken.append(f"the form of {answer.text!r}")
    if case.obeys and no_call and not lacks_calls(case):
        yield "the model obeyed, but calls nothing"
    if case.obeys and broken and not _thinks_aloud(case):
        yield f"the model obeyed, but there is {broken}"
    if case.engine == "enforces" and not (case.must and lacks_calls(case)):
        if answer.unmet:
            yield f"unmet is {answer.unmet} where the engine enforces"
    elif bool(answer.unmet) != (no_call or bool(broken)):
        yield f"unmet is {answer.unmet}, not {broken or no_call}"


def _is_met(call: Call, case: Case) -> bool:
    """The demand on its arguments; a call that is forced has valid ones, strict or not, if the model obeys.

    Nothing is demanded of the arguments of a function that was not offered.
    """
    bound = (case.strict and call.name in TOOLS) or call.name == RUN or (case.must and case.obeys)
    return not bound or is_valid(call, case)


def lacks_calls(case: Case) -> bool:
    """The dialect has no calls, so none can be enforced."""
    grammar = find(case.dialect).grammar
    return grammar.states.keys() == grammar.without_calls().states.keys()


def _thinks_aloud(case: Case) -> bool:
    """The thoughts of the dialect are text, so an answer with thoughts never has the form."""
    return any(
        isinstance(state, Span) and state.entry_text for state in find(case.dialect).grammar.states.values()
    )


def unlike_known(answer: Answer, case: Case) -> Iterator[str]:
    """A text of tests/cases says what it says there, but for the calls that are not to be shown."""
    found = None if case.obeys else known(case)
    if found is None or case.cut or case.reasoning or not case.offers or case.choice == "none":
        return
    items = found["items"]
    made = [item for item in items if "call" in item]
    kept = [item for item in made if case.names is None or item["call"] in case.names][: case.most]
    wanted = [(item["call"], json.loads(item["arguments"])) for item in kept if "status" not in item]
    got = [(call.name, json_value(call.arguments)) for call in answer.calls if _is_whole(call)]
    told = all(call.whole is not None for call in answer.calls) or not any("status" in item for item in kept)
    if got != wanted and (told or len(got) < len(wanted)):
        yield f"its calls are {got}, not {wanted}"
    if kept == made and len(kept) < case.most:
        text = [item["text"] for item in items if "text" in item]
        if answer.text.split() != " ".join(text).split():
            yield f"its text is {answer.text!r}, not {text}"


def json_value(text: str) -> object:
    """The value of a JSON text; what is none stays as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text
