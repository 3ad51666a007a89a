"""Let the model run Python on the server: it writes a program, sees what it prints, and answers.

antiphon serve MODEL --code-interpreter      # a model that knows how to call functions
python examples/server_tools.py "What is 123456789 * 987654321?"
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
question = " ".join(sys.argv[1:]) or "What is 123456789 * 987654321?"

stream = client.responses.create(
    model=model,
    input=question,
    tools=[{"type": "code_interpreter", "container": {"type": "auto"}}],
    stream=True,
)
for event in stream:
    match event.type:
        case "response.code_interpreter_call_code.delta" | "response.output_text.delta":
            print(event.delta, end="", flush=True)
        case "response.output_item.done" if event.item.type == "code_interpreter_call":
            print("".join(f"\n-> {output.logs.strip()}" for output in event.item.outputs))
print()
