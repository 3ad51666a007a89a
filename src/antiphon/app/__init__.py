"""What the server does for its clients, without HTTP: use cases, journals, the log writer, the worker."""
