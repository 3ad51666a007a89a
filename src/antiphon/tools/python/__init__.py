"""`code_interpreter` with a whole Python: programs in a sandbox, in containers that outlast an answer."""
