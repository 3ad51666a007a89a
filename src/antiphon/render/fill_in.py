"""Prompts for filling in the middle: the model's own tokens around the texts before and after the gap.

A model that was trained for it has these tokens in its vocabulary, each as one token. The model writes the
text of the gap after the last of them.

To add the tokens of a family: an entry of `FAMILIES`; `tests/http/test_fill_in.py`.
"""

from collections.abc import Iterator

from msgspec import Struct

from antiphon.render.special_tokens import SEPARATOR, split_at_separators


class FillIn(Struct, frozen=True):
    """The tokens of a family, as text. With `suffix_first` the text after the gap comes first."""

    prefix: str
    suffix: str
    middle: str = ""
    suffix_first: bool = False

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens that the model must have."""
        return tuple(filter(None, (self.prefix, self.suffix, self.middle)))

    def pieces(self, before: str, behind: str) -> Iterator[str]:
        """The prompt for the gap between two texts, in the pieces that are tokenized one by one.

        A file may be about these tokens: where they are in a text, it is cut.
        """
        parts = (self.prefix, before), (self.suffix, behind)
        for mark, text in reversed(parts) if self.suffix_first else parts:
            yield mark
            for token in self.tokens:
                half = len(token) // 2
                text = text.replace(token, f"{token[:half]}{SEPARATOR}{token[half:]}")  # noqa: PLW2901
            yield from split_at_separators(text)
        yield self.middle


FAMILIES = (
    FillIn("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma, Granite
    FillIn("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, SmolLM of code
    FillIn("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder, Refact
    FillIn("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    FillIn("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    FillIn("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    FillIn("[PREFIX]", "[SUFFIX]", suffix_first=True),  # Codestral
)
"""In this order: the first family whose tokens are all in the vocabulary is used."""
