"""All dialects by name: those that are assigned in the modules of this package."""

from importlib import import_module
from pkgutil import iter_modules

from antiphon import dialects
from antiphon.core.errors import EngineError
from antiphon.dialects.dialect import Dialect
from antiphon.dialects.response_template import builder as hf


def _assigned() -> list[Dialect]:
    """Every dialect that a module of this package assigns, once, by canonical name."""
    names = [module.name for module in iter_modules(dialects.__path__)]
    modules = [import_module(f"{dialects.__name__}.{name}") for name in names if name not in _NOT_FAMILIES]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, Dialect)]
    return sorted({dialect.names[0]: dialect for dialect in found}.values(), key=lambda each: each.names)


_NOT_FAMILIES = frozenset({"dialect", "registry", "detection", "response_template"})

DIALECTS: tuple[Dialect, ...] = tuple(_assigned())

BY_NAME = {name: dialect for dialect in DIALECTS for name in dialect.names}


def check(name: str) -> None:
    """Raise EngineError if there is no dialect of that name. Whether a model supports `hf` is not checked."""
    for part in name.split("+"):
        if part not in hf.NAMES:
            find(part)


def find(name: str, template: str | None = None) -> Dialect:
    """The dialect of that name, or `A+B`: the reasoning of A with the calls of B.

    `template` is the model's `response_template`, from which `hf` is built. Raises
    EngineError with a list of all names.
    """
    reasoning, plus, calls = name.partition("+")
    if plus:
        return find(calls, template).with_reasoning_of(find(reasoning, template))
    if name in hf.NAMES:
        return hf.build(template)
    if name not in BY_NAME:
        names = ", ".join(sorted((*BY_NAME, *hf.NAMES)))
        raise EngineError(f"There is no dialect '{name}'. Use one of: {names}.")
    return BY_NAME[name]
