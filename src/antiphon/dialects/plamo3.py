"""PLaMo 3: markers of several tokens around everything, the name and the arguments too.

    <|plamo:begin_think:plamo|>I need the weather.<|plamo:end_think:plamo|>
    <|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|>
    <|plamo:begin_tool_name:plamo|>get_weather<|plamo:end_tool_name:plamo|>
    <|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>{"city": "Rome"}
    <|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>
    <|plamo:end_tool_requests:plamo|><|plamo:tag|>

There are no line breaks between them.
"""

from antiphon.core.grammar import Grammar, JsonArguments, Name, ReasoningMarkers, Span, SpanKind
from antiphon.decode.headers import plain_name
from antiphon.dialects.dialect import Dialect

_REQUESTS = {
    "<|plamo:begin_tool_requests:plamo|>": "opening",
    "<|plamo:begin_tool_request:plamo|>": "opening",
    "<|plamo:begin_tool_name:plamo|>": "name",
}
_ENDS = {
    "<|plamo:end_tool_arguments:plamo|>": "called",
    "<|plamo:end_tool_request:plamo|>": "called",
    "<|plamo:end_tool_requests:plamo|>": "text",
}

PLAMO3 = Dialect(
    names=("plamo3",),
    calls=Grammar(
        {
            "text": Span(SpanKind.TEXT, on=_REQUESTS, first={"<|plamo:tag|>": "text"}),
            "opening": Span(SpanKind.OPENING, on={**_REQUESTS, **_ENDS}),
            "name": Name(on={"<|plamo:end_tool_name:plamo|>": "named"}, parse=plain_name),
            "named": Span(
                SpanKind.CALL,
                on={
                    "<|plamo:begin_tool_arguments:plamo|>": "named",
                    "<|plamo:constrain|>json": "named",
                    "<|plamo:msg|>": "arguments",
                    **_ENDS,
                    **_REQUESTS,
                },
                peek={"{": "arguments"},
            ),
            "arguments": JsonArguments(then="called"),
            "called": Span(SpanKind.MARKUP, on={**_ENDS, **_REQUESTS}),
        }
    ),
    reasoning=ReasoningMarkers(
        opens=("<|plamo:begin_think:plamo|>",),
        closes=("<|plamo:end_think:plamo|>", "<|plamo:tag|>"),
        reopens=("<|plamo:begin_think:plamo|>",),
    ),
)
