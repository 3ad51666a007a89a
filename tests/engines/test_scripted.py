import asyncio
import json
import time

import jinja2
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.chunks import FinishReason
from antiphon.core.constraint import Gbnf, StructuralTag
from antiphon.core.errors import EngineError, RequestError
from antiphon.core.turn import Sampling
from antiphon.engines.engine import Capabilities
from antiphon.engines.scripted import REMEMBERED_GENERATIONS, TEMPLATE, ScriptedEngine
from tests.contracts.engine import (
    EngineContract,
    chunks_of,
    finish_of,
    generation_of,
    reading,
    text_of,
    tokens_of,
    until,
)


async def started(*lines, **options):
    engine = ScriptedEngine(lines, **options)
    await engine.start()
    return engine


async def pieces(line, limit=1000):
    return [chunk.text for chunk in await chunks_of(await started(line), "hi", limit)]


class TestContract(EngineContract):
    prompt = "Tell a story."
    others = ("Say alpha.", "Say beta.", "Say gamma.")
    slots = 4
    draws = False

    @pytest_asyncio.fixture
    async def engine(self):
        return await started(
            *(
                {"when": word, "output": f"{word} is a letter of Greek "}
                for word in ("alpha", "beta", "gamma")
            ),
            {"when": "story", "output": "Ünce upon a time, 🎉 in 日本, ", "tokens": 10**9},
            {"output": "a", "tokens": 100},
            parallel=self.slots,
        )

    @pytest.fixture
    def fresh(self):
        return ScriptedEngine([{"output": "again ", "tokens": 10**9}])


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        (None, ["<think>", "Hello", ",", " you", "</think>", "\n\n", "🎉", "<|im_end|>"]),
        ("whole", ["<think>Hello, you</think>\n\n🎉<|im_end|>"]),
        (20, ["<think>Hello, you</t", "hink>\n\n🎉<|im_end|>"]),
        ([7, 26], ["<think>", "Hello, you</think>\n", "\n🎉<|im_end|>"]),
        ([], ["<think>Hello, you</think>\n\n🎉<|im_end|>"]),
        ("chars", list("<think>Hello, you</think>\n\n🎉<|im_end|>")),
    ],
)
async def test_split(split, expected):
    output = "<think>Hello, you</think>\n\n🎉<|im_end|>"
    assert await pieces({"output": output, "split": split}) == expected


async def test_default_pieces_lose_no_character():
    output = "  a\tb\n\n c'est 100% _ok_ <|x|> <y <b> \u3000日本 🏳️‍🌈 \x00 "
    assert "".join(await pieces({"output": output})) == output


async def test_each_piece_is_one_token_with_a_stable_id():
    ids = [token.id for token in tokens_of(await chunks_of(await started({"output": "a b a b"}), "hi", 9))]
    assert ids[1] == ids[3]  # " b"
    assert len({*ids}) == 3
    assert ids[:2] == await (await started({"output": ""})).tokenize("a b")


async def test_the_first_line_that_fits_answers():
    engine = await started(
        {"when": "weather", "output": "sun"}, {"when": "we", "output": "us"}, {"output": "else"}
    )
    for prompt, answer in {"the weather": "sun", "we": "us", "": "else"}.items():
        assert text_of(await chunks_of(engine, prompt, 10)) == answer


async def test_no_line_fits():
    with pytest.raises(EngineError, match="No line of the script fits"):
        await chunks_of(await started({"when": "weather", "output": "sun"}), "hello", 10)


async def test_finish_is_what_the_line_says_unless_the_limit_cuts():
    for line, limit, reason in [
        ({"output": "a b"}, 2, FinishReason.STOP),
        ({"output": "a b"}, 1, FinishReason.LENGTH),
        ({"output": "a b", "finish": "length"}, 9, FinishReason.LENGTH),
        ({"output": ""}, 9, FinishReason.STOP),
    ]:
        assert finish_of(await chunks_of(await started(line), "hi", limit)).reason is reason


async def test_tokens_repeats_the_output_in_a_circle():
    assert await pieces({"output": "a b c", "tokens": 5}) == ["a", " b", " c", "a", " b"]
    assert await pieces({"output": "a b c", "tokens": 2}) == ["a", " b"]


