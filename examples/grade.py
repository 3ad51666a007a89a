"""Grade answers of another program: several questions about each, on scales and as yes or no.

antiphon serve
python examples/grade.py
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
question = "When did the first tram run in Berlin?"
answers = ["It ran in 1865, drawn by horses.", "Trams are a wonderful way to travel."]

for given in answers:
    decision = client.decisions.create(
        model=model,
        # A conversation is shown to the model as one: who said what is not part of the text.
        input=[{"role": "user", "content": question}, {"role": "assistant", "content": given}],
        questions=[
            {
                "type": "score",
                "instructions": "How well does the answer fit the question?",
                "levels": [
                    {"label": "not at all", "description": "about something else"},
                    {"label": "partly", "description": "right, but incomplete"},
                    {"label": "fully", "description": "what was asked, and nothing else"},
                ],
            },
            {"type": "predicate", "instructions": "The answer names a year."},
        ],
    )
    fit, year = decision.answers
    print(f"{fit.score:.1f} of 2, a year: {year.probability:.0%}. {given}")
