"""Sandboxes for tests: Pythons that this machine can run in Bubblewrap, and attempts to get out of one.

To add an attempt to get out of a sandbox: `ATTEMPTS`. It is tried on whole Python and on the shell command of
the documents.
"""

import sys
from base64 import b64encode
from functools import cache

import pytest

from antiphon.core.errors import ToolError
from antiphon.core.limits import Limits
from antiphon.toolkits.code_interpreter.sandbox import Sandbox
from tests.media import png


@cache
def python_in_bubblewrap() -> str | None:
    """A Python that runs in Bubblewrap here, or why there is none."""
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            Sandbox(python, None, Limits())
        except ToolError:
            continue
        return python
    return None


needs_bubblewrap = pytest.mark.skipif(
    python_in_bubblewrap() is None, reason="bubblewrap is not there, or may not make namespaces"
)


FIGURE = f"""
import base64, sys, types
class Figure:
    def savefig(self, name): open(name, "wb").write(base64.b64decode({b64encode(png())!r}))
pyplot = types.SimpleNamespace(get_fignums=lambda: [1], figure=lambda number: Figure(), close=lambda what: None)
sys.modules["matplotlib.pyplot"] = pyplot
"""
"""Keeps a figure open, with a replacement for matplotlib, which is not everywhere."""

ATTEMPTS = {
    "a file of the machine": "open('/etc/passwd').read(); print('O' 'UT')",
    "a file of the server": "import glob; print('O' 'UT') if glob.glob('/home/*') + glob.glob('/' 'root' '/*') else 0",
    "a link to the machine": "import os; os.symlink('/etc/passwd', 'link'); open('link').read(); print('O' 'UT')",
    "writing to the interpreter": "open('/usr/lib/own', 'w'); print('O' 'UT')",
    "writing to the root": "open('/own', 'w'); print('O' 'UT')",
    "writing to devices": "open('/dev/own', 'w'); print('O' 'UT')",
    "a network": "import socket; socket.create_connection(('1.1.1.1', 53), 1); print('O' 'UT')",
    "a name": "import socket; socket.getaddrinfo('example.org', 80); print('O' 'UT')",
    "the server's own network": ("import socket; print('O' 'UT') if len(socket.if_nameindex()) > 1 else 0"),
    "processes of the machine": (
        "import os; print('O' 'UT') if len([n for n in os.listdir('/proc') if n.isdigit()]) > 12 else 0"
    ),
    "the server's environment": (
        "print('O' 'UT') if b'ANTIPHON' in open('/proc/1/environ', 'rb').read() else 0"
    ),
    "signals to the server": "import os; os.kill({server}, 9); print('O' 'UT')",
    "another user": "import os; os.setuid(1); print('O' 'UT')",
    "mounts": (
        "import ctypes; print('O' 'UT') if ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, 0) == 0 else 0"
    ),
    "namespaces": ("import ctypes; print('O' 'UT') if ctypes.CDLL(None).unshare(0x10000000) == 0 else 0"),
    "the root of the machine": "print('O' 'UT') if __import__('os').listdir('/proc/1/root' '/root') else 0",
}
"""What is tried -> Python that prints OUT if it works."""
