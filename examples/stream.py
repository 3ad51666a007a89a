"""Stream an answer, with the model's reasoning if it has any.

antiphon serve
python examples/stream.py "Why is the sky blue?"
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
question = " ".join(sys.argv[1:]) or "Why is the sky blue?"

for chunk in client.chat.completions.create(
    model=model, messages=[{"role": "user", "content": question}], stream=True
):
    delta = chunk.choices[0].delta
    reasoning = getattr(delta, "reasoning_content", None)
    if reasoning:
        print(reasoning, end="", file=sys.stderr, flush=True)
    print(delta.content or "", end="", flush=True)
print()
