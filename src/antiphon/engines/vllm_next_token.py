"""Scores next tokens with vLLM: requests for one token each, which name the tokens to be scored.

vLLM returns the log probabilities of those and of the likeliest token. A request names so many at most: more
tokens take several requests. All of them begin alike, so vLLM computes the prompt once.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from antiphon.core.errors import EngineError
from antiphon.engines.engine import NextToken
from antiphon.engines.next_token import chosen
from antiphon.engines.vllm_stream import Vocabulary, next_row

MAX_NAMED = 128
"""Tokens that a request may name, by `vllm.sampling_params`."""

MODES = ("raw_logprobs", "processed_logprobs")
"""The modes of log probabilities; in the others vLLM returns logits."""


def check_mode(mode: str) -> None:
    """Raise EngineError, with the remedy, if vLLM returns no log probabilities."""
    if mode not in MODES:
        raise EngineError(
            f"vLLM returns logits here (logprobs_mode={mode}). Start it with --vllm logprobs_mode={MODES[0]}."
        )


def groups_of(tokens: Sequence[int], size: int = MAX_NAMED) -> list[Sequence[int]]:
    """The tokens that each request names, at most this number: one request at least."""
    return [tokens[start : start + size] for start in range(0, max(len(tokens), 1), size)]


def next_token(vocabulary: Vocabulary, outputs: Sequence[Any], groups: Sequence[Sequence[int]]) -> NextToken:
    """The result from the outputs of the requests for these groups. Raises EngineError if vLLM gave up."""
    pairs = [*chain.from_iterable(map(_scores, outputs, groups))]
    candidates = vocabulary.candidates(*zip(*pairs, strict=True)) if pairs else ()
    stats = outputs[0].prefill_stats
    cached = stats.num_cached_tokens if stats is not None else 0
    return chosen(candidates, [*chain.from_iterable(groups)], cached)


def _scores(output: Any, group: Sequence[int]) -> Iterator[tuple[int, float]]:
    """The likeliest token and those of the group, with their log probabilities.

    The row is longer if another request of the same step has named more.
    """
    if not group:
        return iter(())
    ids, logprobs = next_row(output)
    return zip(ids[: len(group) + 1], logprobs, strict=False)
