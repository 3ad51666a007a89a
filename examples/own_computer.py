"""Let the model use a computer of yours: it says what to click and to type, and is shown the screen.

antiphon serve MODEL      # a model that knows how to call functions, and sees images
python examples/own_computer.py "Click the red button. What happens?"

This computer is only a picture with a button in it. `Screen` is what to put another one in the place of, such
as a browser that Playwright drives.
"""

import os
import struct
import sys
import zlib
from base64 import b64encode

from errors import in_words
from openai import OpenAI

sys.excepthook = in_words

WIDTH, HEIGHT = 320, 200
BUTTON = range(120, 200), range(80, 120)
GREY, RED, GREEN = b"\xee\xee\xee", b"\xcc\x22\x22", b"\x22\xaa\x44"


class Screen:
    """A button that is red, and green after a click."""

    def __init__(self) -> None:
        self.colour = RED

    def do(self, action) -> None:
        """Perform an action of the model; those that this computer does not support are ignored."""
        print(f"-> {action.type}", *((action.x, action.y) if action.type == "click" else ()))
        if action.type == "click" and action.x in BUTTON[0] and action.y in BUTTON[1]:
            self.colour = GREEN

    def picture(self) -> str:
        """The current screen, a PNG as a data URL."""
        rows = [
            b"\0" + b"".join(self.colour if x in BUTTON[0] and y in BUTTON[1] else GREY for x in range(WIDTH))
            for y in range(HEIGHT)
        ]
        chunks = (
            (b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)),
            (b"IDAT", zlib.compress(b"".join(rows))),
            (b"IEND", b""),
        )
        png = b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
            for name, data in chunks
        )
        return f"data:image/png;base64,{b64encode(png).decode()}"


client = OpenAI(
    base_url=os.environ.get("ANTIPHON_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("ANTIPHON_API_KEY", "none"),
)
model = client.models.list().data[0].id
question = " ".join(sys.argv[1:]) or "Click the red button. What happens?"
tools = [{"type": "computer"}]
screen = Screen()

response = client.responses.create(model=model, input=question, tools=tools)
while calls := [item for item in response.output if item.type == "computer_call"]:
    outputs = []
    for call in calls:
        for action in call.actions:
            screen.do(action)
        shown = {"type": "computer_screenshot", "image_url": screen.picture()}
        outputs.append({"type": "computer_call_output", "call_id": call.call_id, "output": shown})
    response = client.responses.create(
        model=model, input=outputs, previous_response_id=response.id, tools=tools
    )
print(response.output_text)
