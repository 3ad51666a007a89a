"""What a toolkit is: a tool that the server runs, with all that belongs to it.

A toolkit is a package here, or a module of another package, that has a `TOOLKIT`: the tool and its options,
how its calls are shown in each API, and what is stored of its results. There is no list to add it to.

To add items of its own for a tool's calls, instead of `mcp_call`: a `Presenter`
(`apis/responses/presenters/presenter.py`) in its toolkit, with the `details` of results that it shows; for
Messages a `ToolView` (`apis/messages/server_tools.py`). Tests: `tests/apis/responses/`,
`tests/http/test_server_tools.py`.
"""

from msgspec import Struct

from antiphon.apis.messages.server_tools import ToolView
from antiphon.apis.responses.presenters.generic import GenericPresenter
from antiphon.apis.responses.presenters.presenter import Presenter
from antiphon.toolkits.options import ToolOptions


class Toolkit(Struct, frozen=True, kw_only=True):
    """A tool of this `type`, which clients may also request as one of its `aliases`.

    `remedy` says how a server gets the tool that has not got it. Calls are shown by a `presenter` in the
    Responses API, and by a `message_view` in the Messages API, or as those of any tool. `details` are the
    types of the details of results: tagged structs, whose tags no other toolkit has.
    """

    options: type[ToolOptions]
    remedy: str
    aliases: tuple[str, ...] = ()
    presenter: type[Presenter] = GenericPresenter
    message_view: ToolView | None = None
    details: tuple[type[Struct], ...] = ()
    type: str
