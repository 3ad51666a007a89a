"""`mcp`: tools of MCP servers, which a request or the operator names.

To add a transport or a setting: `connection.py` reaches a server, `servers.py` keeps connections,
`settings.py` and `tables.py` read the settings of requests and of operators; `tests/tools/test_mcp.py` and
`tests/http/test_mcp.py`, with the servers of `tests/tools/mcp_tools.py`.
"""
