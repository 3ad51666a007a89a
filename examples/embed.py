"""Find the text that is nearest to a question, by embeddings.

antiphon serve nomic-embed-text-v1.5.Q8_0.gguf
python examples/embed.py
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
texts = {"dogs.txt": "Dogs bark at strangers.", "cats.txt": "Cats purr when they are content."}

found = client.embeddings.create(model=model, input=["When do cats purr?", *texts.values()])
question, *vectors = [each.embedding for each in found.data]
scores = [sum(a * b for a, b in zip(question, vector, strict=True)) for vector in vectors]
for score, name in sorted(zip(scores, texts, strict=True), reverse=True):
    print(name, f"{score:.2f}")
