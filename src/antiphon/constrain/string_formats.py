"""Patterns of the string formats that JSON Schema names. They may be narrower than the format."""

from functools import lru_cache

from antiphon.constrain.budget import WorkBudget
from antiphon.constrain.grammar_ir import Expr
from antiphon.constrain.regex import matching

_DAY = r"(?:0[1-9]|1[0-9]|2[0-8])"
_MONTH = r"(?:0[1-9]|1[0-2])"
_DATE = rf"[0-9]{{4}}-(?:{_MONTH}-{_DAY}|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"  # no leap days
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_LABEL = r"[A-Za-z][A-Za-z0-9]{0,20}(?:-[A-Za-z0-9]{1,20}){0,1}"  # accepted by every parser
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,4}}"
_HEX = "[0-9a-fA-F]"
_GROUP = f"{_HEX}{{1,4}}"

PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": r"P(?:[0-9]{1,4}W|[0-9]{1,4}D(?:T[0-9]{1,4}H)?|[0-9]{1,4}[YM]|T[0-9]{1,4}[HMS])",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "email": rf"[A-Za-z0-9_+]{{1,32}}(?:[.-][A-Za-z0-9_+]{{1,15}}){{0,2}}@{_LABEL}(?:\.{_LABEL}){{1,3}}",
    "hostname": _HOST,
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "ipv6": rf"(?:{_GROUP}(?::{_GROUP}){{7}}|::(?:{_GROUP}(?::{_GROUP}){{0,5}})?)",
    "uri": rf"https?://{_HOST}(?::[0-9]{{1,4}})?(?:/[A-Za-z0-9._~-]{{1,64}}){{0,8}}/?(?:\?[A-Za-z0-9._~=&-]{{1,128}})?",
}


@lru_cache(len(PATTERNS))
def pattern_expr(name: str) -> Expr | None:
    """The texts of that format, or a part of them that models write; None if it is unknown."""
    return matching(PATTERNS[name], WorkBudget()) if name in PATTERNS else None
