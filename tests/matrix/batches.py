"""A case as the only line of a batch: of OpenAI's API, or of Messages."""

import asyncio
import json
from collections.abc import Callable

import httpx2 as httpx

from tests.matrix.case import Json
from tests.run.support import LONGEST_WAIT

MESSAGES = "/v1/messages"
PATHS = frozenset({"/v1/chat/completions", "/v1/responses", MESSAGES})
"""The endpoints whose requests may be lines."""
ENDS = frozenset({"completed", "failed", "expired", "cancelled"})
"""The states of a batch that has ended."""


async def answer_of_line(http: httpx.AsyncClient, path: str, body: Json) -> Json:
    """The body of the answer to a request, as a batch has it. Raises AssertionError if it has another result."""
    return await (_of_messages(http, body) if path == MESSAGES else _of_file(http, path, body))


async def _of_file(http: httpx.AsyncClient, path: str, body: Json) -> Json:
    line = {"custom_id": "it", "method": "POST", "url": path, "body": body}
    form = {"file": ("lines.jsonl", json.dumps(line).encode())}
    file = _found(await http.post("/v1/files", data={"purpose": "batch"}, files=form))
    asked = {"input_file_id": file["id"], "endpoint": path, "completion_window": "24h"}
    batch = _found(await http.post("/v1/batches", json=asked))
    batch = await _when(http, f"/v1/batches/{batch['id']}", lambda found: found["status"] in ENDS)
    assert batch["status"] == "completed", batch
    results = batch["output_file_id"] or batch["error_file_id"]
    [result] = (await http.get(f"/v1/files/{results}/content")).text.splitlines()
    response = json.loads(result)["response"]
    assert response["status_code"] == 200, result
    found: Json = response["body"]
    return found


async def _of_messages(http: httpx.AsyncClient, body: Json) -> Json:
    asked = {"requests": [{"custom_id": "it", "params": body}]}
    batch = _found(await http.post(f"{MESSAGES}/batches", json=asked))
    path = f"{MESSAGES}/batches/{batch['id']}"
    await _when(http, path, lambda found: found["processing_status"] == "ended")
    [line] = (await http.get(f"{path}/results")).text.splitlines()
    result: Json = json.loads(line)["result"]
    assert result["type"] == "succeeded", line
    return result["message"]


def _found(response: httpx.Response) -> Json:
    assert response.status_code == 200, response.text
    return response.json()


async def _when(http: httpx.AsyncClient, path: str, ended: Callable[[Json], bool]) -> Json:
    async with asyncio.timeout(LONGEST_WAIT):
        while not ended(found := _found(await http.get(path))):
            await asyncio.sleep(0.005)
    return found
