"""Start a background response, disconnect in the middle, read on; then cancel another one.

antiphon serve
python examples/background_resume.py
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

response_id, last = "", -1
with client.responses.create(
    model=model, input="Tell me a story.", background=True, stream=True, max_output_tokens=200
) as events:
    for event in events:
        last = event.sequence_number
        if event.type == "response.created":
            response_id = event.response.id
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
            break  # disconnect: the server continues

with client.responses.retrieve(response_id, stream=True, starting_after=last) as events:
    for event in events:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
print()

other = client.responses.create(model=model, input="Count to a million.", background=True)
print(f"at first {other.status}, then {client.responses.cancel(other.id).status}")
