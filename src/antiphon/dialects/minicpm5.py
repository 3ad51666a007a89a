"""MiniCPM 5: calls as elements with names in attributes, without a tag around them.

    <think>
    I need the weather.
    </think>

    <function name="get_weather"><param name="city">Rome</param></function>

Values are verbatim, in CDATA or not. Some checkpoints write `<functionname=`, or
the vocabulary's characters for space and line break: `<paramĠname="city">NewĠYork`. These
are also letters, so they are replaced in values only where the tag has one. Calls come
after reasoning only. A tag is ordinary text, which answers quote: it is a call only of a
function that the request offers.
"""

from antiphon.core.grammar import AcceptedNames, Grammar, Key, Name, ReasoningMarkers, Span, SpanKind, Value
from antiphon.decode.headers import byte_level_key, quoted_key, quoted_name
from antiphon.dialects.dialect import Dialect

_FUNCTION = {"<function name=": "name", "<functionname=": "name", "<functionĠname=": "name"}
_PARAM = {"<param name=": "key", "<paramname=": "key", "<paramĠname=": "byte_level_key"}
_VALUE = {">": "value", "><![CDATA[": "cdata"}

MINICPM5 = Dialect(
    names=("minicpm5",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on=_FUNCTION),
            "name": Name(on={">": "arguments"}, parse=quoted_name, names=AcceptedNames.DECLARED),
            "arguments": Span(SpanKind.CALL, on={**_PARAM, **_FUNCTION, "</function>": "text"}),
            "key": Key(on=_VALUE, parse=quoted_key),
            "byte_level_key": Key(on=_VALUE, parse=byte_level_key),
            "value": Value(on={"</param>": "arguments"}, habits={"</function>": "text"}),
            "cdata": Value(on={"]]></param>": "arguments"}),
        }
    ),
    reasoning=ReasoningMarkers(opens=("<think>",), closes=("</think>",), calls=False),
)
