"""xgrammar without torch, which it imports for masks of tokens, and transformers: tests only walk grammars.

Both take gigabytes. Where they are missing, anything may be imported from them, and does nothing.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Nothing:
    """Stands for all that is in a module that is not there."""

    def __init__(self, *_: Any, **__: Any) -> None: ...


def xgrammar() -> Any:
    """The module xgrammar; None where it is not installed."""
    if find_spec("xgrammar") is None or find_spec("tvm_ffi") is None:
        return None
    import_module("tvm_ffi")  # looks for torch itself
    for name in ("torch", "transformers"):
        if name not in sys.modules and find_spec(name) is None:
            module = ModuleType(name)
            module.__getattr__ = lambda _: _Nothing  # type: ignore[method-assign]
            sys.modules[name] = module
    found = import_module("xgrammar")
    for name in ("torch", "transformers"):
        if getattr(sys.modules[name], "__spec__", None) is None:
            del sys.modules[name]  # others look whether these are there
    return found


class Grammars:
    """Compiles grammars for a vocabulary of single bytes, and walks texts through them."""

    END = 256

    def __init__(self) -> None:
        self._xgrammar = xgrammar()
        tokens = [*(bytes([byte]) for byte in range(self.END)), b"<end>"]
        info = self._xgrammar.TokenizerInfo(tokens, stop_token_ids=[self.END])
        self._compiler = self._xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def gbnf(self, text: str) -> Any:
        """A grammar. Raises RuntimeError if it is refused."""
        return self._compiler.compile_grammar(self._xgrammar.Grammar.from_ebnf(text))

    def structural_tag(self, text: str) -> Any:
        """The grammar of a structural tag. Raises an error if it is refused."""
        return self._compiler.compile_structural_tag(text)

    def admits(self, compiled: Any, text: str) -> bool:
        """Whether the whole text fits."""
        matcher = self._xgrammar.GrammarMatcher(compiled)
        return bool(matcher.accept_string(text) and matcher.accept_token(self.END))
