"""The tools that the server runs: each is a folder with all that belongs to it."""
