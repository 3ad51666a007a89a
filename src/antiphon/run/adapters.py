"""Which LoRA adapters a generation gets: that of the model's name, and those that the request names.

A request may name adapters in addition to its model (`lora`): by their names, or by their numbers, which are
their places among those that are loaded. An adapter that is a model of its own is used only with a key that
may use that model.
"""

from collections.abc import Callable, Sequence

from antiphon.core.errors import RequestError
from antiphon.core.turn import Adapter


def adapters_for(
    requested: Sequence[Adapter], names: Sequence[str], own: str | None, may_use: Callable[[str], bool]
) -> tuple[Adapter, ...]:
    """The adapters with an effect, by their names, in the order of `names`, which are those of the model.

    `own` is that of the model's name, which has the scale 1 if it is not among the `requested` ones. Raises
    RequestError.
    """
    scales: dict[str, float] = {}
    for adapter in requested:
        name = name_of(adapter.name, names)
        if name is None or not may_use(name):  # the same words for both: keys do not show what there is
            known = ", ".join(f"{number} ({name})" for number, name in enumerate(names) if may_use(name))
            there_are = f"There are: {known}." if known else "It has none."
            message = f"The model has no adapter {adapter.name!r:.80}. {there_are}"
            raise RequestError(message, param="lora", code="adapter_not_found")
        if name in scales:
            raise RequestError(f"'lora' names the adapter '{name}' twice. Send one scale.", param="lora")
        scales[name] = adapter.scale
    if own is not None:
        scales.setdefault(own, 1.0)
    return tuple(Adapter(name, scales[name]) for name in names if scales.get(name))


def name_of(adapter: str | int, names: Sequence[str]) -> str | None:
    """The name of an adapter of the model; None if it has no such adapter."""
    if isinstance(adapter, int):
        return names[adapter] if 0 <= adapter < len(names) else None
    return adapter if adapter in names else None
