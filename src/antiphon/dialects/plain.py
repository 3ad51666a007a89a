"""No reasoning and no calls: all output is visible text."""

from antiphon.dialects.dialect import Dialect

PLAIN = Dialect(names=("plain", "identity"))
