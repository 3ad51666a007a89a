"""What clients ask: prompts that begin alike, in the ways that real ones do.

All draw from one generator of random numbers, and tokens are numbers, so that a prompt costs little to make.
"""

from collections.abc import Callable, Mapping
from random import Random

from msgspec import Struct

from simulation.fleet.machine import answer_token


class Question(Struct, frozen=True):
    """A prompt, and the tokens of its answer; `owner` is who asks."""

    number: int
    ids: tuple[int, ...]
    length: int
    owner: str


class Workload:
    """Questions, one after the other. `new` makes tokens that no prompt had before."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self._number = 0
        self._next = 0

    def new(self, count: int) -> tuple[int, ...]:
        """Tokens that are nowhere else."""
        self._next += count
        return tuple(range(self._next - count, self._next))

    def question(self) -> Question:
        """The next one."""
        self._number += 1
        ids, length = self.draw(self._number)
        return Question(self._number, ids, length, f"key-{self.rng.randrange(3)}")

    def draw(self, number: int) -> tuple[tuple[int, ...], int]:
        """The tokens of a prompt, and the number of those of its answer."""
        raise NotImplementedError


class Unique(Workload):
    """Short prompts that have nothing in common."""

    def draw(self, number: int) -> tuple[tuple[int, ...], int]:
        return self.new(self.rng.randint(20, 60)), self.rng.randint(30, 50)


class SharedPrompt(Workload):
    """One system prompt for all, and a question."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._system = self.new(3_072)

    def draw(self, number: int) -> tuple[tuple[int, ...], int]:
        return self._system + self.new(self.rng.randint(50, 400)), self.rng.randint(20, 120)


class Contexts(Workload):
    """One of 150 contexts of 6,000 tokens, and a question of 1,200."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._contexts = [self.new(6_000) for _ in range(150)]

    def draw(self, number: int) -> tuple[tuple[int, ...], int]:
        return self.rng.choice(self._contexts) + self.new(1_200), 40


class Conversations(Workload):
    """Each turn has all that was said before. There are so many at a time; one that is long enough ends."""

    open, first, turn, answer, turns = 200, (300, 900), (20, 200), (40, 160), 8

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._open: list[tuple[tuple[int, ...], int]] = []

    def draw(self, number: int) -> tuple[tuple[int, ...], int]:
        place = self.rng.randrange(self.open)
        text, turns = self._open[place] if place < len(self._open) else ((), 0)
        text += self.new(self.rng.randint(*(self.turn if turns else self.first)))
        length = self.rng.randint(*self.answer)
        said = text + tuple(answer_token(number, index) for index in range(length))
        state = (said, turns + 1) if turns + 1 < self.turns else ((), 0)
        if place < len(self._open):
            self._open[place] = state
        else:
            self._open.append(state)
        return text, length


class Agents(Conversations):
    """Long conversations of programs: a hundred tokens are read for each that is written."""

    open, first, turn, answer, turns = 60, (2_000, 4_000), (200, 900), (30, 70), 12


WORKLOADS: Mapping[str, Callable[[Random], Workload]] = {
    "shared prompt": SharedPrompt,
    "conversations": Conversations,
    "agents": Agents,
    "contexts": Contexts,
    "unique": Unique,
}
