"""Let the model run commands on your own machine: it asks for them, and the program decides.

antiphon serve MODEL      # a model that knows how to call functions
python examples/own_shell.py "What does echo say to 'antiphon'?"
"""

import os
import shlex
import subprocess
import sys

from errors import in_words
from openai import OpenAI

sys.excepthook = in_words

ALLOWED = {"date", "echo", "ls", "pwd", "uname"}

client = OpenAI(
    base_url=os.environ.get("ANTIPHON_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("ANTIPHON_API_KEY", "none"),
)
model = client.models.list().data[0].id
question = " ".join(sys.argv[1:]) or "What does echo say to 'antiphon'?"
tools = [{"type": "shell", "environment": {"type": "local"}}]


def run(command: str) -> dict:
    """The output of a command, and its outcome."""
    words = shlex.split(command)
    if not words or words[0] not in ALLOWED:
        ended = {"type": "exit", "exit_code": 126}
        return {"stdout": "", "stderr": f"Only {', '.join(sorted(ALLOWED))} may be run.", "outcome": ended}
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    ended = {"type": "exit", "exit_code": done.returncode}
    return {"stdout": done.stdout, "stderr": done.stderr, "outcome": ended}


response = client.responses.create(model=model, input=question, tools=tools)
while calls := [item for item in response.output if item.type == "shell_call"]:
    outputs = []
    for call in calls:
        results = [run(command) for command in call.action.commands]
        for command, result in zip(call.action.commands, results, strict=True):
            print(f"$ {command}\n{result['stdout']}{result['stderr']}", end="")
        outputs.append({"type": "shell_call_output", "call_id": call.call_id, "output": results})
    response = client.responses.create(
        model=model, input=outputs, previous_response_id=response.id, tools=tools
    )
print(response.output_text)
