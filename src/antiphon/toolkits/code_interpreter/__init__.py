"""`code_interpreter`: models run Python, in Monty, which is a sandbox by itself, or whole, in containers."""

from dataclasses import KW_ONLY, dataclass

from antiphon.core.errors import AntiphonError, needing_extra
from antiphon.toolkits.code_interpreter.details import TYPE, ProgramDetails
from antiphon.toolkits.code_interpreter.message_view import CodeMessageView
from antiphon.toolkits.code_interpreter.presenter import CodePresenter
from antiphon.toolkits.options import ServerParts
from antiphon.toolkits.toolkit import Toolkit
from antiphon.tools.tool import ServerTool


@dataclass(frozen=True)
class Options:
    """The options of the tool."""

    _: KW_ONLY

    code_interpreter: bool = False
    """Run Python for models that ask for it, in a sandbox (needs the extra `code-interpreter`)."""

    python: str | None = None
    """The command of a Python interpreter, to run complete Python with its libraries for models that ask for
    the code interpreter, in containers that clients can name: /opt/science/bin/python. It replaces that of
    --code-interpreter."""

    python_sandbox: str | None = None
    """The command that makes a sandbox for --python, whose command is appended to it. Without one,
    Bubblewrap is used."""

    def open(self, server: ServerParts) -> ServerTool | None:
        if self.python is not None:
            from antiphon.toolkits.code_interpreter.sandbox import Sandbox  # noqa: PLC0415
            from antiphon.toolkits.code_interpreter.whole_python import (  # noqa: PLC0415
                Interpreters,
                PythonInterpreter,
            )

            sandbox = Sandbox(self.python, self.python_sandbox, server.limits)
            return PythonInterpreter(Interpreters(sandbox, server.limits, server.containers))
        if self.python_sandbox is not None:
            raise AntiphonError(
                "--python-sandbox has no effect without --python COMMAND. Give both, or none."
            )
        if not self.code_interpreter:
            return None
        with needing_extra("--code-interpreter", "code-interpreter"):
            from antiphon.toolkits.code_interpreter.monty import CodeInterpreter  # noqa: PLC0415
        return CodeInterpreter()


TOOLKIT = Toolkit(
    type=TYPE,
    options=Options,
    remedy="Start it with --code-interpreter.",
    presenter=CodePresenter,
    message_view=CodeMessageView(),
    details=(ProgramDetails,),
)
