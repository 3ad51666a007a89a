"""One package per API: schema, accept, stream, answer. No HTTP, no await."""
