"""Completion requests for llama.cpp, and the checks before them.

A request is JSON; parameters that were not requested are left out, and have llama.cpp's defaults. Its
grammar parser has no limits: brackets or rules nested some ten thousand deep overflow its stack and end the
process. Such grammars are refused here, and so are parameters that it would silently ignore.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from antiphon.core.constraint import Gbnf
from antiphon.core.errors import RequestError
from antiphon.core.turn import Adapter, Sampling
from antiphon.engines.engine import GenerationRequest
from antiphon.engines.samplers import fields_of

_SHOWN_DEFAULTS = ("temperature", "top_p", "presence_penalty", "frequency_penalty")

COLUMN = "llama_cpp"
"""Its column in the table of samplers.

Penalties consider the last 64 tokens, the prompt's included, unless `repeat_last_n` is set.
"""

GRAMMAR_PARAM = "structured_outputs.grammar"
"""The parameter to blame for a grammar: those that we write ourselves are valid."""

MAX_GRAMMAR = 1_000_000
MAX_RULES = 10_000
MAX_NESTING = 200
"""Characters, rules and nested brackets of a grammar: at most a tenth of what llama.cpp supports."""

_PATTERN = 2  # llama.cpp's number for a trigger that is a regular expression

# A text, a class of characters, a token or a comment, in which brackets have no meaning. Its end
# is optional, so that no beginning is looked at twice.
_OPAQUE = re.compile(r'"(?:\\.|[^"\\])*"?|\[(?:\\.|[^\]\\])*\]?|<[^>]*>?|#[^\r\n]*', re.DOTALL)
_SPECIAL_IN_PATTERNS = re.compile(r"[.^$|()\[\]{}*+?\\]")


def defaults_of(params: Mapping[str, Any]) -> dict[str, float]:
    """Of the settings those that answers may show. They have 32 bits: 0.8 is 0.800000011920929."""
    return {name: round(params[name], 6) for name in _SHOWN_DEFAULTS if name in params}


def request_of(request: GenerationRequest) -> bytes:
    """The body of the completion request, as JSON.

    Stop strings are not sent: the decoder above finds them, and llama.cpp would
    cut text that it must see.
    """
    body: dict[str, Any] = {
        "prompt": request.prompt.ids,
        "n_predict": request.max_tokens,
        "preserved_tokens": sorted(request.preserve) or None,
        **fields_of(request, COLUMN),
        **_grammar(request.constraint),
        **lora_field(request.sampling),
        "stream": True,
        "return_progress": True,  # a message for each prompt batch: the chance to cancel
        "return_tokens": True,
    }
    return msgspec.json.encode({name: value for name, value in body.items() if value is not None})


def lora_field(sampling: Sampling) -> Mapping[str, Any]:
    """The adapters, all of them, if the request names some."""
    return {} if sampling.lora is None else {"lora": [_scaled(one) for one in sampling.lora]}


def _scaled(adapter: Adapter) -> Mapping[str, Any]:
    """An adapter, which llama.cpp knows by its number."""
    return {"id": adapter.name, "scale": adapter.scale}


def _grammar(constraint: object) -> Mapping[str, Any]:
    """The grammar of structured output."""
    if not isinstance(constraint, Gbnf):
        return {}
    if not constraint.triggers:
        return {"grammar": constraint.text}
    # As patterns, not words: a word that happens to be a token is waited for as this token
    # alone, and not found inside longer ones.
    triggers = [{"type": _PATTERN, "value": _escaped(text)} for text in constraint.triggers]
    return {"grammar": constraint.text, "grammar_lazy": True, "grammar_triggers": triggers}


def _escaped(text: str) -> str:
    return _SPECIAL_IN_PATTERNS.sub(r"\\\g<0>", text)


def check(request: GenerationRequest, vocabulary: int) -> None:
    """Raises RequestError for requests that llama.cpp would ignore in part, fail on, or crash on."""
    sampling = request.sampling
    check_ids(sampling.logit_bias, vocabulary, "logit_bias")
    check_ids(sampling.banned_tokens, vocabulary, "banned_tokens")
    check_ids(sampling.stop_token_ids, vocabulary, "stop_token_ids")
    if isinstance(request.constraint, Gbnf):
        _check_grammar(request.constraint.text)
        if sampling.ignore_eos:
            raise RequestError("`ignore_eos` cannot be combined with structured output.", param="ignore_eos")


def check_ids(ids: Iterable[int], vocabulary: int, param: str) -> None:
    """Raises RequestError that blames `param` if one of the ids is unknown."""
    for token in ids:
        if not 0 <= token < vocabulary:
            message = f"There is no token {token}: the ids of this model are 0 to {vocabulary - 1}."
            raise RequestError(message, param=param)


def _check_grammar(text: str) -> None:
    if not text or text[0] == "%":  # llama.cpp would generate without it, or use another grammar engine
        raise RequestError("A grammar in GBNF begins with a rule.", param=GRAMMAR_PARAM)
    if len(text) > MAX_GRAMMAR or text.count("::=") > MAX_RULES or _nesting(text) > MAX_NESTING:
        raise RequestError(
            f"The grammar is too large: at most {MAX_GRAMMAR} characters, {MAX_RULES} rules, "
            f"and {MAX_NESTING} brackets inside each other.",
            param=GRAMMAR_PARAM,
        )


def _nesting(text: str) -> int:
    """How many brackets are open at the deepest place of a grammar."""
    if text.count("(") <= MAX_NESTING:
        return 0
    depth = deepest = 0
    for bracket in re.findall(r"[()]", _OPAQUE.sub("", text)):
        depth = depth + 1 if bracket == "(" else max(depth - 1, 0)
        deepest = max(deepest, depth)
    return deepest
