"""Let the model write a program that calls your function, instead of calling it many times itself.

antiphon serve MODEL --programs      # a model that knows how to call functions
python examples/programs.py "Of which fruit is the least left?"
"""

import json
import os
import sys

from errors import in_words
from openai import OpenAI

sys.excepthook = in_words

STOCK = {"apples": 12, "pears": 3, "plums": 40}

client = OpenAI(
    base_url=os.environ.get("ANTIPHON_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("ANTIPHON_API_KEY", "none"),
)
model = client.models.list().data[0].id
question = " ".join(sys.argv[1:]) or "Of which fruit is the least left?"
tools = [
    {"type": "programmatic_tool_calling"},
    {
        "type": "function",
        "name": "in_stock",
        "description": f"How many pieces are left. There are {', '.join(STOCK)}.",
        "parameters": {"type": "object", "properties": {"fruit": {"type": "string"}}, "required": ["fruit"]},
        "output_schema": {"type": "object", "properties": {"left": {"type": "integer"}}},
        "allowed_callers": ["programmatic"],
    },
]

response = client.responses.create(model=model, input=question, tools=tools)
while calls := [item for item in response.output if item.type == "function_call"]:
    outputs = []
    for call in calls:
        fruit = json.loads(call.arguments)["fruit"]
        left = STOCK.get(fruit, 0)
        print(f"in_stock({fruit}): {left}")
        outputs.append(
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": json.dumps({"left": left}),
                "caller": call.to_dict()["caller"],
            }
        )
    response = client.responses.create(
        model=model, input=outputs, previous_response_id=response.id, tools=tools
    )
for item in response.output:
    if item.type == "program_output":
        print(f"The program printed: {item.to_dict()['result'].strip()}")
print(response.output_text)
