"""`python bench/decisions.py`: what more questions about one text cost, and what company does to answers.

SmolLM2 is asked one question, and twenty, about a text of 2,000 tokens that is not in the cache. Printed are
the tokens of prompts that the engine computed, and the CPU time of all of its processes. Then the same
questions are asked alone, in another order, and beside running answers: printed is by how much a probability
differs at most. With llama.cpp; in the environment of `make test-vllm`, with `ANTIPHON_TEST_VLLM` as there,
with vLLM.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

if __name__ == "__main__":
    # For a script, Python's path begins with its folder; our modules are `bench.…`.
    sys.path[0] = str(Path(__file__).parent.parent)

from msgspec.structs import replace

from antiphon.core.decision import Decision, Option, Question, QuestionKind, Verdicts
from antiphon.core.items import Message, Role, TextPart
from antiphon.core.turn import Sampling
from antiphon.engines.engine import GenerationRequest, Prompt
from antiphon.model_tables import ModelSettings
from antiphon.run.loading import ServedModel
from antiphon.run.model import Model
from tests.contracts.engine import Collected
from tests.real_engine import real_engine

TOKENS, QUESTIONS, LIMIT = 2000, 20, 1.5
ANSWERS, LENGTH = 3, 200
"""Answers that run beside a decision, and their tokens."""

WORDS = "The parcel came late, the box was torn, and nobody answered the phone. "
QUESTION = Question(
    QuestionKind.PREDICATE, (TextPart("Is the customer angry?"),), (Option(""), Option("")), "questions"
)
texts = count()


def question(number: int) -> Question:
    """One of many, all different."""
    return replace(QUESTION, instructions=(TextPart(f"Does paragraph {number} name a person?"),))


def about(text: str, questions: Sequence[Question]) -> Decision:
    """The questions about this text."""
    return Decision("m", (Message(Role.USER, (TextPart(text),)),), (*questions,))


async def new_text(model: Model) -> str:
    """A text of about this number of tokens, which differs from all others at its first word."""
    size = len(await model.engine.tokenize([WORDS]))
    return f"{next(texts)} times: " + WORDS * (TOKENS // size)


def cpu_seconds() -> float:
    """Of this process and of all that it has started, those that run included."""
    own, total = os.getpid(), 0
    parents = {int(path.name): path for path in Path("/proc").iterdir() if path.name.isdigit()}
    fields = {}
    for pid, path in parents.items():
        try:
            fields[pid] = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue

    def is_ours(pid: int) -> bool:
        while pid in fields:
            if pid == own:
                return True
            pid = int(fields[pid][1])
        return False

    for pid, values in fields.items():
        if is_ours(pid):
            total += int(values[11]) + int(values[12])
    return total / os.sysconf("SC_CLK_TCK")


async def computed(model: Model) -> int:
    """The tokens of prompts that were computed so far."""
    figures = await model.engine.cache_figures()
    return (figures.queries or 0) - (figures.hits or 0)


async def cost(model: Model, questions: Sequence[Question]) -> tuple[int, float]:
    """The tokens that were computed for questions about a new text, and the CPU seconds."""
    decision = about(await new_text(model), questions)
    tokens, seconds = await computed(model), cpu_seconds()
    await model.decide(decision)
    return await computed(model) - tokens, cpu_seconds() - seconds


def difference(one: Verdicts, other: Verdicts) -> float:
    """The largest difference of a probability."""
    pairs = zip(one.verdicts, other.verdicts, strict=True)
    return max(abs(a - b) for x, y in pairs for a, b in zip(x.probabilities, y.probabilities, strict=True))


async def company(model: Model) -> dict[str, float]:
    """By how much a probability differs at most: where → difference."""
    text, questions = await new_text(model), [question(number) for number in range(QUESTIONS)]
    first = await model.decide(about(text, questions))
    warm = await model.decide(about(text, questions))
    backward = await model.decide(about(text, questions[::-1]))
    alone = [await model.decide(about(text, [one])) for one in questions]
    ids = tuple(await model.engine.tokenize(["Once upon a time"]))
    answers = [Collected() for _ in range(ANSWERS)]
    for answer in answers:
        request = GenerationRequest(Prompt("Once upon a time", ids), LENGTH, Sampling(ignore_eos=True))
        model.engine.generate(request, answer)
    await asyncio.gather(*(answer.begun.wait() for answer in answers))
    beside = await model.decide(about(text, questions))
    await asyncio.gather(*(answer.whole() for answer in answers))
    return {
        "again": difference(first, warm),
        "in another order": difference(first, replace(backward, verdicts=backward.verdicts[::-1])),
        "alone": difference(first, replace(first, verdicts=tuple(one.verdicts[0] for one in alone))),
        f"beside {ANSWERS} answers": difference(first, beside),
    }


async def main() -> int:
    """Print the figures; 1 if many questions cost too much."""
    served = ServedModel(real_engine(context=4096, slots=4), ModelSettings())
    model = await served.load()
    await model.decide(about("Hello.", [QUESTION]))  # the prefill is chosen
    one, one_seconds = await cost(model, [question(0)])
    many, seconds = await cost(model, [question(number) for number in range(QUESTIONS)])
    print(f"computed tokens: {one} for 1 question, {many} for {QUESTIONS}: {many / one:.2f} times")
    print(f"CPU seconds: {one_seconds:.2f}, {seconds:.2f}: {seconds / one_seconds:.2f} times")
    for where, most in (await company(model)).items():
        print(f"a probability differs by {most:.2g} {where}")
    await served.stop()
    return int(many > LIMIT * one)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
