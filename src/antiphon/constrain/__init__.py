"""Compiles constraints for engines: tool choice, tool schemas and format, in the model's own format."""
