"""Real templates: each shows a question as it is, and lets the answer begin at once."""

from msgspec.structs import replace

from antiphon.core.errors import AntiphonError
from antiphon.model_tables import ModelSettings
from antiphon.run.loading import ServedModel
from tests.decide.engines import DecidingEngine
from tests.real_templates import marks, real_templates
from tests.run.test_decisions import EVEN, decision, log, prompts_in

pytestmark = marks

QUESTION = "\n\nQuestion: Which team?\nA: billing\nB: shipping\nAnswer with the letter only."
OTHERS = {"fireworks-ai-llama-3-firefunction-v2", "google-translategemma-4b-it", "muse-glimmer"}
"""Those that cannot show a message of a user, or cannot be loaded without more facts of the model."""
OPENS = ("<think>", "<seed:think>", "<mm:think>", "[THINK]", "<|START_THINKING|>", "<|inner_prefix|>")
CLOSES = ("</think>", "</seed:think>", "</mm:think>", "[/THINK]", "<|END_THINKING|>", "<|inner_suffix|>")


async def test_every_template_shows_questions_and_reasoning_is_closed():
    wrong = []
    templates = {name: source for name, source in real_templates().items() if name not in OTHERS}
    for name, template in templates.items():
        engine = DecidingEngine(lambda _: log(EVEN))
        engine.card = replace(engine.card, chat_template=template, name=name, known_as=(name,), bos="<s>")
        try:
            model = await ServedModel(engine, ModelSettings(decision_prefill="(")).load()
            await model.decide(decision(orders=1))
        except AntiphonError as error:
            wrong.append((name, error.message))
            continue
        prompt = prompts_in(engine)[0]
        end = prompt.rpartition(QUESTION)[2]
        closed = max(map(end.rfind, CLOSES)) >= max(map(end.rfind, OPENS))
        if QUESTION not in prompt or not end.endswith("(") or not closed:
            wrong.append((name, end))
    assert wrong == []
