"""Let the model change files of yours: it writes what to change, and the program does it, in one folder.

antiphon serve MODEL      # a model that knows how to call functions
python examples/own_editor.py FOLDER "Write a haiku on rain to rain.txt."
"""

import os
import sys
from pathlib import Path

from errors import in_words
from openai import OpenAI

sys.excepthook = in_words

if len(sys.argv) < 2:
    sys.exit(__doc__)
client = OpenAI(
    base_url=os.environ.get("ANTIPHON_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("ANTIPHON_API_KEY", "none"),
)
model = client.models.list().data[0].id
folder = Path(sys.argv[1]).resolve()
question = " ".join(sys.argv[2:]) or "Write a haiku on rain to rain.txt."
tools = [{"type": "apply_patch"}]


def changed(text: str, diff: str) -> str:
    """The text with the new lines of a diff in the place of the old ones. Raises ValueError."""
    hunks: list[list[str]] = [[]]
    for line in diff.splitlines():
        if line.startswith("@@"):
            hunks.append([])
        else:
            hunks[-1].append(line)
    for hunk in hunks:
        old, new = ("".join(f"{line[1:]}\n" for line in hunk if line[:1] in kept) for kept in (" -", " +"))
        if old not in text:
            raise ValueError(f"These lines are not in the file:\n{old}")
        text = text.replace(old, new, 1)
    return text


def do(operation) -> str:
    """Change a file. Raises OSError and ValueError."""
    path = (folder / operation.path).resolve()
    if not path.is_relative_to(folder):
        raise ValueError(f"{operation.path} is not in this folder.")
    match operation.type:
        case "delete_file":
            path.unlink()
        case "create_file":
            path.write_text(changed("", operation.diff))
        case "update_file":
            path.write_text(changed(path.read_text(), operation.diff))
    print(f"-> {operation.type} {operation.path}")
    return "Done."


response = client.responses.create(model=model, input=question, tools=tools)
while calls := [item for item in response.output if item.type == "apply_patch_call"]:
    outputs = []
    for call in calls:
        try:
            status, output = "completed", do(call.operation)
        except (OSError, ValueError) as error:  # the model gets the error, and may try again
            status, output = "failed", str(error)
        outputs.append(
            {"type": "apply_patch_call_output", "call_id": call.call_id, "status": status, "output": output}
        )
    response = client.responses.create(
        model=model, input=outputs, previous_response_id=response.id, tools=tools
    )
print(response.output_text)
