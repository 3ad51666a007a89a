"""Rankings as decisions: whether a document answers a query, as a question about the query."""

from collections.abc import Iterable

from antiphon.core.decision import Decision, Option, Question, QuestionKind
from antiphon.core.items import Message, Role, TextPart


def relevance(query: str, documents: Iterable[str]) -> Decision:
    """The decision about each of the documents, whether it answers the query."""
    return Decision(
        model="",
        items=(Message(Role.USER, (TextPart(f"Query: {query}"),)),),
        questions=tuple(map(_question, documents)),
        parameters={"conversation": "query"},
    )


def _question(document: str) -> Question:
    instructions = f"Does this document answer the query?\n\n{document}\n"
    return Question(
        QuestionKind.PREDICATE, (TextPart(instructions),), (Option(""), Option("")), source="documents"
    )
