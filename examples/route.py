"""Route tickets to teams: the likeliest team if it is likely enough, a person otherwise.

antiphon serve
python examples/route.py
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
tickets = ["I was charged twice for order 4471.", "Hello? Is this the right place?"]
sure = 0.6  # tried on tickets whose team is known

for ticket in tickets:
    decision = client.decisions.create(
        model=model,
        input=ticket,
        questions=[
            {
                "type": "choice",
                "name": "team",
                "instructions": "Which team should handle this ticket?",
                "choices": [
                    {"value": "billing", "description": "payments, invoices, refunds"},
                    {"value": "shipping", "description": "parcels and deliveries"},
                    {"value": "technical", "description": "errors and outages"},
                ],
            }
        ],
    )
    [answer] = decision.answers
    team = answer.choice if answer.confidence >= sure else "a person"
    print(f"{team} ({answer.choice}, confidence {answer.confidence:.2f}): {ticket}")
