"""Put texts into a vector store and search them, as a client or with the tool `file_search`.

pip install -e '.[files]'
antiphon serve
python examples/search_files.py
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
texts = {
    "cats.md": b"Cats sleep for sixteen hours a day, and purr when they are content.",
    "dogs.md": b"Dogs bark at strangers, and want to be walked twice a day.",
}

store = client.vector_stores.create(name="pets")
batch = client.vector_stores.file_batches.upload_and_poll(
    store.id, files=list(texts.items()), poll_interval_ms=50
)
print(batch.status, batch.file_counts.completed)
for result in client.vector_stores.search(store.id, query="How long do they sleep?"):
    print(result.filename, result.content[0].text)

response = client.responses.create(
    model=client.models.list().data[0].id,  # one that knows how to call functions
    input="How long do cats sleep?",
    tools=[{"type": "file_search", "vector_store_ids": [store.id]}],
)
print(response.output_text)
for item in response.output:
    for part in item.content if item.type == "message" else ():
        print(*(cited.filename for cited in part.annotations))

client.vector_stores.delete(store.id)
