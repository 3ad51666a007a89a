"""How the arguments of calls are read and written, format by format."""
