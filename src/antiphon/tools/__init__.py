"""What a turn may call on the server: tools behind one protocol."""
