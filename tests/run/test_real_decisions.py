"""Decisions of the small model: its labels are tokens, and an answer does not depend on its company."""

import pytest
import pytest_asyncio

from antiphon.core.decision import Decision, Option, Question, QuestionKind
from antiphon.core.items import Message, Role, TextPart
from antiphon.decide.labels import DIGITS, LETTERS, PAIRS, YES_NO
from antiphon.engines.llama_cpp import LlamaCppEngine, Options
from antiphon.engines.models import resolve
from antiphon.model_tables import ModelSettings
from antiphon.run.decisions import PREFILLS
from antiphon.run.label_tokens import LabelTokens
from antiphon.run.loading import ServedModel

pytestmark = pytest.mark.asyncio(loop_scope="module")

END = "<|im_end|>\n<|im_start|>assistant\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model():
    engine = LlamaCppEngine(resolve(None), Options(context=2048, parallel=1, threads=1))
    served = ServedModel(engine, ModelSettings(decision_prefill="("))
    yield await served.load()
    await served.stop()


def ask(kind, instructions, *options):
    return Question(kind, (TextPart(instructions),), tuple(map(Option, options)), "questions")


TEAM = ask(QuestionKind.CHOICE, "Which team?", "billing", "shipping")
URGENT = ask(QuestionKind.SCORE, "How urgent?", "can wait", "today", "now")
ANGRY = ask(QuestionKind.PREDICATE, "Is the customer angry?", "", "")


def about(text, *questions):
    return Decision("m", (Message(Role.USER, (TextPart(text),)),), questions)


@pytest.mark.parametrize("prefill", PREFILLS)
async def test_labels_are_tokens(model, prefill):
    labels = LabelTokens(model.engine, END + prefill)
    for known in (LETTERS, YES_NO, DIGITS):
        tokens = await labels.of(known)
        assert all(tokens)
        assert len({token for own in tokens for token in own}) == sum(map(len, tokens))
    texts = await model.token_texts([token for own in await labels.of(("A", "yes")) for token in own])
    assert {text.strip() for text in texts} <= {"A", "yes", "Yes", "YES"}


async def test_there_are_labels_of_two_letters(model):
    pairs = await LabelTokens(model.engine, END + "(").pairs()
    assert len(pairs) >= 255
    assert {*pairs} <= {*PAIRS}


async def test_an_answer_is_the_same_in_any_company(model):
    text = "Charged twice, nobody answers."
    cold = await model.decide(about(text, TEAM, URGENT, ANGRY))
    warm = await model.decide(about(text, TEAM, URGENT, ANGRY))
    await model.decide(about("Something else.", ANGRY))
    backward = await model.decide(about(text, ANGRY, URGENT, TEAM))
    (alone,) = (await model.decide(about(text, URGENT))).verdicts
    assert cold.verdicts == warm.verdicts == backward.verdicts[::-1]
    assert cold.verdicts[1] == alone
    assert cold.prompt_tokens == warm.prompt_tokens
    for verdict in cold.verdicts:
        assert sum(verdict.probabilities) == pytest.approx(1)
        assert 0.1 < verdict.label_mass < 1
        assert not verdict.truncated
