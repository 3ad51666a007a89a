"""No thoughts and no calls: everything that the model writes is said."""

from antiphon.dialects.dialect import Dialect

PLAIN = Dialect(names=("plain", "identity"))
