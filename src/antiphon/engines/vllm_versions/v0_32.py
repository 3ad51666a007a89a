"""vLLM 0.32, see `VllmVersion`."""

from collections.abc import Iterable, Mapping
from typing import Any


def beam_length(prompt: int, written: int, *, ended: bool) -> int:
    """The prompt counts, and the token that ends the answer does not: vLLM's get_beam_search_score."""
    return prompt + written - ended


def pair(processor: Any, query: str, document: str) -> Mapping[str, Any]:
    """`get_score_prompt` also appends the tokens that a model needs after the pair."""
    prompt: Mapping[str, Any] = processor.get_score_prompt(query, document, {})[1]
    return prompt


def forget_media(renderer: Any, hashes: Iterable[str]) -> None:
    """As `AsyncLLM` does for each output that names some."""
    if renderer.mm_processor_cache is not None:
        for digest in hashes:
            renderer.mm_processor_cache.invalidate(digest)
