"""Let the model call a function of yours, and answer with what it returned.

antiphon serve MODEL      # one that knows how to call functions
python examples/tools.py "What is the weather in Rome?"
"""

import json
import os
import sys

from errors import in_words
from openai import OpenAI

sys.excepthook = in_words

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city, now.",
            "strict": True,  # so that the arguments are always those of the function
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]


def get_weather(city: str) -> str:
    """A weather service that is always right about one thing."""
    return f"It is sunny in {city}."


client = OpenAI(
    base_url=os.environ.get("ANTIPHON_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("ANTIPHON_API_KEY", "none"),
)
model = client.models.list().data[0].id
question = " ".join(sys.argv[1:]) or "What is the weather in Rome?"
messages = [{"role": "user", "content": question}]

while True:
    choice = client.chat.completions.create(model=model, messages=messages, tools=TOOLS).choices[0]
    messages.append(choice.message.model_dump(exclude_none=True))
    if choice.finish_reason != "tool_calls":
        break
    for call in choice.message.tool_calls:
        print(f"-> {call.function.name}({call.function.arguments})")
        result = get_weather(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

print(choice.message.content)
