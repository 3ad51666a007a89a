"""Have a model answer from a text and name the sentences that it used, with Anthropic's SDK.

antiphon serve MODEL.gguf
python examples/cite.py notes.txt "When was it built?"
"""

import os
import sys
from pathlib import Path

from anthropic import Anthropic
from errors import in_words

sys.excepthook = in_words

NOTES = "The bridge was built in 1882. It is 90 metres long. Trains crossed it until 1971."

client = Anthropic(
    base_url=os.environ.get("ANTIPHON_URL", "http://127.0.0.1:8000").removesuffix("/v1"),
    api_key=os.environ.get("ANTIPHON_API_KEY", "none"),
)
text = Path(sys.argv[1]).read_text() if len(sys.argv) > 1 else NOTES
question = " ".join(sys.argv[2:]) or "When was the bridge built?"
document = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": text},
    "citations": {"enabled": True},
}

answer = client.messages.create(
    model=client.models.list().data[0].id,
    max_tokens=500,
    messages=[{"role": "user", "content": [document, {"type": "text", "text": question}]}],
)
for block in answer.content:
    if block.type == "text":
        print(block.text)
        for cited in block.citations or ():
            print(f"{cited.start_char_index}-{cited.end_char_index}: {cited.cited_text.strip()}")
