"""One request for an answer, whichever API it came through."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from antiphon.core.items import Item


class Function(Struct, frozen=True):
    """A function that the model may call. `parameters` is a JSON Schema, `{}` if it takes none."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = {}
    strict: bool | None = None


class Sampling(Struct, frozen=True):
    """How tokens are drawn. None leaves a value to the engine's default.

    `temperature` ≥ 0 (0 is greedy), `top_p` in (0, 1], penalties in [-2, 2],
    `max_tokens` counts every generated token, thoughts included.
    """

    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None


class Turn(Struct, frozen=True):
    """What a client asked for.

    `calls` says whether the model may call `tools`; with False they are not
    shown to it, and a call that it makes all the same is not shown to the
    client. `stop` strings end the visible text. `choices` is how many
    independent answers are wanted. `variables` go to the chat template.
    `owner` is the identity behind the request: what is stored belongs to it.
    """

    model: str
    items: tuple[Item, ...]
    tools: tuple[Function, ...] = ()
    calls: bool = True
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()
    choices: int = 1
    variables: Mapping[str, Any] = {}
    owner: str = ""
