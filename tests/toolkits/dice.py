"""A complete toolkit in one file, as another package has it: `antiphon serve --tool tests.toolkits.dice`.

What it does, how its calls are shown in each API, what is stored of its results, and its options.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

from cyclopts.types import PositiveInt
from msgspec import Struct

from antiphon.apis.messages.server_tools import Seal, ToolView
from antiphon.apis.request_object import RequestObject
from antiphon.apis.responses.presenters.presenter import Presenter, output_item
from antiphon.apis.responses.tools import Toolbox
from antiphon.core.errors import RequestError
from antiphon.core.items import FunctionCall, Item, object_in
from antiphon.core.tool_result import OutputCallback, ToolResult, ignore_output
from antiphon.core.turn import Function, Hosted
from antiphon.toolkits.options import ServerParts
from antiphon.toolkits.toolkit import Toolkit
from antiphon.tools.tool import RequestedTool, ToolOffer

COLOUR = "dice_call.colour"
"""The value of `include` that adds the colour of dice."""


class Rolled(Struct, frozen=True, tag="rolled"):
    """What presenters are told of a roll."""

    eyes: int
    colour: str = "white"


class Dice:
    """Rolls a die: a request may have several, each with its own label."""

    type = "dice"
    aliases = ("dice_preview",)

    def __init__(self, eyes: int = 4) -> None:
        self.eyes = eyes
        self.opened: list[Mapping[str, Any]] = []

    async def offer(self, requested: RequestedTool) -> ToolOffer:
        label = requested.settings.get("label", "")
        if not isinstance(label, str):
            raise RequestError("Expected a string.", param=f"{requested.where}.label")
        hosted = Hosted("dice", "roll", label=label)
        return ToolOffer((Function("roll", "Rolls a die.", {"type": "object"}, hosted=hosted),))

    def open(self, requested: RequestedTool) -> "Cup":
        self.opened.append(requested.settings)
        return Cup(requested.settings.get("label", ""), self.eyes)

    async def close(self) -> None: ...


class Cup:
    """A session: it counts its rolls."""

    def __init__(self, label: str, eyes: int) -> None:
        self._label = label
        self._eyes = eyes
        self._rolls = 0

    async def run(
        self, action: str, arguments: Mapping[str, Any], on_output: OutputCallback = ignore_output
    ) -> ToolResult:
        self._rolls += 1
        text = f"roll {self._rolls}{self._label and ' of ' + self._label}: {self._eyes}"
        return ToolResult(text, Rolled(self._eyes))

    async def recall(self, action: str, arguments: Mapping[str, Any], result: ToolResult) -> None:
        self._rolls += 1

    async def close(self) -> None: ...


class DiceCall(Struct, tag_field="type", tag="dice_call", omit_defaults=True):
    """A roll, and what it came to."""

    id: str
    status: str
    sides: int | None
    eyes: int | None = None
    colour: str | None = None


class DicePresenter(Presenter):
    """Shows rolls in the Responses API, as items of a type of their own."""

    type = "dice_call"
    includes = (COLOUR,)

    @classmethod
    def read(cls, item: RequestObject, tools: Toolbox) -> Iterator[Item]:
        arguments = json.dumps({"sides": item.value.get("sides")})
        yield FunctionCall(item.text("id"), tools.offered("dice").name, arguments)
        yield output_item(item.text("id"), f"It was {item.value.get('eyes')}.")

    def item(self, status: str) -> DiceCall:
        sides = (object_in(self.text) or {}).get("sides")
        call = DiceCall(self.position.id, self.status_of(status), sides)
        if self.result is not None and isinstance(self.result.details, Rolled):
            call.eyes = self.result.details.eyes
            call.colour = self.result.details.colour if COLOUR in self.call.include else None
        return call


class DiceView(ToolView):
    """Shows rolls in the Messages API, as blocks of a name of their own."""

    type = "dice"
    implements = {"tabletop": None}  # noqa: RUF012 - of the class
    blocks = {"roll": "dice_roll"}  # noqa: RUF012

    def own_settings(self, tool: RequestObject) -> dict[str, Any]:
        return {"type": "dice", "label": tool.text_or_none("label") or ""}

    settings = (*ToolView.settings, "label")

    def content(self, name: str, result: ToolResult, seal: Seal) -> Any:
        eyes = result.details.eyes if isinstance(result.details, Rolled) else None
        return {"type": f"{name}_result", "eyes": eyes}

    def result_text(self, block: RequestObject, unseal: Any) -> str:
        return f"It was {block.value['content']['eyes']}."


@dataclass(frozen=True)
class Options:
    """The options of the tool."""

    _: KW_ONLY

    dice_eyes: PositiveInt = 4
    """What every die shows."""

    def open(self, server: ServerParts) -> Dice:
        return Dice(self.dice_eyes)


TOOLKIT = Toolkit(
    type="dice",
    options=Options,
    remedy="Start it with --tool tests.toolkits.dice.",
    aliases=("dice_preview",),
    presenter=DicePresenter,
    message_view=DiceView(),
    details=(Rolled,),
)
