"""vLLM 0.33, see `VllmVersion`."""

from collections.abc import Iterable, Mapping
from typing import Any


def beam_length(prompt: int, written: int, *, ended: bool) -> int:
    """All that was written counts, as in Transformers: vLLM's get_beam_search_score."""
    return written


def pair(processor: Any, query: str, document: str) -> Mapping[str, Any]:
    """The tokens that a model needs after the pair are appended by `post_process_tokens`, after cutting."""
    prompt: Mapping[str, Any] = processor.get_score_prompt(query, document, {})[1]
    if processor.model is not None:
        processor.model.post_process_tokens(prompt)
    return prompt


def forget_media(renderer: Any, hashes: Iterable[str]) -> None:
    """They are dropped before the next prompt is made, by the thread that makes it."""
    renderer.queue_mm_cache_invalidations([*hashes])
