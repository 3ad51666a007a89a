"""Let the model run a whole Python in a container: give it a file, and fetch the file that it writes.

antiphon serve MODEL --python /opt/science/bin/python      # a model that knows how to call functions
python examples/containers.py
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
model = client.models.list().data[0].id
container = client.containers.create(name="sums")
client.containers.files.create(container.id, file=("numbers.txt", b"1\n2\n3\n"))

response = client.responses.create(
    model=model,
    input="Sum up /mnt/data/numbers.txt, and write the sum to /mnt/data/sum.txt.",
    tools=[{"type": "code_interpreter", "container": container.id}],
)
print(response.output_text)
for item in response.output:
    for part in item.content if item.type == "message" else []:
        for citation in part.annotations:
            file = client.containers.files.content.retrieve(citation.file_id, container_id=container.id)
            print(f"{citation.filename}: {file.text}")
client.containers.delete(container.id)
