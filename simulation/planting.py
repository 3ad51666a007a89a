"""Puts faults into the source on purpose, and looks for simulations that find them."""

import argparse
import gc
import importlib
import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from simulation.world import silence

SEEDS = 2000
"""A fault has to be found within this number of simulations."""
TIMES = 3
"""The number of searches for each, from different seeds, to measure the time."""


class Fault(NamedTuple):
    """In a function of `file`, `right` is replaced by `wrong`.

    A law reports that in words that match `found`, a regular expression. It is searched in simulations
    with the features `wanted`, see `fits` of `world.py`.
    """

    file: str
    right: str
    wrong: str
    found: str
    wanted: tuple[str, ...] = ()


def plant(fault: Fault) -> None:
    """Put a fault into the running source.

    Raises ValueError unless there is exactly one such place, within a function.
    """
    module = importlib.import_module("antiphon." + fault.file.removesuffix(".py").replace("/", "."))
    path = str(module.__file__)
    text = Path(path).read_text(encoding="utf-8")
    if text.count(fault.right) != 1:
        raise ValueError(f"The fault in {fault.file} has to be described anew.")
    planted = text.replace(fault.right, fault.wrong)
    changed = dict(_functions(compile(planted, path, "exec")))
    if [*changed.values()] == [code for _, code in _functions(compile(text, path, "exec"))]:
        raise ValueError(f"The fault in {fault.file} has to be in a function.")
    gc.unfreeze()  # else what was made before a fork is not listed
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename == path:
            code = changed.get(each.__code__.co_qualname, each.__code__)
            if code.co_freevars == each.__code__.co_freevars:
                each.__code__ = code
    gc.freeze()


def _functions(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """The code of all functions in this code, by their qualified names."""
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const.co_qualname, const
            yield from _functions(const)


class Suite(NamedTuple):
    """The faults that one kind of simulation has to find. The file `known` has a seed for each."""

    faults: Mapping[str, Fault]
    known: Path
    simulate: Callable[[int], Any]
    fits: Callable[[Collection[str], int], bool]

    def search(self, fault: Fault, first: int) -> tuple[int, str]:
        """The seed from `first` on that finds a fault that is planted, and the violation; -1 if none does."""
        for seed in islice((seed for seed in count(first) if self.fits(fault.wanted, seed)), SEEDS):
            try:
                self.simulate(seed)
            except Exception as error:
                return seed, str(error)
        return -1, "not found"

    def known_seeds(self) -> dict[str, int]:
        """For each fault a seed that is known to find it."""
        if not self.known.exists():
            return {}
        seeds: dict[str, int] = json.loads(self.known.read_text(encoding="utf-8"))
        return seeds

    def _look(self, name: str, firsts: Sequence[int]) -> list[tuple[float, int, str]]:
        """For each of these seeds, the seconds and the result of a search from there on."""
        silence()
        plant(self.faults[name])
        results = []
        for first in firsts:
            before = time.process_time()
            seed, said = self.search(self.faults[name], first)
            results.append((time.process_time() - before, seed, said))
        return results

    def _look_apart(self, name: str, *firsts: int) -> list[tuple[float, int, str]]:
        """The same, in another process: a fault cannot be taken out again."""
        with get_context("fork").Pool(1) as pool:
            return pool.apply(self._look, (name, firsts))

    def measure(self, names: Iterable[str]) -> None:
        """Print for each fault after how many simulations, and seconds of a processor, it is found."""
        total, number = 0.0, 0
        for name in names:
            results = self._look_apart(name, *range(0, TIMES * SEEDS, SEEDS))
            seconds = sum(used for used, *_ in results) / TIMES
            total, number = total + seconds, number + 1
            tries = ", ".join("not" if seed < 0 else str(seed % SEEDS + 1) for _, seed, _ in results)
            print(f"{seconds:6.1f} s  {name}: found in simulation {tries}: {results[0][2][:120]}", flush=True)
            if wrong := [said for *_, said in results if not re.search(self.faults[name].found, said)]:
                print(f"          otherwise than expected: {wrong[0][:300]}")
        print(f"{number / total * 60:.0f} faults a minute of one processor")

    def update(self, names: Iterable[str]) -> None:
        """Look for other seeds, where the known ones do not find their faults any more."""
        known = self.known_seeds()
        for name in names:
            before = known.get(name, 0)
            [(_, seed, said)] = self._look_apart(name, before)
            if seed != before:
                [(_, seed, said)] = self._look_apart(name, 0)
            mark = "" if re.search(self.faults[name].found, said) else "OTHERWISE THAN EXPECTED: "
            print(f"{seed:6}  {name}: {mark}{said[:150]}", flush=True)
            known[name] = max(0, seed)
            written = {name: known[name] for name in self.faults if name in known}
            self.known.write_text(f"{json.dumps(written, indent=4)}\n", encoding="utf-8")

    def main(self, description: str | None) -> None:
        """Run the command line."""
        parser = argparse.ArgumentParser(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("beginning", nargs="?", default="", help="only faults whose names begin so")
        parser.add_argument("--update", action="store_true", help="write the known seeds anew")
        arguments = parser.parse_args()
        names = [name for name in self.faults if name.startswith(arguments.beginning)]
        (self.update if arguments.update else self.measure)(names)
