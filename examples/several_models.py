"""Ask every model of a server the same, side by side.

antiphon serve --config models.toml
python examples/several_models.py "Why is the sky blue?"

where models.toml has, for example:

keep_loaded = "8GiB"             # others are loaded when they are asked for

[[models]]
name = "small"
model = "hf:org/small-GGUF"

[[models]]
name = "large"
model = "http://gpu:8000"
sampling = { temperature = 0.3 }
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
question = " ".join(sys.argv[1:]) or "Why is the sky blue?"

for model in client.models.list():
    answer = client.chat.completions.create(
        model=model.id, messages=[{"role": "user", "content": question}], max_tokens=200
    )
    print(f"{model.id}: {answer.choices[0].message.content}")
