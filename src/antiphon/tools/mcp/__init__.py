"""`mcp`: tools of MCP servers, which a request or the operator names."""