@pytest.mark.parametrize("after", [0, 1, 3])
async def test_fail_after(after):
    engine = await started({"output": "a b c", "fail_after": after})
    stream = engine.generate(await generation_of(engine, "hi", 9))
    got = [chunk for _ in range(after) for chunk in await anext(stream)]
    with pytest.raises(EngineError, match=f"after {after} chunks"):
        await anext(stream)
    assert text_of(got) == "a b c"[: max(2 * after - 1, 0)]
    assert all(chunk.finish is None for chunk in got)
    assert engine.active == 0


@pytest.mark.parametrize(
    ("sampling", "limit", "expected"),
    [
        ({"min_tokens": 2}, 9, "a b c"),
        ({"min_tokens": 5}, 9, "a b ca b"),
        ({"min_tokens": 5}, 4, "a b ca"),
        ({"ignore_eos": True}, 7, "a b ca b ca"),
    ],
)
async def test_a_line_begins_again_where_it_may_not_end(sampling, limit, expected):
    engine = await started({"output": "a b c"})
    assert text_of(await chunks_of(engine, "hi", limit, sampling=Sampling(**sampling))) == expected


async def test_an_answer_that_may_not_end_is_cut():
    chunks = await chunks_of(await started({"output": "a b c"}), "hi", 7, sampling=Sampling(ignore_eos=True))
    assert finish_of(chunks).reason is FinishReason.LENGTH


@pytest.mark.parametrize("sampling", [{"min_tokens": 5}, {"ignore_eos": True}])
async def test_nothing_cannot_begin_again(sampling):
    engine = await started({"output": ""})
    assert finish_of(await chunks_of(engine, "hi", 9, sampling=Sampling(**sampling))).reason == "stop"


OUTPUT = "<think>Hm, an 🎉?</think>\n\nYes."


@given(st.integers(0, len(OUTPUT)), st.sampled_from([None, "whole", "chars", 5]))
async def test_an_answer_goes_on_after_what_has_begun(cut, split):
    engine = await started({"output": OUTPUT, "split": split})
    chunks = await chunks_of(engine, "hi", 99, begun=OUTPUT[:cut])
    assert text_of(chunks) == OUTPUT[cut:]
    for chunk in chunks:
        assert chunk.tokens == () or [token.text for token in chunk.tokens] == [chunk.text]


async def test_going_on_counts_anew():
    line = {"output": "a b c d e f", "fail_after": 2}
    with pytest.raises(EngineError):
        await chunks_of(await started(line), "hi", 9, begun="a b")
    assert text_of(await chunks_of(await started(line), "hi", 1, begun="a b")) == " c"
    circle = await started({"output": "a b", "tokens": 5})
    assert text_of(await chunks_of(circle, "hi", 9, begun="a ba b")) == "a"


@pytest.mark.parametrize("begun", ["x", "a x", "a b c and more", "b"])
async def test_what_is_no_beginning_of_the_line_is_no_beginning(begun):
    assert text_of(await chunks_of(await started({"output": "a b c"}), "hi", 9, begun=begun)) == "a b c"


async def test_probabilities_depend_on_the_text_alone():
    async def scored(most):
        chunks = await chunks_of(
            await started({"output": "a b a b"}), "hi", 9, sampling=Sampling(logprobs=most)
        )
        return tokens_of(chunks)

    _, second, _, fourth = await scored(3)
    assert second == fourth
    assert second.logprob == -1 - second.id % 1000 / 1000
    assert [each.text for each in second.top] == [" b", " b1", " b2"]
    assert [each.logprob for each in second.top] == [second.logprob - rank for rank in range(3)]
    assert [token.logprob for token in await scored(0)] == [token.logprob for token in await scored(3)]


async def test_what_was_asked_for_can_be_seen():
    engine = await started({"output": "a"})
    constraint = Gbnf('root ::= "b"')
    for _ in range(REMEMBERED_GENERATIONS + 1):
        await chunks_of(engine, "hi", 9)
    await chunks_of(engine, "last", 9, constraint=constraint)
    assert len(engine.seen) == REMEMBERED_GENERATIONS
    assert (engine.seen[-1].prompt.text, engine.seen[-1].constraint) == ("last", constraint)


def test_it_can_be_more_or_less_able():
    able = Capabilities(constraints=(StructuralTag,), sampling=frozenset({"bad_words"}))
    assert ScriptedEngine([], capabilities=able).card.capabilities is able


