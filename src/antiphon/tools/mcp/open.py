"""The tool `mcp`, as the operator's options describe it."""

from collections.abc import Callable, Sequence

import httpx2

from antiphon.core.limits import Limits
from antiphon.tools.mcp.connection import Network, Target
from antiphon.tools.mcp.servers import OperatorServer
from antiphon.tools.mcp.settings import ApprovalFilter, Policy, ToolFilter
from antiphon.tools.mcp.tables import McpServer, ToolNames, expand_variables
from antiphon.tools.mcp.tool import Mcp
from antiphon.tools.web.guard import GuardedTransport, look_up, public


def open_mcp(
    tables: Sequence[McpServer], hosts: Sequence[str], limits: Limits, owner_of: Callable[[str], str]
) -> Mcp:
    """The tool with the operator's servers; requests may name servers on these hosts.

    `owner_of` returns the identity of the users of an API key.
    """
    network = Network(GuardedTransport(public, look_up), httpx2.AsyncHTTPTransport(trust_env=False))
    return Mcp(network, [_server(table, owner_of) for table in tables], hosts, limits)


def _server(table: McpServer, owner_of: Callable[[str], str]) -> OperatorServer:
    target = Target(
        table.label,
        table.url,
        expand_variables(table.headers),
        table.words,
        expand_variables(table.environment),
        trusted=True,
    )
    approval = table.require_approval
    if isinstance(approval, ToolNames):
        filters = (
            None if names is None else ToolFilter(names) for names in (approval.always, approval.never)
        )
        policy = Policy(approval=ApprovalFilter(*filters))
    else:
        policy = Policy(approval=approval)
    if table.allowed_tools is not None:
        policy = Policy(ToolFilter(table.allowed_tools), policy.approval)
    owners = frozenset(map(owner_of, table.keys))
    return OperatorServer(target, policy, owners, table.stateful, table.default, table.description)
