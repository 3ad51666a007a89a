"""Guard models: what they are asked, what they write, and what it means. Pure: no engine, no await."""
