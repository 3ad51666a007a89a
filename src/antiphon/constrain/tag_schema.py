"""xgrammar's structural tags, as they are written in JSON. Fields that are not known are ignored."""

from typing import Annotated, Any

from msgspec import Meta, Struct

Text = Annotated[str, Meta(min_length=1)]


class ConstString(Struct, tag="const_string"):
    """This text."""

    value: str


class SchemaFormat(Struct, tag="json_schema"):
    """JSON of this schema."""

    json_schema: dict[str, Any] | bool


class RegexFormat(Struct, tag="regex"):
    """Text that matches the whole of the pattern."""

    pattern: str


class GrammarFormat(Struct, tag="grammar"):
    """Text of a grammar in GBNF."""

    grammar: str


class AnyText(Struct, tag="any_text"):
    """Any text, up to the end of the tag that it is in."""


class SequenceFormat(Struct, tag="sequence"):
    """One after the other."""

    elements: "Annotated[list[Format], Meta(min_length=1)]"


class OrFormat(Struct, tag="or"):
    """One of these."""

    elements: "Annotated[list[Format], Meta(min_length=1)]"


class Tag(Struct):
    """A tag, as lists of tags have it. It has one end, or several."""

    begin: str
    content: "Format"
    end: str | Annotated[list[str], Meta(min_length=1)]

    @property
    def ends(self) -> list[str]:
        """Its ends."""
        return [self.end] if isinstance(self.end, str) else self.end


class TagFormat(Tag, tag="tag"):
    """A tag, where it stands for itself."""


class TriggeredTags(Struct, tag="triggered_tags"):
    """Free text, in which each trigger begins one of the tags that begin with it."""

    triggers: Annotated[list[Text], Meta(min_length=1)]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False


class TagsWithSeparator(Struct, tag="tags_with_separator"):
    """Tags with the same text between any two."""

    tags: Annotated[list[Tag], Meta(min_length=1)]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


Bounded = ConstString | SchemaFormat | RegexFormat | GrammarFormat | TagFormat | TagsWithSeparator
"""The formats that end by themselves."""

Format = Bounded | AnyText | SequenceFormat | OrFormat | TriggeredTags


class Structure(Struct, rename={"json_schema": "schema"}):
    """A tag in the notation that came first."""

    begin: str
    json_schema: dict[str, Any] | bool
    end: str


class StructuralTag(Struct):
    """The whole."""

    format: Format


class OlderStructuralTag(Struct):
    """The whole, in the notation that came first."""

    structures: list[Structure]
    triggers: Annotated[list[Text], Meta(min_length=1)]

    @property
    def format(self) -> TriggeredTags:
        """The same in today's notation."""
        tags = [Tag(each.begin, SchemaFormat(each.json_schema), each.end) for each in self.structures]
        return TriggeredTags(self.triggers, tags)
