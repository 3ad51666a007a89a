"""How calls of the server's tools are shown: a presenter for each type of tool, or the default one."""
