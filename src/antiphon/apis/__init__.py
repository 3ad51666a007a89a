"""One package per API: schema (requests), resource (answers), accept, stream, answer. No HTTP, no `await`."""
