"""Show an image to the model, and ask about it.

antiphon serve MODEL.gguf      # one that sees, alone in its folder with its mmproj file
python examples/image.py photo.jpg "What is in the picture?"
"""

import base64
import os
import sys
from pathlib import Path

from errors import in_words
from openai import OpenAI

sys.excepthook = in_words

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

client = OpenAI(
    base_url=os.environ.get("ANTIPHON_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("ANTIPHON_API_KEY", "none"),
)
model = client.models.list().data[0]
print("takes", ", ".join(model.input_modalities))

picture = Path(sys.argv[1]).read_bytes() if len(sys.argv) > 1 else PIXEL
question = " ".join(sys.argv[2:]) or "What is in the picture?"
url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"  # the server recognises the type itself
content = [{"type": "text", "text": question}, {"type": "image_url", "image_url": {"url": url}}]

answer = client.chat.completions.create(model=model.id, messages=[{"role": "user", "content": content}])
print(answer.choices[0].message.content)
print(answer.usage.prompt_tokens_details.image_tokens, "tokens of the prompt are the image's")
