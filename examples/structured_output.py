"""Have an answer that fits a schema: the model is held to it while it writes.

antiphon serve
python examples/structured_output.py
"""

import os
import sys

from errors import in_words
from openai import OpenAI
from pydantic import BaseModel, Field

sys.excepthook = in_words

client = OpenAI(
    base_url=os.environ.get("ANTIPHON_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("ANTIPHON_API_KEY", "none"),
)
model = client.models.list().data[0].id


class City(BaseModel):
    name: str = Field(max_length=40)
    country: str = Field(max_length=40)
    inhabitants: int = Field(ge=1, le=50_000_000)


response = client.responses.parse(
    model=model,
    instructions="Answer in JSON with the fields name, country and inhabitants.",
    input="Tell me about Rome.",
    text_format=City,
)
print(response.output_parsed)

# Keywords that could not be enforced, and are not met.
for what in (response.model_extra or {}).get("unmet", ()):
    print("unmet:", what)
