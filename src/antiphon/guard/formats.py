"""The formats of guard models: one table.

A guard reads a conversation by its own chat template, which has its task and its policy, and writes a verdict
on the last message. A format says which texts the verdict consists of, and which of OpenAI's categories those
of the guard are. A category of the guard that OpenAI does not have keeps its name.

Sources: the model cards of Llama Guard 2, 3 and 4 (Meta), Qwen3Guard-Gen (Qwen) and ShieldGemma (Google).
Models without a format are asked about each category by a decision (`DECISIONS`).

To add a format: an entry of `FORMATS`; its answers in `tests/guard/test_verdicts.py`, and a model of it in
`tests/http/test_moderation.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct


class GuardCategory(Struct, frozen=True):
    """A category as the guard writes it, and the `names` of categories in results."""

    label: str
    names: tuple[str, ...]


class Policy(Struct, frozen=True):
    """A question to a guard that judges one policy at a time.

    `variables` are those of its chat template that put the question; a violation is one of the `names`.
    """

    variables: Mapping[str, Any]
    names: tuple[str, ...]


class GuardFormat(Struct, frozen=True):
    """What a guard writes.

    The verdict is one of `words`, after the text `before`; each word has a weight: 1 is unsafe, 0 is safe. In
    an unsafe verdict the labels of `categories` follow the text `listed_after`, with commas between them.
    `read_after` are the texts after which the verdict is the next token: the one that fits the model is the
    one after which it most probably says a word. `category_after` is such a text for the first category, and
    `category_prefix` the part of each label that it has already.

    With `policies` each text is judged once for each of them, and categories are not written.

    `families` are parts of the names of its models.
    """

    name: str
    families: tuple[str, ...]
    words: Mapping[str, float]
    before: str = ""
    listed_after: str = "\n"
    categories: tuple[GuardCategory, ...] = ()
    read_after: tuple[str, ...] = ("",)
    category_after: str = ""
    category_prefix: str = ""
    policies: tuple[Policy, ...] = ()

    @property
    def names(self) -> Sequence[str]:
        """All categories that results of this format tell of."""
        own = (name for category in self.categories for name in category.names)
        asked = (name for policy in self.policies for name in policy.names)
        return [*dict.fromkeys((*own, *asked))]


def _category(label: str, *names: str) -> GuardCategory:
    return GuardCategory(label, names)


def _policy(guideline: str, *names: str) -> Policy:
    return Policy({"guideline": guideline}, names)


LLAMA_GUARD = GuardFormat(
    "llama-guard",
    families=("llama-guard", "llamaguard", "llama_guard"),
    words={"safe": 0.0, "unsafe": 1.0},
    categories=(
        _category("S1", "violence", "illicit/violent"),
        _category("S2", "illicit"),
        _category("S3", "sexual", "illicit"),
        _category("S4", "sexual/minors"),
        _category("S5", "defamation"),
        _category("S6", "specialized-advice"),
        _category("S7", "privacy"),
        _category("S8", "intellectual-property"),
        _category("S9", "illicit/violent", "indiscriminate-weapons"),
        _category("S10", "hate"),
        _category("S11", "self-harm"),
        _category("S12", "sexual"),
        _category("S13", "elections"),
        _category("S14", "code-interpreter-abuse"),
    ),
    read_after=("", "\n\n"),
    category_after="unsafe\nS",
    category_prefix="S",
)

QWEN_GUARD = GuardFormat(
    "qwen3guard",
    families=("qwen3guard", "qwen-guard", "qwenguard"),
    words={"safe": 0.0, "controversial": 0.5, "unsafe": 1.0},
    before="Safety:",
    listed_after="Categories:",
    categories=(
        _category("Violent", "violence", "illicit/violent"),
        _category("Non-violent Illegal Acts", "illicit"),
        _category("Sexual Content or Sexual Acts", "sexual"),
        _category("PII", "privacy"),
        _category("Personally Identifiable Information", "privacy"),
        _category("Suicide & Self-Harm", "self-harm"),
        _category("Unethical Acts", "hate", "harassment"),
        _category("Politically Sensitive Topics", "politically-sensitive"),
        _category("Copyright Violation", "intellectual-property"),
        _category("Jailbreak", "jailbreak"),
    ),
    read_after=("Safety:",),
    category_after="Safety: Unsafe\nCategories:",
)

SHIELD_GEMMA = GuardFormat(
    "shieldgemma",
    families=("shieldgemma", "shield-gemma"),
    words={"no": 0.0, "yes": 1.0},
    policies=(
        _policy(
            '"No Dangerous Content": The prompt shall not contain or seek generation of content that harms '
            "oneself and/or others (e.g., accessing or building firearms and explosive devices, promotion of "
            "terrorism, instructions for suicide).",
            *("illicit/violent", "self-harm/instructions"),
        ),
        _policy(
            '"No Harassment": The prompt shall not contain or seek generation of content that is malicious, '
            "intimidating, bullying, or abusive content targeting another individual (e.g., physical "
            "threats, denial of tragic events, disparaging victims of violence).",
            "harassment",
        ),
        _policy(
            '"No Hate Speech": The prompt shall not contain or seek generation of content that expresses, '
            "incites, spreads, promotes, or justifies hatred, violence against, or serves to dehumanize "
            "people based on identity and/or protected attributes.",
            "hate",
        ),
        _policy(
            '"No Sexually Explicit Information": The prompt shall not contain or seek generation of content '
            "that contains references to sexual acts, or other lewd content (e.g., sexually graphic "
            "descriptions, content aimed at causing arousal).",
            "sexual",
        ),
    ),
)

FORMATS: Mapping[str, GuardFormat] = {form.name: form for form in (LLAMA_GUARD, QWEN_GUARD, SHIELD_GEMMA)}
"""Name → format."""

DECISIONS = "decisions"
"""The name for models without a format: any model that decides."""

DEFINITIONS: Mapping[str, str] = {
    "harassment": "does it insult, bully or demean somebody?",
    "harassment/threatening": "does it harass somebody, and threaten violence?",
    "hate": "does it promote hatred of people for their race, gender, religion, origin or the like?",
    "hate/threatening": "does it promote such hatred, and threaten violence?",
    "illicit": "does it ask for, or give, advice on how to do something illegal?",
    "illicit/violent": "does it ask for, or give, advice on violent crimes, or on getting weapons?",
    "self-harm": "does it depict or encourage self-harm, such as suicide or eating disorders?",
    "self-harm/instructions": "does it give instructions for self-harm?",
    "self-harm/intent": "does its author intend to harm themselves?",
    "sexual": "is it meant to arouse sexually?",
    "sexual/minors": "does it sexualise somebody below 18 years?",
    "violence": "does it depict death, violence or injuries?",
    "violence/graphic": "does it depict them in graphic detail?",
}
"""OpenAI's category → the question about a text, for `DECISIONS`."""


def format_of(names: Sequence[str]) -> str:
    """The name of the format of a model with these names: titles, file, what it is called here."""
    said = " ".join(names).lower()
    for form in FORMATS.values():
        if any(family in said for family in form.families):
            return form.name
    return DECISIONS
