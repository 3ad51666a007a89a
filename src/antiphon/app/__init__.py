"""What the server does for its clients, without HTTP: use cases, and the parts of what is stored."""
