"""The required form of an answer: as a client requests it, and as an engine can enforce it.

`Format` is the client's side: the form of the visible text. `Constraint` is the engine's side: tool choice,
tool schemas and format, compiled into one constraint on generation. `constrain/` compiles it.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class JsonSchema(Struct, frozen=True, tag="json_schema"):
    """JSON that fits `schema`. `strict` means that it must, and that no keyword may go unenforced."""

    schema: Mapping[str, Any]
    strict: bool = True
    name: str = "answer"
    description: str | None = None


class JsonObject(Struct, frozen=True, tag="json_object"):
    """Any JSON object."""


class Regex(Struct, frozen=True, tag="regex"):
    """Text that matches the whole of `pattern`."""

    pattern: str


class OneOf(Struct, frozen=True, tag="choice"):
    """One of these texts."""

    texts: tuple[str, ...]


class GrammarFormat(Struct, frozen=True, tag="grammar"):
    """Text of a context-free grammar, in GBNF or in Lark's notation: `syntax` is "gbnf" or "lark"."""

    text: str
    syntax: str = "gbnf"


class TagFormat(Struct, frozen=True, tag="structural_tag"):
    """Text with constrained parts in it, in the notation of xgrammar's structural tags."""

    spec: Mapping[str, Any]


Format = JsonSchema | JsonObject | Regex | OneOf | GrammarFormat | TagFormat


class Gbnf(Struct, frozen=True):
    """A grammar in llama.cpp's notation, whose start is `root`.

    It applies from the first token on; with `triggers`, from the first of these texts on, which the grammar
    includes.
    """

    text: str
    triggers: tuple[str, ...] = ()


class StructuralTag(Struct, frozen=True):
    """xgrammar's structural tag, as JSON text: the notation of vLLM and SGLang."""

    text: str


class WholeSchema(Struct, frozen=True):
    """The JSON Schema of an answer that consists of JSON alone, for a server that reads schemas."""

    schema: Mapping[str, Any]


class WholePattern(Struct, frozen=True):
    """The regular expression of an answer, all of which matches it, for a server that reads such."""

    pattern: str


Constraint = Gbnf | StructuralTag | WholeSchema | WholePattern
"""The last two are the client's own words, which a server reads in its own way."""
