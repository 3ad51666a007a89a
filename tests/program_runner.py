"""Runs Python programs for tests, each in a process that is forked from one: `python program_runner.py MODULE…`.

That one has imported the modules, which takes longer than most programs run. A line of standard input is a job: the
arguments of Python, the environment, and the files for what is printed. The line that answers it is the exit code.
"""

import gc
import importlib
import json
import os
import runpy
import sys
from pathlib import Path

sys.path.append(os.getcwd())  # as for `python -m`
for module in sys.argv[1:]:
    importlib.import_module(module)
sys.path.pop()
gc.freeze()  # the end of each process is not for looking at what it was forked with
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()

# At the top of the process, as in any other: what a program raises gets to its own `sys.excepthook`.
for descriptor, file in enumerate((os.devnull, job["out"], job["err"])):
    os.dup2(os.open(file, os.O_RDWR), descriptor)
os.environ.clear()
os.environ.update(job["env"])
program, *arguments = job["command"]
sys.stdin = open(0)  # noqa: SIM115 - the old one has read ahead
if program == "-c":
    sys.argv = ["-c", *arguments[1:]]
    exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
elif program == "-m":
    sys.argv = arguments
    sys.path[:1] = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
else:
    sys.argv, sys.path[0] = [program, *arguments], str(Path(program).parent)
    runpy.run_path(program, run_name="__main__")
