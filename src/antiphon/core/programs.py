"""Programs of models that call tools: what a program calls, and how one goes on in a later request.

A program runs until it needs results. It is never kept for them: it is run again from its beginning with the
results so far, and calls the same with the same, because its time and its random numbers are fixed. So all
that is needed to go on with it is in the items of the conversation.
"""

from hashlib import sha256

from msgspec import Struct

from antiphon.core.items import FunctionCall

PROGRAMS = "programmatic_tool_calling"
"""The type of the tool that runs programs, and the model's name of it."""


class CallOutcome(Struct, frozen=True):
    """What a call of a program has returned; a `failed` one raises its text in the program."""

    text: str
    failed: bool = False


class RecordedCall(Struct, frozen=True):
    """A call that a program has made before, with `arguments` as JSON."""

    name: str
    arguments: str
    outcome: CallOutcome


class UnfinishedProgram(Struct, frozen=True):
    """A program of an earlier answer, from whose client all results are here that it waits for.

    `call` is the model's, `calls` are those of the program in their order. `clock` is its time, in seconds.
    """

    call: FunctionCall
    calls: tuple[RecordedCall, ...]
    clock: int


def seed_of(program: str) -> str:
    """The seed of a program, from the id of its call: the same in each API, of which some change a prefix."""
    return program.removeprefix("call_")


def id_of_call(program: str, number: int) -> str:
    """The id of a call of the program with this id, by its number: the same in each run."""
    return f"call_{sha256(f'{seed_of(program)} {number}'.encode()).hexdigest()[:24]}"


def fingerprint(code: str, clock: int) -> str:
    """The fingerprint of a program: its time, and a digest, by which its code is recognized."""
    return f"py1_{clock:x}_{sha256(code.encode(errors='surrogatepass')).hexdigest()[:32]}"


def clock_of(code: str, print_: str) -> int | None:
    """The time of a program, from its fingerprint; None if that is not the fingerprint of this code."""
    _, _, rest = print_.partition("py1_")
    digits = rest.partition("_")[0]
    try:
        clock = int(digits[:12], 16)
    except ValueError:
        return None
    return clock if fingerprint(code, clock) == print_ else None
