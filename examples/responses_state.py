"""Let the server remember: go on from a response, and share a conversation.

antiphon serve
python examples/responses_state.py
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
options = {"model": client.models.list().data[0].id, "max_output_tokens": 200}

# Only new items are sent. Two responses may continue the same one: that is a fork.
first = client.responses.create(**options, input="My name is Ann, and my cat is called Tom.")
for question in ("What is my name?", "What is my cat called?"):
    answer = client.responses.create(**options, input=question, previous_response_id=first.id)
    print(f"{question} {answer.output_text}")

# A conversation collects input and output items.
conversation = client.conversations.create(metadata={"topic": "colours"})
client.responses.create(**options, input="Name a colour.", conversation=conversation.id)
client.responses.create(**options, input="And another one.", conversation=conversation.id)
for item in client.conversations.items.list(conversation.id, order="asc"):
    if item.type == "message":
        print(f"{item.role}: {item.content[0].text}")

client.conversations.delete(conversation.id)
