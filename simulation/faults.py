"""Faults that are put into the source on purpose, to show that simulations find them.

    python -m simulation.faults              # how long it takes to find each of them
    python -m simulation.faults "a slot"     # those whose names begin so
    python -m simulation.faults --update     # new seeds for those that `seeds.json` does not find any more

Every law is violated by at least one, and every action of clients finds at least one. `seeds.json` has for
each a seed that is known to find it, so that tests need not try hundreds before; others would find it, too.
"""

from pathlib import Path

from simulation.planting import Fault, Suite
from simulation.world import fits, simulate

FAULTS = {
    "an event is dropped at a takeover": Fault(
        "app/journal.py",
        "            lines = lines[known:]\n",
        "            lines = lines[known + 1 :]\n",
        "a reader gets event|has another number|never end|follows",
    ),
    "a lease is taken that has not run out": Fault(
        "store/jobs.py",
        '"now": claim.now,',
        '"now": claim.now + 2.5,',
        "was taken while another server held it",
    ),
    "a slot is forgotten": Fault(
        "core/permits.py",
        "        self.running -= 1\n",
        "        self.running -= 1 if self.waiting else 0\n",
        "slots of the engine|permits of|is not answered|never end",
    ),
    "a reader misses an event": Fault(
        "app/event_log.py",
        "after + 1 - entries[0].first",
        "after + 1 - entries[0].first + (after > 3)",
        "a reader gets event",
    ),
    "an approval is good for many calls": Fault(
        "store/approvals.py",
        "return claimed in (None, claim.response_id)",
        "return True",
        "is run twice",
    ),
    "a call is run again after a takeover": Fault(
        "run/tool_calls.py",
        "if number < self._context.calls_begun and not",
        "if number < 0 and not",
        "is run twice",
        wanted=("background", "kill"),
    ),
    "a call that was not approved is run": Fault(
        "apis/responses/approvals.py",
        '        if item.flag_or_none("approve"):\n',
        "        if True:\n",
        "was not approved",
    ),
    "an answer is not in its conversation": Fault(
        "store/responses.py",
        "conversations.append(transaction, at.conversation_id, end.conversation)",
        "conversations.append(transaction, at.conversation_id, end.conversation[:1])",
        "is not in its conversation",
    ),
    "a response fails whose engine has died": Fault(
        "app/worker.py",
        "        if deaths >= ENGINE_DEATHS:\n",
        "        if deaths >= 1:\n",
        "is failed, not completed|has results of|has the result",
        wanted=("background", "engine"),
    ),
    "keys are not looked at": Fault(
        "store/responses.py",
        "connection.execute(_FIND, _named(owner, response_id, kind)).first()",
        "connection.execute(select(responses).where(responses.c.id == response_id)).first()",
        "is shown to another key|sees data of",
    ),
    "a request of a batch is answered again at a takeover": Fault(
        "app/message_batches.py",
        "self._results = {entry.custom_id for entry in recorded if isinstance(entry, BatchResult)}\n",
        "self._results = set[str]()\n",
        "is answered again|has the result|two results",
    ),
    "the results of a batch are forgotten at a takeover": Fault(
        "app/message_batches.py",
        'return [read_entry(line) for entry in log for line in entry.events.split(b"\\n")]',
        'return [read_entry(line) for entry in log[:0] for line in entry.events.split(b"\\n")]',
        "is answered again|two results|has results of",
    ),
    "a request of a batch is left out": Fault(
        "app/message_batches.py",
        "        self._left = iter([request for request in wire.requests if",
        "        self._left = iter([request for request in wire.requests[:3] if",
        "has results of",
    ),
    "an answer is started again at a takeover": Fault(
        "app/responses/create.py",
        "ReplayLog(read_entries([entry.chunks for entry in entries], app.toolkits.details))",
        "ReplayLog()",
        "is started again",
    ),
    "an answer is started again when a replica fails": Fault(
        "run/generation.py",
        "            if replay.chunks:\n                self._make_events()",
        "            if False:\n                self._make_events()",
        "is started again|reads|says",
    ),
    "an answer is continued inside a character": Fault(
        "run/replay.py",
        "        if 0 < end < len(last.tokens):\n",
        "        if False:\n",
        "says|reads|a reader gets",
        wanted=("background", "kill"),
    ),
    "clients hear that a replica failed": Fault(
        "engines/pool.py",
        "        lost = ReplicaLostError()\n",
        "        return error\n        lost = ReplicaLostError()\n",
        "is told|is failed, not",
    ),
    "nobody looks at deadlines": Fault(
        "run/drive.py",
        "asyncio.timeout(self._deadline)",
        "asyncio.timeout(None)",
        "after its deadline",
    ),
    "a deadline starts again at a takeover": Fault(
        "app/responses/create.py",
        "journal, seconds, record.created_at)",
        "journal, seconds)",
        "after its deadline",
        wanted=("background", "kill", "deadlines"),
    ),
    "a deadline passes too early": Fault(
        "run/drive.py",
        "asyncio.timeout(self._deadline)",
        "asyncio.timeout(self._deadline / 2)",
        "is not late",
    ),
    "a WebSocket forgets a turn": Fault(
        "http/lanes.py",
        "        elif not creation.stored or previous in conversation.remembered:\n",
        "        elif previous in conversation.remembered:\n",
        "previous_response_not_found",
    ),
    "a turn on a WebSocket misses the one before": Fault(
        "http/socket.py",
        "turn = [*creation.history, *new]",
        "turn = new",
        "without what was said before",
    ),
    "a turn on a WebSocket goes on without its client": Fault(
        "http/lanes.py",
        "            self._running.driver.stop(ClientLeftError())\n",
        "            pass\n",
        "is worked on without its client",
        wanted=("talk",),
    ),
    "a summary is made again at a takeover": Fault(
        "app/responses/create.py",
        "    if accepted.compact_from is not None:\n",
        "    if False:\n",
        "is summarised again",
        wanted=("background", "kill"),
    ),
    "the model is not shown a summary": Fault(
        "apis/summaries.py",
        "*filter(_is_kept_verbatim, items[:place]), _message(summary), *items[place:]",
        "*filter(_is_kept_verbatim, items[:place]), *items[place:]",
        "forgot",
    ),
    "what is sealed is anyone's": Fault(
        "apis/sealing.py",
        "return [_VERSION.encode(), owner.encode()]",
        "return [_VERSION.encode()]",
        "is taken from another key|sees data of",
        wanted=("compact",),
    ),
    "what was said before the last answer is forgotten": Fault(
        "app/responses/history.py",
        "return _payloads(await store.responses.history(owner, record.id)), record.id",
        "return _payloads(await store.responses.history(owner, record.id))[-2:], record.id",
        "without what was said before|is told 500|is failed, not completed",
    ),
    "background work fails when its server stops": Fault(
        "run/endings.py",
        "stored=ending.background or ending.stored",
        "stored=ending.stored",
        "is failed, not completed|engine_not_ready",
        wanted=("background", "stop"),
    ),
    "a client that does not read keeps its server from stopping": Fault(
        "http/server.py",
        "async with asyncio.timeout(LAST_BYTES_SECONDS):",
        "async with asyncio.timeout(None):",
        "does not stop",
        wanted=("stop", "pauses"),
    ),
    "a WebSocket is closed twice": Fault(
        "http/protocol.py",
        "        if self.transport.is_closing():\n            return\n        if self.handshake_complete",
        "        if self.handshake_complete",
        "connection is closing",
        wanted=("talk", "stop"),
    ),
    "a permit is lost that is given to who is being cancelled": Fault(
        "core/permits.py",
        "        except BaseException:\n            permit.leave()\n            raise\n        return permit",
        "        except BaseException:\n            if not permit.given:\n                permit.leave()\n"
        "            raise\n        return permit",
        "permits of .* are not free",
        wanted=("crowd",),
    ),
    "a place is kept for who has left": Fault(
        "core/permits.py",
        "        except BaseException:\n            permit.leave()\n            raise\n        return permit",
        "        except BaseException:\n            if permit.given:\n                permit.leave()\n"
        "            raise\n        return permit",
        "permits of .* are not free|wait for a permit|is not answered",
        wanted=("crowd",),
    ),
    "a file is claimed that this server indexes": Fault(
        "store/vector_stores.py",
        "row is not None and row.key in claim.held",
        "row is not None and row.key in ()",
        "is completed, and has .* words",
        wanted=("index", "hold"),
    ),
    "a file that another server has begun has its chunks twice": Fault(
        "store/vector_stores.py",
        "            await chunk_rows.delete_chunks(self._database, [record.key])  # of an earlier worker\n",
        "            pass\n",
        "is completed, and has .* words|store_error",
        wanted=("index", "kill"),
    ),
    "a file that is cancelled keeps its chunks": Fault(
        "store/vector_stores.py",
        "delete_children(transaction, table, [row.id for row in rows if row.usage_bytes])",
        "True",
        "is cancelled, and has .* words",
        wanted=("index",),
    ),
    "a file fails for ever because its server stops": Fault(
        "app/indexing.py",
        "        except Exception as failure:\n            if self._stopping:",
        "        except BaseException as failure:\n            if False:",
        "is failed, not|does not stop",
        wanted=("index", "stop"),
    ),
    "a server of the model that floods is read on": Fault(
        "engines/upstream.py",
        "            self.abort()\n            return\n        if self.status != 200",
        "            return\n        if self.status != 200",
        "a flood is read to its end",
        wanted=("url",),
    ),
    "the end of an answer waits for its usage": Fault(
        "engines/upstream.py",
        "self._reader.end() if self._late > MAX_AFTER_END else None",
        "None",
        "a flood is read to its end",
        wanted=("url",),
    ),
    "an answer is lost when its connection is after it": Fault(
        "engines/upstream.py",
        "        last = self._reader.end()\n",
        "        last = self._reader.end() if error is None else None\n",
        "engine_error|is failed|fails without a reason",
        wanted=("url",),
    ),
    "a client is told the key for the server of the model": Fault(
        "engines/upstream.py",
        "    if key is not None:\n",
        "    if key is None:\n",
        "sees the key",
        wanted=("url", "chat"),
    ),
    "connections to a server of the model are kept": Fault(
        "engines/http_client.py",
        "        for connection in [*self._connections]:\n",
        "        for connection in [*self._connections][:0]:\n",
        "keeps . connections to the model",
        wanted=("url",),
    ),
    "a call of an MCP server is tried again": Fault(
        "tools/mcp/tool.py",
        "            return ToolResult(error.failure.message, error.failure, failed=True)\n",
        "            connection = await self._lease.connection()\n"
        "            return result_of(await connection.call(action, arguments), 1000)\n",
        "is run twice",
        wanted=("approve", "mcp"),
    ),
    "an MCP server that floods is read on": Fault(
        "tools/mcp/bounds.py",
        "if self._messages > self.limits.mcp_messages:",
        "if self._messages > 10 * self.limits.mcp_messages:",
        "a flood of an MCP server is read to its end",
        wanted=("approve", "mcp"),
    ),
    "a server writes whose lease was taken": Fault(
        "store/log.py",
        "        if self.worker != worker:\n",
        "        if not self.worker:\n",
        "does not hold its lease|changed after its end|follows|another log|is run twice",
        wanted=("background", "jump"),
    ),
    "what is not to be stored is stored": Fault(
        "app/responses/create.py",
        "        elif self.stored:\n",
        "        else:\n",
        "is stored, and should not be",
    ),
    "more is lent than the limit of a key": Fault(
        "store/key_limits.py",
        "    if (amount - room) * each > ROUNDING:\n",
        "    if False:\n",
        "gets .* answers",
        ("limits",),
    ),
    "a lease is more than was taken": Fault(
        "core/shared_limits.py",
        "            self._lease.add(taken.amount, asked, least)\n",
        "            self._lease.add(taken.amount + 9, asked, least)\n",
        "gets .* answers",
        ("limits",),
    ),
    "the answers of another server are not counted": Fault(
        "store/key_limits.py",
        "    most = held.limit - int(taken or 0)\n",
        "    most = held.limit\n",
        "answers at a time",
        ("limits",),
    ),
    "a claim that nobody was told of counts as a crash": Fault(
        "store/vector_stores.py",
        "crashed = row.worker not in (None, lease.worker)",
        "crashed = True",
        "is failed, not",
        ("index",),
    ),
    "a line that has a result is answered again": Fault(
        "app/batch_work.py",
        "            self.done[index] = True\n",
        "            pass\n",
        "is answered again|two results",
        ("lines",),
    ),
    "a batch counts its lines anew at a takeover": Fault(
        "app/batch_work.py",
        "projection = BatchLog(log.progress, stored.total, time.time)",
        "projection = BatchLog(Progress(), stored.total, time.time)",
        "results, and counts",
        ("lines",),
    ),
    "a line of a batch is left out": Fault(
        "app/batch_work.py",
        "for index in order if not self._done[index])",
        "for index in order[:-1] if not self._done[index])",
        "has results of",
        ("lines",),
    ),
    "a file of results is not whole": Fault(
        "app/batch_work.py",
        'yield b"".join(results_in(entry.events, failed=failed))',
        'yield b"".join([*results_in(entry.events, failed=failed)][:2])',
        "has results of",
        ("lines",),
    ),
    "the file of a batch that has ended is kept": Fault(
        "app/batch_work.py",
        "        await store.blobs.release(record.owner, record.id)\n",
        "        pass\n",
        "and holds its file",
        ("lines",),
    ),
    "what a batch has written is deleted": Fault(
        "app/batch_work.py",
        "    await store.files.replace(file)\n",
        "    await asyncio.gather(store.files.replace(file), store.files.delete(record.owner, file_id))\n",
        "No such File|results",
        ("lines",),
    ),
    "the response after one that was steered does not begin": Fault(
        "store/responses.py",
        "        transaction.execute_many(_BEGIN, waiting)\n",
        "        pass\n",
        "is not answered|never end",
        ("steer",),
    ),
}

SUITE = Suite(FAULTS, Path(__file__).with_name("seeds.json"), simulate, fits)

if __name__ == "__main__":
    SUITE.main(__doc__)
