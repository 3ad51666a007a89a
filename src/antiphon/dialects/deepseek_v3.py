"""DeepSeek V3, R1 and V3.1: a header and JSON for each call.

V3 and R1-0528 write the type of the call, the name and the arguments in a fence:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
    ```json
    {"city": "Rome"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

V3.1 writes the name and the arguments only:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>
    {"city": "Rome"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

on one line.
"""

from antiphon.core.grammar import Grammar, JsonArguments, Name, Span, SpanKind, State
from antiphon.decode.headers import plain_name, prefixed_name
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TOKENS

_GROUP = {"<｜tool▁calls▁begin｜>": "group", "<｜tool▁call▁begin｜>": "name"}
_ENDS = {"<｜tool▁call▁end｜>": "called", "<｜tool▁calls▁end｜>": "text"}
_STATES: dict[str, State] = {
    "text": Span(SpanKind.TEXT, on=_GROUP),
    "group": Span(
        SpanKind.OPENING,
        on={"<｜tool▁call▁begin｜>": "name", "<｜tool▁calls▁end｜>": "text"},
        otherwise="group",
    ),
    "arguments": JsonArguments(then="called"),
}

DEEPSEEK_V3 = Dialect(
    names=("deepseek_v3", "deepseek-v3", "deepseekv3"),
    calls=Grammar(
        {
            **_STATES,
            "name": Name(
                on={"```json": "arguments", "```": "arguments"},
                peek={"{": "arguments"},
                parse=prefixed_name(r"\s*+\w*+\s*+<｜tool▁sep｜>", "function<｜tool▁sep｜>NAME"),
            ),
            "called": Span(SpanKind.MARKUP, on={"```": "called", **_ENDS, **_GROUP}),
        },
        tokens=("<｜tool▁sep｜>",),
    ),
    reasoning=THINK_TOKENS,
)

DEEPSEEK_V31 = Dialect(
    names=("deepseek_v31", "deepseekv31"),
    calls=Grammar(
        {
            **_STATES,
            "name": Name(
                on={"<｜tool▁sep｜>": "arguments"}, parse=plain_name, habits={"<｜tool▁call▁end｜>": "called"}
            ),
            "called": Span(SpanKind.MARKUP, on={**_ENDS, **_GROUP}),
        }
    ),
    reasoning=THINK_TOKENS,
)
