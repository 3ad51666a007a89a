"""Demands calls and answers of a real model, of which many are cut, and checks that each fits its schema.

    python fuzz/calls.py [--tokens 256] [--at-once 8] [NAME …]

Each of the schemas of `tests/constrain/agent_schemas.py` is that of a strict function which has to be called,
or of an answer where it is not that of an object; once streamed, once whole. SmolLM2 answers, on llama.cpp;
in the environment of `make test-vllm`, with `ANTIPHON_TEST_VLLM` as there, on vLLM. Prints each that does not
fit or is refused, and the sums; exits with 1 if there is one that does not fit. Refused are forms that so few
tokens cannot have. On two cores it takes half an hour with llama.cpp.
"""

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # For a script, Python's path begins with its folder; the tests are `tests.…`.
    sys.path[0] = str(Path(__file__).parent.parent)

import httpx2 as httpx
import jsonschema_rs

from tests.constrain.agent_schemas import AGENT_SCHEMAS, validator
from tests.real_engine import real_engine
from tests.server import NO_TLS, running

CONTEXT = 8192
SECONDS = 600


def demand(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A call with such arguments; of what is not said to be an object, an answer."""
    if schema.get("type") == "object":
        function = {"name": "act", "description": name, "parameters": schema, "strict": True}
        return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    form = {"name": "answer", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def request(name: str, schema: dict[str, Any], tokens: int, *, stream: bool) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "user", "content": "Do what is to be done, and call the function."}],
        **demand(name, schema),
        "temperature": 1,
        "seed": 7,
        "max_tokens": tokens,
        "stream": stream,
    }


class RefusedError(Exception):
    """The form is refused, as that which so few tokens cannot have."""


async def answer(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[list[str], bool]:
    """The arguments of the calls, or the text, and whether the answer was cut and closed."""
    response = await client.post("/v1/chat/completions", json=body)
    if response.status_code == 400:
        raise RefusedError(response.json()["error"]["message"])
    response.raise_for_status()
    if not body["stream"]:
        [choice] = response.json()["choices"]
        calls = choice["message"].get("tool_calls") or ()
        written = [call["function"]["arguments"] for call in calls]
        return written or [choice["message"]["content"]], bool(choice.get("notes"))
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    pieces: dict[int, str] = {}
    for choice in choices:
        for call in choice["delta"].get("tool_calls") or ():
            piece = call["function"].get("arguments") or ""
            pieces[call["index"]] = pieces.get(call["index"], "") + piece
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return [*pieces.values()] or [text], any(choice.get("notes") for choice in choices)


def fault(schema: dict[str, Any], texts: Sequence[str]) -> str | None:
    """Why they do not fit; None if they do."""
    fits = validator(schema)
    try:
        for text in texts:
            fits.validate(json.loads(text))
    except (ValueError, jsonschema_rs.ValidationError) as error:
        return str(error).splitlines()[0]
    return None


async def count(names: Sequence[str], tokens: int, at_once: int) -> Counter[str]:
    sums, turn = Counter[str](), asyncio.Semaphore(at_once)
    engine = real_engine(context=CONTEXT, slots=at_once)
    async with (
        running(engine, model_name=("m",), dialect="hermes") as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url, timeout=SECONDS) as client,
    ):

        async def one(name: str, *, stream: bool) -> None:
            schema = AGENT_SCHEMAS[name]
            texts, closed = list[str](), False
            async with turn:
                try:
                    texts, closed = await answer(client, request(name, schema, tokens, stream=stream))
                except RefusedError as refusal:
                    sums["refused"] += 1
                    print(f"{name}: {refusal}", flush=True)
                    return
            why = fault(schema, texts)
            sums["answers"] += 1
            sums["closed"] += closed
            sums["valid"] += why is None
            if why is not None:
                print(f"{name} {'streamed' if stream else 'whole'}: {why}: {texts}", flush=True)
            if sums["answers"] % 20 == 0:
                print(dict(sums), file=sys.stderr, flush=True)

        await asyncio.gather(*(one(name, stream=stream) for name in names for stream in (True, False)))
    return sums


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=[*AGENT_SCHEMAS])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--at-once", type=int, default=8)
    arguments = parser.parse_args()
    sums = asyncio.run(count(arguments.names, arguments.tokens, arguments.at_once))
    print(dict(sums))
    return int(sums["valid"] < sums["answers"])


if __name__ == "__main__":
    sys.exit(main())
