"""Answer a file of requests in the background, and read the results.

antiphon serve
python examples/batch.py
"""

import json
import os
import sys
import time

from errors import in_words
from openai import OpenAI

sys.excepthook = in_words

client = OpenAI(
    base_url=os.environ.get("ANTIPHON_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("ANTIPHON_API_KEY", "none"),
)
model = client.models.list().data[0].id

lines = [
    {
        "custom_id": topic,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": model,
            "messages": [{"role": "user", "content": f"Name a {topic}."}],
            "max_tokens": 20,
        },
    }
    for topic in ("colour", "city")
]
content = "\n".join(json.dumps(line) for line in lines).encode()
file = client.files.create(file=("lines.jsonl", content), purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
while batch.status in ("validating", "in_progress", "finalizing"):
    time.sleep(0.5)
    batch = client.batches.retrieve(batch.id)

if batch.errors is not None and batch.errors.data:
    sys.exit(f"{batch.errors.data[0].message}")
if batch.output_file_id is not None:
    results = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    for result in sorted(results, key=lambda result: result["custom_id"]):
        answer = result["response"]["body"]["choices"][0]["message"]["content"]
        print(f"{result['custom_id']}: {answer}")
