"""Use a provider that only takes conversations: state, and tools that run on the server, are Antiphon's.

antiphon serve https://openrouter.ai/api/v1 --upstream-model ORG/MODEL --code-interpreter
python examples/provider.py "What is 123456789 * 987654321?"
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

python = {"type": "code_interpreter", "container": {"type": "auto"}}
first = client.responses.create(model=model, input=question, tools=[python])
for item in first.output:
    if item.type == "code_interpreter_call":
        print(item.code, *(f"-> {output.logs.strip()}" for output in item.outputs or ()), sep="\n")
print(first.output_text)

# The provider has forgotten it: Antiphon sends the whole conversation.
again = client.responses.create(model=model, input="What was my question?", previous_response_id=first.id)
print(again.output_text)
