"""The differences between the versions of vLLM: one module for each, behind one protocol, see `version`."""
