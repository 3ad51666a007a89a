"""Put texts into the order in which they answer a question.

antiphon serve bge-reranker-v2-m3.gguf --task rank   # one that embeds does it, too
python examples/rerank.py
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
documents = [
    "This is why dogs bark.",
    "Trams run until midnight.",
    "Contentment is why cats purr in the sun.",
]

# OpenAI's API has no rankings, so its client has no method for them.
body = {"model": model, "query": "why cats purr", "documents": documents, "top_n": 2}
ranking = client.post("/rerank", body=body, cast_to=dict)
for result in ranking["results"]:
    print(f"{result['relevance_score']:.2f}", documents[result["index"]])
