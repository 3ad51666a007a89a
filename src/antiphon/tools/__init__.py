"""The server tools that a turn may call: implementations of one protocol."""
