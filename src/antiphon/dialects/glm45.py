"""Calls as a name, keys and values: GLM 4.5 to 5, Ling 3, Poolside.

    <think>I need the weather.</think>
    <tool_call>get_weather
    <arg_key>city</arg_key>
    <arg_value>Rome</arg_value>
    </tool_call>

One block per call; GLM 4.7 writes it without line breaks. Values are verbatim. Models leave out
`<arg_value>`, or the `<arg_key>` after the name; they write `<tool_call>` for `<arg_key>`, or `</arg_value>`
after a name without arguments.
"""

from antiphon.core.grammar import Grammar, Habits, Key, Lookahead, Name, Span, SpanKind, Value, unclosed
from antiphon.decode.headers import innermost_key, plain_name
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TOKENS

GLM45 = Dialect(
    names=("glm45", "glm47", "glm", "ling3", "poolside_v1", "spark25", "spark3"),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on={"<tool_call>": "name"}),
            "name": Name(
                on={"<arg_key>": "key", "</tool_call>": "text"},
                parse=plain_name,
                words=2,
                unclosed={"</arg_value>": "arguments", "<tool_call>": "again"},
                glued={"</arg_key>": "keyed"},
            ),
            "again": Lookahead("<tool_call>", on={"</arg_key>": "key"}, otherwise="name"),
            "key": Key(on={"</arg_key>": "keyed", "<arg_value>": "value"}, parse=innermost_key),
            "keyed": Span(
                SpanKind.CALL,
                on={"<arg_value>": "value", "<arg_key>": "key", "</tool_call>": "text"},
                otherwise="value",
            ),
            "value": Value(
                on={"</arg_value>": "arguments"},
                habits=unclosed({"<arg_key>": "key", "</tool_call>": "text"}),
            ),
            "arguments": Span(
                SpanKind.CALL,
                on={"<arg_key>": "key", "</tool_call>": "text", "<tool_call>": "name"},
                habits=Habits({"<tool_call>": "again"}, peek={"</arg_key>": "key"}, names=("</arg_key>",)),
            ),
        }
    ),
    reasoning=THINK_TOKENS,
)
