"""Watch what the model's programs print while they run on the server: commands of a shell, or Python.

antiphon serve MODEL --code-interpreter --shell COMMAND      # docs/tools.md has commands of sandboxes
python examples/watch_programs.py shell "Count to three, slowly."
python examples/watch_programs.py code_interpreter "Count to three."
"""

import os
import sys

from errors import in_words
from openai import OpenAI

sys.excepthook = in_words

client = OpenAI(
    base_url=os.environ.get("ANTIPHON_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("ANTIPHON_API_KEY", "none"),
)
model = client.models.list().data[0].id
kind = sys.argv[1] if len(sys.argv) > 1 else "shell"
question = " ".join(sys.argv[2:]) or "Count to three, slowly."
tool = {"type": kind, "container": {"type": "auto"}} if kind == "code_interpreter" else {"type": kind}

stream = client.responses.create(
    model=model,
    input=question,
    tools=[tool],
    include=["code_interpreter_call.logs"],  # the shell's output has events for everybody
    stream=True,
)
for event in stream:
    match event.type:
        case "response.shell_call_command.done":
            print(f"$ {event.command}")
        case "response.shell_call_output_content.delta":
            print(event.delta.stdout + event.delta.stderr, end="", flush=True)
        case "response.code_interpreter_call_code.done":
            print(f">>> {event.code}")
        case "response.code_interpreter_call_logs.delta" | "response.output_text.delta":
            print(event.delta, end="", flush=True)
print()
