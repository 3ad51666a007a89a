"""Let a model call the tools of an MCP server, and approve each call.

antiphon serve MODEL --mcp-host 127.0.0.1      # a model that knows how to call functions
python examples/mcp_tools.py http://127.0.0.1:9000/mcp "What is 20000 + 30001?"
"""

import os
import sys

from errors import in_words
from openai import OpenAI

sys.excepthook = in_words

if len(sys.argv) < 2:
    sys.exit(__doc__)
client = OpenAI(
    base_url=os.environ.get("ANTIPHON_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("ANTIPHON_API_KEY", "none"),
)
model = client.models.list().data[0].id
url, *question = sys.argv[1:]
tools = [{"type": "mcp", "server_label": "sums", "server_url": url, "require_approval": "always"}]

response = client.responses.create(
    model=model, input=" ".join(question) or "What is 20000 + 30001?", tools=tools
)
while requests := [item for item in response.output if item.type == "mcp_approval_request"]:
    answers = []
    for request in requests:
        print(f"{request.name}({request.arguments}): approved")
        answers.append({"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True})
    response = client.responses.create(
        model=model, previous_response_id=response.id, input=answers, tools=tools
    )
for item in response.output:
    if item.type == "mcp_call":
        print(f"-> {item.output or item.error}")
print(response.output_text)
