"""The details of the last answers, in memory, where the server keeps any."""

import time
from collections import OrderedDict
from collections.abc import Iterator

from msgspec import Struct, field

from antiphon.core.observation import Observation
from antiphon.run.recording import GenerationRecord


class AnswerRecord(Struct):
    """The record of one answer: the observation of its request, and its generations in their order."""

    observation: Observation
    created_at: float = field(default_factory=time.time)
    generations: list[GenerationRecord] = field(default_factory=list)


class AnswerRecords:
    """Those of all owners. An owner is a key, so there are not many."""

    def __init__(self) -> None:
        self._of: dict[str, OrderedDict[int, AnswerRecord]] = {}  # by owner and the identity of observations

    def add(self, observation: Observation, limit: int, owner: str, generation: GenerationRecord) -> None:
        """Add a generation to the answer that `observation` is of. Only the last `limit` of an owner stay."""
        records = self._of.setdefault(owner, OrderedDict())
        record = records.setdefault(id(observation), AnswerRecord(observation))
        record.generations.append(generation)
        if len(records) > limit:
            records.popitem(last=False)

    def find(self, owner: str, answer_id: str) -> AnswerRecord | None:
        """The last answer of this id, or to a request of this id."""
        for record in self.last(owner):
            if answer_id in (record.observation.answer, record.observation.request_id):
                return record
        return None

    def last(self, owner: str) -> Iterator[AnswerRecord]:
        """Those of an owner, the last first."""
        yield from reversed(self._of.get(owner, {}).values())
