import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.constraint import Gbnf
from antiphon.core.errors import RequestError
from antiphon.core.turn import Sampling
from antiphon.engines.engine import GenerationRequest, Prompt
from antiphon.engines.llama_request import (
    COLUMN,
    MAX_GRAMMAR,
    MAX_NESTING,
    MAX_RULES,
    check,
    request_of,
)
from antiphon.engines.samplers import LLAMA_ORDER, supported

ALWAYS = {"prompt": [1, 2], "n_predict": 9, "stream": True, "return_progress": True, "return_tokens": True}
VOCABULARY = 100


def generation(sampling=Sampling(), constraint=None, preserve=frozenset()):  # noqa: B008 - frozen
    return GenerationRequest(Prompt("a", (1, 2)), 9, sampling, preserve, constraint)


def asked(*args, **options):
    """The fields of a request, without those that all requests have."""
    request = msgspec.json.decode(request_of(generation(*args, **options)))
    assert {name: request.pop(name) for name in ALWAYS} == ALWAYS
    return request


def test_a_request_has_only_what_was_asked_for():
    assert asked() == {}
    assert asked(Sampling(temperature=0), preserve=frozenset("ba")) == {
        "temperature": 0,
        "preserved_tokens": ["a", "b"],
    }


def test_a_seed_costs_the_prompt_cache():
    request = asked(Sampling(seed=-1))
    assert request.pop("seed") in range(2**32 - 1)  # 2**32 - 1 would mean "any"
    assert request == {"cache_prompt": False}


@pytest.mark.parametrize(
    ("sampling", "request_"),
    [
        ({"top_p": 0.5, "min_p": 0.0}, {"top_p": 0.5, "min_p": 0}),
        ({"top_k": 7}, {"top_k": 7}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"presence_penalty": 1, "frequency_penalty": -1}, {"presence_penalty": 1, "frequency_penalty": -1}),
        ({"repetition_penalty": 1.5}, {"repeat_penalty": 1.5}),
        ({"logit_bias": {5: -100, 0: 2.5}}, {"logit_bias": [[5, -100], [0, 2.5]]}),
        ({"logit_bias": {5: 1}, "banned_tokens": (6,)}, {"logit_bias": [[5, 1], [6, False]]}),
        ({"repeat_last_n": -1}, {"repeat_last_n": 11}),
        (
            {"repeat_last_n": 10**9, "dry_penalty_last_n": 10**9},
            {"repeat_last_n": 11, "dry_penalty_last_n": 11},
        ),
        ({"repeat_last_n": 0, "dry_penalty_last_n": 7}, {"repeat_last_n": 0, "dry_penalty_last_n": 7}),
        ({"dry_sequence_breakers": ("a",)}, {"dry_sequence_breakers": ["a"]}),
        ({"samplers": ("top_k", "temperature")}, {"samplers": ["top_k", "temperature"]}),
        ({"adaptive_target": -1, "adaptive_decay": 0.9}, {"adaptive_target": -1, "adaptive_decay": 0.9}),
        (
            {"adaptive_target": 0.5, "samplers": ("top_k", "adaptive_p")},
            {"adaptive_target": 0.5, "samplers": ["top_k", "adaptive_p"]},
        ),
        (  # a sampler that it does not have by default
            {"adaptive_target": 0.5},
            {"adaptive_target": 0.5, "samplers": [*LLAMA_ORDER, "adaptive_p"]},
        ),
        ({"min_keep": 2, "temperature_last": True}, {"min_keep": 2}),  # its order has it last
        ({"ignore_eos": True}, {"ignore_eos": True}),
        ({"ignore_eos": False}, {}),
        ({"logprobs": 0}, {"n_probs": 1}),
        ({"logprobs": 5}, {"n_probs": 5}),
        ({"stop_token_ids": (3,), "priority": 5, "max_tokens": 3}, {}),  # ours to do
    ],
)
def test_how_sampling_is_asked_for(sampling, request_):
    assert set(sampling) <= supported(COLUMN)
    assert asked(Sampling(**sampling)) == request_


def test_a_sampler_that_it_does_not_have_is_refused():
    with pytest.raises(RequestError, match="'mirror'") as raised:
        asked(Sampling(samplers=("top_k", "mirror")))
    assert raised.value.param == "samplers"


def test_how_a_grammar_is_asked_for():
    assert asked(constraint=Gbnf('root ::= "a"')) == {"grammar": 'root ::= "a"'}
    lazy = asked(constraint=Gbnf('root ::= "[a"', ("[a", "<t>")))
    assert lazy.pop("grammar_lazy") is True
    assert lazy.pop("grammar_triggers") == [{"type": 2, "value": r"\[a"}, {"type": 2, "value": "<t>"}]
    assert lazy == {"grammar": 'root ::= "[a"'}


def blamed(**options):
    with pytest.raises(RequestError) as raised:
        check(generation(**options), VOCABULARY)
    return raised.value.param


def test_what_llama_cpp_would_ignore_is_refused():
    check(generation(Sampling(logit_bias={99: 1}, stop_token_ids=(0,))), VOCABULARY)
    assert blamed(sampling=Sampling(logit_bias={100: 1})) == "logit_bias"
    assert blamed(sampling=Sampling(logit_bias={-1: 1})) == "logit_bias"
    assert blamed(sampling=Sampling(stop_token_ids=(3, 100))) == "stop_token_ids"


def test_a_form_ends_where_it_ends():
    grammar = Gbnf('root ::= "a"')
    check(generation(constraint=grammar), VOCABULARY)
    assert blamed(sampling=Sampling(ignore_eos=True), constraint=grammar) == "ignore_eos"


def nested(depth, inner='"a"'):
    return "root ::= " + "(" * depth + inner + ")" * depth


@pytest.mark.parametrize(
    "text",
    [
        nested(MAX_NESTING + 1),
        nested(10**5),
        "# \r" + nested(10**5),
        "\n".join(f"r{number} ::= r{number + 1}" for number in range(MAX_RULES + 1)),
        'root ::= "' + "a" * MAX_GRAMMAR + '"',
        "%llguidance {}\nstart: /a/",
        "",
    ],
)
def test_what_would_end_the_process_or_fail_open_is_refused(text):
    assert blamed(constraint=Gbnf(text)) == "structured_outputs.grammar"


@pytest.mark.parametrize(
    "text",
    [
        nested(MAX_NESTING),
        'root ::= "' + "(" * 1000 + '"',
        'root ::= "\\"' + "(" * 1000 + '"',
        "root ::= [" + "(" * 1000 + "]",
        "root ::= [\\]" + "(" * 1000 + "]",
        'root ::= "a" # ' + "(" * 1000,
        "root ::= " + '("a") ' * 1000,
    ],
)
def test_what_only_looks_like_it_is_not(text):
    check(generation(constraint=Gbnf(text)), VOCABULARY)


@given(st.text('()"[]\\#\n<>a', max_size=400))
def test_no_bracket_is_forgotten_outside_of_texts(text):
    assert blamed(constraint=Gbnf("(" * (MAX_NESTING + 1) + text)) == "structured_outputs.grammar"


def test_reading_a_grammar_is_linear():
    # Each beginning of a text that never ends used to be looked at to the end, which took minutes.
    endless = "(" * (MAX_NESTING + 1) + '"' + r"\"" * 400_000
    assert blamed(constraint=Gbnf(endless)) == "structured_outputs.grammar"
