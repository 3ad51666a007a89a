"""What a server gives its tools, for those that need nothing of it."""

from typing import Any

from antiphon.toolkits.options import ServerParts

NOTHING: Any = None
PARTS = ServerParts(NOTHING, NOTHING)
