"""Stream an answer of a model that several servers run, and see which of them are there.

antiphon serve http://gpu1:8000 --replica http://gpu2:8000 --replica http://gpu3:8000
python examples/replicas.py "Tell me a story."

Stop one of the servers in the middle: another goes on with the answer, and one less is up.
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
question = " ".join(sys.argv[1:]) or "Tell me a story."

for chunk in client.chat.completions.create(
    model=model, messages=[{"role": "user", "content": question}], stream=True
):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()

health = client.get("../health", cast_to=object)
for name, state in health["models"].items():
    print(f"{name}: {state['status']}, {state.get('up', 1)} of {state.get('replicas', 1)} servers are up")
