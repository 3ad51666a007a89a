import asyncio
import json
import re

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
from antiphon.engines.scripted import REMEMBERED_REQUESTS, TEMPLATE, ScriptedEngine
from tests.contracts.engine import (
    STEPS,
    Collected,
    EngineContract,
    chunks_of,
    finish_of,
    request_of,
    running,
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
        return ScriptedEngine([{"output": "again ", "tokens": 10**9}], parallel=1)


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
    assert ids[:2] == await (await started({"output": ""})).tokenize(["a b"])


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
    collected = Collected()
    engine.generate(await request_of(engine, "hi", 9), collected)
    with pytest.raises(EngineError, match=f"after {after} chunks"):
        await collected.whole()
    assert text_of(collected.chunks) == "a b c"[: max(2 * after - 1, 0)]
    assert all(chunk.finish is None for chunk in collected.chunks)
    assert engine.load.idle


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
    chunks = await chunks_of(engine, "hi", 99, answer_start=OUTPUT[:cut])
    assert text_of(chunks) == OUTPUT[cut:]
    for chunk in chunks:
        assert chunk.tokens == () or [token.text for token in chunk.tokens] == [chunk.text]


async def test_going_on_counts_anew():
    line = {"output": "a b c d e f", "fail_after": 2}
    with pytest.raises(EngineError):
        await chunks_of(await started(line), "hi", 9, answer_start="a b")
    assert text_of(await chunks_of(await started(line), "hi", 1, answer_start="a b")) == " c"
    circle = await started({"output": "a b", "tokens": 5})
    assert text_of(await chunks_of(circle, "hi", 9, answer_start="a ba b")) == "a"


@pytest.mark.parametrize("begun", ["x", "a x", "a b c and more", "b"])
async def test_what_is_no_beginning_of_the_line_is_no_beginning(begun):
    assert (
        text_of(await chunks_of(await started({"output": "a b c"}), "hi", 9, answer_start=begun)) == "a b c"
    )


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
    for _ in range(REMEMBERED_REQUESTS + 1):
        await chunks_of(engine, "hi", 9)
    await chunks_of(engine, "last", 9, constraint=constraint)
    assert len(engine.seen) == REMEMBERED_REQUESTS
    assert (engine.seen[-1].prompt.text, engine.seen[-1].constraint) == ("last", constraint)


def test_it_can_be_more_or_less_able():
    able = Capabilities(constraints=(StructuralTag,), sampling=frozenset({"bad_words"}))
    assert ScriptedEngine([], capabilities=able).card.capabilities is able


async def test_the_ids_of_the_script_are_known_for_ever_those_of_prompts_for_a_while(monkeypatch):
    monkeypatch.setattr("antiphon.engines.scripted.REMEMBERED_PIECES", 2)
    engine = await started({"output": "abc def", "split": 5})
    own = [token.id for token in tokens_of(await chunks_of(engine, "hi", 9))]
    first, *_ = await engine.tokenize(["one"])
    last = await engine.tokenize([" two three"])
    assert await engine.detokenize(own + last) == "abc def two three"
    with pytest.raises(RequestError):
        await engine.detokenize([first])


class Noted(Collected):
    """Notes in `log` that it got a chunk, and when the event loop runs something else."""

    def __init__(self, log, name):
        super().__init__()
        self._log = log
        self.name = name

    def push(self, chunks):
        super().push(chunks)
        self._log.append(self.name)
        asyncio.get_running_loop().call_soon(self._log.append, "|")


async def noted(engine, *names):
    """Which generations got their chunks together: "ab|" if `a` and `b` did, in one call of the loop."""
    log = []
    receivers = [Noted(log, name) for name in names]
    for receiver in receivers:
        engine.generate(await request_of(engine, receiver.name, 1000), receiver)
    for receiver in receivers:
        await receiver.whole()
    await asyncio.sleep(0)
    return [step for step in "".join(log).split("|") if step]


@pytest.mark.parametrize("delay", [0, 1])
async def test_a_step_reaches_all_generations_with_the_same_pause_in_one_call(delay):
    engine = await started({"output": "x y z", "delay_ms": delay})
    assert await noted(engine, "a", "b", "c", "d") == ["abcd"] * 3


async def test_generations_with_other_pauses_have_steps_of_their_own():
    engine = await started({"when": "a", "output": "x y z"}, {"when": "b", "output": "x y z", "delay_ms": 1})
    # A busy loop calls both kinds at once, but not mixed.
    steps = "".join(await noted(engine, "a", "b", "a", "b"))
    assert sorted(re.findall("aa|bb", steps)) == ["aa"] * 3 + ["bb"] * 3


async def test_who_waited_for_a_slot_begins_with_the_next_step():
    engine = await started({"output": "x y"}, parallel=2)
    assert await noted(engine, "a", "b", "c", "d", "e") == ["ab", "ab", "cd", "cd", "e", "e"]


async def test_a_receiver_that_raises_stops_no_other():
    engine = await started({"output": "x y z"})
    failures = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))

    class Broken(Collected):
        def push(self, chunks):
            raise ZeroDivisionError

    other = Collected()
    engine.generate(await request_of(engine, "a", 9), Broken())
    engine.generate(await request_of(engine, "b", 9), other)
    assert text_of(await other.whole()) == "x y z"
    assert [type(failure) for failure in failures] == [ZeroDivisionError] * 3
    await until(lambda: engine.load.idle)


async def test_delay_comes_before_each_chunk(monkeypatch):
    loop = asyncio.get_running_loop()
    delays = []

    def later(delay, *call):
        delays.append(delay)
        return loop.call_soon(*call)

    engine = await started({"output": "a b c", "delay_ms": 20})
    collected = Collected()
    engine_request = await request_of(engine, "hi", 9)
    monkeypatch.setattr(loop, "call_later", later)
    engine.generate(engine_request, collected)
    await collected.over.wait()
    assert delays == [0.02] * 3


async def test_steps_stand_still_once_nobody_listens():
    engine = await started({"output": "a ", "tokens": 10**6})
    async with running(engine, await request_of(engine, "hi", 10**6)):
        seen = engine.steps
        await until(lambda: engine.steps > seen)
    stopped = engine.steps
    await asyncio.sleep(STEPS)  # enough for thousands of steps
    assert engine.steps == stopped
    assert engine.load.idle


def test_it_can_be_started_again_in_another_event_loop():
    engine = ScriptedEngine([{"output": "a b", "delay_ms": 1}])

    async def once():
        await engine.start()
        await chunks_of(engine, "hi", 9)
        async with running(engine, await request_of(engine, "hi", 9)):
            await engine.stop()

    for _ in range(2):
        asyncio.run(once())


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
