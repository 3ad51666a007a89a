"""Where the core meets I/O: a turn, run to its end."""
