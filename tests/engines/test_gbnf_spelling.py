"""Every form here was read by llguidance 1.9.1, through its gbnf_to_lark, and accepted what it should."""

import pytest

from antiphon.constrain import gbnf
from antiphon.constrain.grammar_ir import GrammarIR, Literal
from antiphon.engines.upstreams.gbnf_spelling import respelled


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"root ::= [\u005B\u005D\u002D\u005E\u005C]", r"root ::= [\x5B\x5D\x2D\x5E\x5C]"),
        (r"root ::= [\u00A0-\uD7FF\uE000-\U0010FFFF]", "root ::= [\\xA0-\ud7ff\ue000-\U0010ffff]"),
        (r'root ::= [\t ]{0,20} "\"a\\" "["', r'root ::= [\t ]{0,20} "\"a\\" "["'),
        (r'root ::= "a\u2028\U0001F600"', 'root ::= "a\u2028\U0001f600"'),
        (r'root ::= "a\u0001b"* | [\u0001]', r'root ::= ("a" [\x01] "b")* | [\x01]'),
        (r'root ::= "\u007F"', r'root ::= ("" [\x7F] "")'),
        (r'root ::= "[\\u005D]"', r'root ::= "[\\u005D]"'),
    ],
)
def test_codes_are_written_as_they_are_read(written: str, read: str) -> None:
    assert respelled(written) == read


def test_no_code_that_it_cannot_read_is_left() -> None:
    text = "".join(map(chr, (*range(0x300), 0x2028, 0xFFFD, 0x1F600)))
    grammar = respelled(gbnf.write(GrammarIR(Literal(text), {})).text)

    assert "\\u" not in grammar.replace("\\\\", "")
    assert "\\U" not in grammar.replace("\\\\", "")
