"""Judge texts by a guard model, and hold an answer back until the guard has seen it.

antiphon serve --moderation NAME   # the name of a guard among the models of the server
python examples/moderate.py
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
model = os.environ.get("ANTIPHON_MODEL") or client.models.list().data[0].id

texts = ["Why is the sky blue?", "I will break into their house, and hurt them."]
for text, result in zip(texts, client.moderations.create(input=texts).results, strict=True):
    categories = [name for name, flagged in result.categories.model_dump(by_alias=True).items() if flagged]
    print(f"{text} {', '.join(categories) if result.flagged else 'passed'}")

modes = {"input": {"mode": "block"}, "output": {"mode": "block"}}
completion = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": texts[0]}],
    moderation={"model": "omni-moderation-latest", "policy": modes},
)
[choice] = completion.choices
print("not shown" if choice.finish_reason == "content_filter" else choice.message.content)
