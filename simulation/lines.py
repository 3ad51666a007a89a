"""Clients that have files of requests answered, and what must be true of these batches.

Whatever happens to servers meanwhile, each line has exactly one result, and so the files with the results
have each line once, as it was written, in the order of the log. `laws.py` checks the log itself.
"""

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from simulation.database import Memory
from simulation.engine import KINDS, whole_text, wish
from simulation.files import form
from simulation.laws import RUNNING, History, law

if TYPE_CHECKING:
    from simulation.clients import Client

_URL = "/v1/chat/completions"
_LOOKS = 60
"""How often a client looks how far its batch is."""


class LineBatch:
    """A batch: the `kinds` of its lines, by their ids."""

    def __init__(self, name: str, kinds: dict[str, str]) -> None:
        self.name = name
        self.kinds = kinds
        self.id = ""
        self.cancelled = False
        """Its client has begun to cancel it."""
        self._answered = 0

    @property
    def path(self) -> str:
        """Where it is."""
        return f"/v1/batches/{self.id}"

    @property
    def content(self) -> bytes:
        """Its file."""
        return b"".join(
            msgspec.json.encode({"custom_id": number, "method": "POST", "url": _URL, "body": body}) + b"\n"
            for number, kind in self.kinds.items()
            for body in [_body(wish(kind, self.name, number))]
        )

    def see(self, shown: dict[str, Any]) -> None:
        """Its client is shown this: no result is lost again."""
        counts = shown["request_counts"]
        answered = counts["completed"] + counts["failed"]
        law(counts["total"] == len(self.kinds), f"{self.id} has {counts['total']} lines")
        law(answered >= self._answered, f"{self.id}: {answered} of {self._answered} results are counted")
        self._answered = answered

    def check(self, answers: bytes, errors: bytes) -> None:
        """The files with the results have each line once, with the expected result."""
        seen: set[str] = set()
        for content, failed in ((answers, False), (errors, True)):
            for line in map(msgspec.json.decode, content.splitlines()):
                number, kind = line["custom_id"], self.kinds[line["custom_id"]]
                law(number not in seen, f"{self.id} has two results of {number}")
                seen.add(number)
                breaks, response = KINDS[kind][2] is not None, line["response"]
                right = failed is breaks is (response["status_code"] != 200)
                law(right, f"{self.id}: {kind} has the result {line}")
                if not failed:
                    text = response["body"]["choices"][0]["message"]["content"]
                    law(text == whole_text(self.name, kind), f"{self.id}: {kind} says {text!r}")
        law(
            seen == self.kinds.keys() or self.cancelled,
            f"{self.id} has results of {sorted(seen)}, not of {[*self.kinds]}",
        )


def _body(text: str) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": text}]}


async def lines(client: "Client") -> None:
    """Have the lines of a file answered; perhaps delete the file, or cancel the batch; read the results."""
    rng, world = client._rng, client._world
    kinds = {f"l{world.number()}": client._kind() for _ in range(rng.randint(2, 12))}
    batch = LineBatch(client._name, kinds)
    file = await client._object("POST", "/v1/files", form("batch", batch.content))
    if file is None:
        return
    wanted = {"input_file_id": file["id"], "endpoint": _URL, "completion_window": "24h"}
    created = await client._object("POST", "/v1/batches", wanted)
    if rng.random() < 0.3:
        await client._object("DELETE", f"/v1/files/{file['id']}")
    if created is None:
        return
    batch.id = created["id"]
    world.line_batches.append(batch)
    cancels = rng.random() < 0.3
    for _ in range(_LOOKS):
        await asyncio.sleep(rng.random() * 2)
        if cancels and rng.random() < 0.3:
            batch.cancelled, cancels = True, False
            exchange = await client._request("POST", f"{batch.path}/cancel")
            ended = exchange.status == 400 and b"has ended" in exchange.body
            law(not ended or world.histories[batch.id].status not in RUNNING, f"{batch.id} has not ended")
            if not ended:
                client._check_failure(exchange) if exchange.status != 200 else None
        shown = await client._object("GET", batch.path)
        if shown is None:
            continue
        batch.see(shown)
        if shown["status"] in ("completed", "cancelled", "failed"):
            await _read(client, batch, shown)
            return


async def _read(client: "Client", batch: LineBatch, shown: dict[str, Any]) -> None:
    """The results, as the client of a batch that has ended gets them."""
    contents = []
    for file_id in (shown["output_file_id"], shown["error_file_id"]):
        if file_id is None:
            contents.append(b"")
            continue
        exchange = await client._request("GET", f"/v1/files/{file_id}/content")
        if not exchange.whole or exchange.status != 200:
            client._check_failure(exchange)
            return
        contents.append(bytes(exchange.body))
    batch.check(*contents)


def check_lines(memory: Memory, batch: LineBatch, history: History) -> None:
    """A batch has ended: its files have the results of its log, and its counts are right."""
    expected = {"completed", "cancelled"} if batch.cancelled else {"completed"}
    law(history.status in expected, f"{batch.id} is {history.status}, not {sorted(expected)}")
    state = msgspec.json.decode(history.body)
    results = [msgspec.json.decode(line) for line in history.lines if b'"result":' in line]
    contents = []
    for name, failed in (("output_file_id", False), ("error_file_id", True)):
        logged = [line["result"] for line in results if line.get("failed", False) is failed]
        content = _content(memory, state[name])
        written = [msgspec.json.decode(line) for line in content.splitlines()]
        law(written == logged, f"{batch.id}: its {name} has {len(written)} of {len(logged)} results")
        contents.append(content)
    batch.check(*contents)
    completed, failed = state["progress"][:2]
    counted = (contents[0].count(b"\n"), contents[1].count(b"\n"))
    law((completed, failed) == counted, f"{batch.id} counts {completed} and {failed} results, not {counted}")


def check_held(memory: Memory, batch: LineBatch) -> None:
    """A batch that has ended does not hold its file any more."""
    held = memory.execute("SELECT blob_id FROM blob_holders WHERE holder = ?", batch.id)
    law(not held, f"{batch.id} has ended, and holds its file")


def _content(memory: Memory, file_id: str | None) -> bytes:
    """The bytes of a file."""
    rows = memory.execute(
        "SELECT data FROM blob_holders JOIN blob_pieces USING (blob_id) WHERE holder = ? ORDER BY position",
        file_id,
    )
    return b"".join(piece for (piece,) in rows)
