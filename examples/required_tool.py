"""Make the model call a tool, once, with arguments that fit.

antiphon serve
python examples/required_tool.py "I have read all of it, twice, and I want my money back."
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
            "name": "file_ticket",
            "description": "Pass a customer's message on to those who care for it.",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {
                    "topic": {"enum": ["delivery", "refund", "other"]},
                    "urgent": {"type": "boolean"},
                },
                "required": ["topic", "urgent"],
                "additionalProperties": False,
            },
        },
    }
]

client = OpenAI(
    base_url=os.environ.get("ANTIPHON_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("ANTIPHON_API_KEY", "none"),
)
model = client.models.list().data[0].id
message = " ".join(sys.argv[1:]) or "Where is my parcel? I need it today!"

choice = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": message}],
    tools=TOOLS,
    tool_choice="required",
    parallel_tool_calls=False,
).choices[0]
[call] = choice.message.tool_calls
print(call.function.name, json.loads(call.function.arguments))
