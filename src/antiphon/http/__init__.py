"""The only place that knows Starlette."""
