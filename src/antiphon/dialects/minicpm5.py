"""MiniCPM 5: calls as elements with names in attributes, without a tag around them.

    <think>
    I need the weather.
    </think>

    <function name="get_weather"><param name="city">Rome</param></function>

Values are verbatim, in CDATA or not. Some checkpoints write `<functionname=`, or
the vocabulary's signs for space and line break: `<paramĠname="city">NewĠYork`. These
are letters, too, so they are mended in values only where the tag has one.
"""

from antiphon.core.grammar import Grammar, Key, Kind, Name, Span, Value
from antiphon.decode.headers import quoted, quoted_key, signed_key
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import TAGS

_FUNCTION = {"<function name=": "name", "<functionname=": "name", "<functionĠname=": "name"}
_PARAM = {"<param name=": "key", "<paramname=": "key", "<paramĠname=": "signed_key"}
_VALUE = {">": "value", "><![CDATA[": "cdata"}

MINICPM5 = Dialect(
    names=("minicpm5",),
    calls=Grammar(
        {
            "text": Span(Kind.TEXT, on=_FUNCTION),
            "name": Name(on={">": "arguments"}, form=quoted),
            "arguments": Span(Kind.CALL, on={**_PARAM, **_FUNCTION, "</function>": "text"}),
            "key": Key(on=_VALUE, form=quoted_key),
            "signed_key": Key(on=_VALUE, form=signed_key),
            "value": Value(on={"</param>": "arguments"}),
            "cdata": Value(on={"]]></param>": "arguments"}),
        }
    ),
    thoughts=TAGS,
)
