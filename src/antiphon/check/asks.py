"""What models are asked: short questions that any chat model can answer, the same ones in each API."""

from typing import Any

GREETING = "Reply with one short sentence: which city is the capital of France?"
COUNTING = "Count from 1 to 200, every number on its own line, and write nothing else."
WEATHER = "What is the weather in Paris? Call the function get_weather."
FORCED = "Say good morning in one short sentence."
NOTED = "Say hello in one short sentence. Call no function."
PERSON = "Invent a person. Answer with a JSON object that has their name and their age."
LETTERS = "Name three fruits."

TOKENS = 512
"""The most tokens of an answer, unless a check is about its end."""

FEW = 16
"""The most tokens of an answer that is cut: the least that OpenAI's Responses API takes."""

STOPS = ["a", "e", "n", "r"]
"""Stop sequences, one of which occurs in nearly every text."""

FUNCTION = "get_weather"
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "The name of the city"}},
    "required": ["city"],
    "additionalProperties": False,
}
DESCRIPTION = "Tells the weather of a city."

PERSON_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
