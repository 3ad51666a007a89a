"""No thoughts and no calls: everything that the model writes is said."""

from antiphon.core.grammar import Grammar, Kind, Span
from antiphon.dialects.dialect import Dialect

PLAIN = Dialect(names=("plain", "identity"), grammar=Grammar({"text": Span(Kind.TEXT)}))