async def test_the_ids_of_the_script_are_known_for_ever_those_of_prompts_for_a_while(monkeypatch):
    monkeypatch.setattr("antiphon.engines.scripted.REMEMBERED_PIECES", 2)
    engine = await started({"output": "abc def", "split": 5})
    own = [token.id for token in tokens_of(await chunks_of(engine, "hi", 9))]
    first, *_ = await engine.tokenize("one")
    last = await engine.tokenize(" two three")
    assert await engine.detokenize(own + last) == "abc def two three"
    with pytest.raises(RequestError):
        await engine.detokenize([first])


async def test_delay_comes_before_each_chunk():
    begun = time.monotonic()
    await pieces({"output": "a b c", "delay_ms": 20})
    assert time.monotonic() - begun >= 0.06


async def test_steps_stand_still_once_the_reader_is_gone():
    engine = await started({"output": "a ", "tokens": 10**9})
    async with reading(engine, await generation_of(engine, "hi", 10**9)):
        seen = engine.steps
        await until(lambda: engine.steps > seen)
    stopped = engine.steps
    await asyncio.sleep(0.01)  # time enough for thousands of steps
    assert engine.steps == stopped
    assert engine.active == 0


def write(tmp_path, *lines):
    path = tmp_path / "script.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


async def test_a_file_is_read(tmp_path):
    line = {"output": "Grüße 🎉", "split": "whole", "delay_ms": 0.5, "when": None}
    engine = ScriptedEngine(write(tmp_path, json.dumps(line, ensure_ascii=False), "", '{"output": "x"}'))
    await engine.start()
    assert text_of(await chunks_of(engine, "hi", 5)) == "Grüße 🎉"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"output": 3}', r"\$\.output"),
        ('{"when": "x"}', "output"),
        ('{"output": "x", "delay": 3}', "delay"),
        ('{"output": "x", "delay_ms": -3}', "delay_ms"),
        ('{"output": "x", "delay_ms": "3"}', r"\$\.delay_ms"),
        ('{"output": "x", "finish": "done"}', r"\$\.finish"),
        ('{"output": "x", "finish": "error"}', "fail_after"),
        ('{"output": "", "tokens": 3}', "tokens"),
        ('{"output": "abc", "split": 0}', "split"),
        ('{"output": "abc", "split": "words"}', "split"),
        ('{"output": "abc", "split": [2, 1]}', "split"),
        ('{"output": "abc", "split": [3]}', "split"),
        ('{"output": "x"', "truncated"),
    ],
)
def test_a_malformed_line_is_named_with_its_key(tmp_path, line, complaint):
    path = write(tmp_path, '{"output": "fine"}', line)
    with pytest.raises(EngineError, match=rf"script\.jsonl, line 2: .*{complaint}"):
        ScriptedEngine(path)


def test_a_missing_file_is_an_engine_error(tmp_path):
    with pytest.raises(EngineError, match="No such file"):
        ScriptedEngine(tmp_path / "none.jsonl")


def test_lines_given_as_mappings_are_checked_too():
    with pytest.raises(EngineError, match=r"line 1.*\$\.output"):
        ScriptedEngine([{"output": 3}])


def render(**variables):
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)  # noqa: S701 - no HTML
    return environment.from_string(TEMPLATE).render(
        **{"tools": None, "add_generation_prompt": True, **variables}
    )


def test_template_renders_a_conversation_with_tools():
    call = {"function": {"name": "look", "arguments": {"at": "é"}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sun"},
    ]
    text = render(
        messages=[dict({"tool_calls": None}, **message) for message in messages], tools=[{"name": "look"}]
    )
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou may call")
    assert text.count("Be brief.") == 1
    assert '<tools>\n{"name": "look"}\n</tools>' in text
    assert '<tool_call>\n{"name": "look", "arguments": {"at": "' in text
    assert text.endswith(
        "<|im_start|>user\n<tool_response>\nsun\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_template_opens_thoughts_only_when_told_to():
    messages = [{"role": "user", "content": "hi", "tool_calls": None}]
    plain = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert render(messages=messages) == plain
    assert render(messages=messages, enable_thinking=False) == plain
    assert render(messages=messages, enable_thinking=True) == plain + "<think>\n"
    assert render(messages=messages, add_generation_prompt=False) == plain.removesuffix(
        "<|im_start|>assistant\n"
    )
