"""How each kind of output item is written: the events from its beginning to its end."""
