"""DeepSeek 3.2 and 4: calls as elements that say whether a value is text (DSML).

    <think>I need the weather.</think>

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="get_weather">
    <｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>
    <｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

`string="true"` marks verbatim text; any other value is JSON, or text if it does not
parse. Version 4 calls the block `tool_calls`; version 4.1 calls it `calls`, with a space before each tag's
name. Models also write the block of another version, `toolcalls` or `tool`, the bars in ASCII or twice, and a
space before `>`. Without the block's tag it is a call only of a function that the request offers.
"""

from antiphon.core.grammar import (
    AcceptedNames,
    Grammar,
    Habits,
    Key,
    Markers,
    Name,
    Span,
    SpanKind,
    Value,
    unclosed,
)
from antiphon.decode.headers import quoted_name, typed_key
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.think import THINK_TOKENS

_BLOCKS = ("function_calls", "tool_calls", "toolcalls", "tool")
_MARK = "｜DSML｜"


def _grammar(block: str, space: str = "") -> Grammar:
    """The grammar of calls in a block of this name, with space before the name of each tag."""
    mark = _MARK + space
    marks = (mark, f"|DSML|{space}", f"｜｜DSML｜｜{space}")

    def variants(on: Markers) -> Markers:
        """The same markers as models also spell them."""
        spaced = {f"{marker[:-1]} >": to for marker, to in on.items() if marker.endswith(">")}
        return {marker.replace(mark, form): to for form in marks for marker, to in {**on, **spaced}.items()}

    def blocks(begin: str, to: str) -> Markers:
        return variants({f"{begin}{mark}{name}>": to for name in (block, *_BLOCKS)})

    opens, closes = {f"<{mark}{block}>": "opening"}, {f"</{mark}{block}>": "text"}
    invoke, bare = {f"<{mark}invoke name=": "name"}, {f"<{mark}invoke name=": "bare"}
    inside = {f"<{mark}parameter ": "key", f"</{mark}invoke>": "called", **invoke}
    value_unclosed = {f"<{mark}parameter ": "key", f"</{mark}invoke>": "called"}
    value_ends = {f"</{mark}parameter>": "arguments"}
    other_opens, other_closes = blocks("<", "opening"), blocks("</", "text")
    return Grammar(
        {
            "text": Span(
                SpanKind.TEXT,
                on=opens,
                habits=Habits({**other_opens, **variants(bare)}, hidden=tuple(other_closes)),
            ),
            "opening": Span(
                SpanKind.OPENING,
                on={**invoke, **closes},
                habits=Habits({**variants(invoke), **other_opens, **other_closes}),
                otherwise="opening",
            ),
            "name": Name(on={">": "arguments"}, parse=quoted_name),
            "bare": Name(on={">": "arguments"}, parse=quoted_name, names=AcceptedNames.DECLARED),
            "arguments": Span(
                SpanKind.CALL, on={**inside, **closes}, habits=Habits({**variants(inside), **other_closes})
            ),
            "key": Key(on={">": "value"}, parse=typed_key("name", "string", texts="true")),
            "value": Value(
                on=value_ends, habits={**variants(value_ends), **unclosed(variants(value_unclosed))}
            ),
            "called": Span(
                SpanKind.MARKUP, on={**invoke, **closes}, habits=Habits({**variants(invoke), **other_closes})
            ),
        }
    )


DEEPSEEK_V32 = Dialect(
    names=("deepseek_v32", "deepseekv32"), calls=_grammar("function_calls"), reasoning=THINK_TOKENS
)
DEEPSEEK_V4 = Dialect(
    names=("deepseek_v4", "deepseek-v4", "deepseekv4"), calls=_grammar("tool_calls"), reasoning=THINK_TOKENS
)
DEEPSEEK_V41 = Dialect(
    names=("deepseek_v41", "deepseek-v41", "deepseekv41"),
    calls=_grammar("calls", " "),
    reasoning=THINK_TOKENS,
)
