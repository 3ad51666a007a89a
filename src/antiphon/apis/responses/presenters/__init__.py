"""How calls of server tools are shown: a presenter for each type of tool, or the default one."""
