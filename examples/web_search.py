"""Let the model search the web, and see what it cites.

antiphon serve MODEL --web-search http://127.0.0.1:8888      # a SearXNG server, or others: docs/tools.md
python examples/web_search.py "Who sings an antiphon?"
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
question = " ".join(sys.argv[1:]) or "Who sings an antiphon?"

response = client.responses.create(
    model=model,
    input=question,
    tools=[{"type": "web_search"}],
    include=["web_search_call.action.sources"],
)
for item in response.output:
    if item.type == "web_search_call" and item.action.type == "search":
        print(f"searched for '{item.action.query}':", *(source.url for source in item.action.sources or ()))
    for part in item.content if item.type == "message" else ():
        print(part.text)
        for cited in part.annotations:
            print(f"{cited.start_index}-{cited.end_index}: {cited.title}, {cited.url}")
