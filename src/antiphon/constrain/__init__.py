"""What an engine may be asked to enforce: tool choice, tool schemas and format, in the model's own format."""
