"""instructor: an answer read into a class, through a tool that must be called or a format."""

import json
import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel

URL, MODEL, _, MODE = sys.argv[1:]


class City(BaseModel):
    """What the model is to answer."""

    name: str
    hills: int


openai = OpenAI(base_url=URL, max_retries=0, timeout=20)
client = instructor.from_openai(openai, mode=instructor.Mode[MODE])
city = client.chat.completions.create(
    model=MODEL,
    messages=[{"role": "user", "content": "Describe Rome."}],
    response_model=City,
    max_retries=0,
)
print(json.dumps({"parsed": city.model_dump()}))
