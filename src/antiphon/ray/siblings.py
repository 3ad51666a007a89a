"""The replicas of a deployment as one server: how one of them asks all (`app/siblings.py`).

Ray passes the question on to each replica; only `READ_SECONDS` and the like bound the wait. If one does not
answer in time, or Ray does not know the replicas yet, the one that was asked answers for itself alone.
"""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import msgspec
import structlog
from ray.serve.exceptions import DeploymentUnavailableError

from antiphon.app.app import App
from antiphon.app.siblings import Call, Given, Result
from antiphon.http.process import REPLY_SECONDS, SiblingError, answer
from antiphon.processes.channel import Answer
from antiphon.processes.channel import Call as Asked

log = structlog.get_logger()


class Replicas:
    """The replicas of this deployment, each of which is a server: none has a part of the work only."""

    place = 0
    count = 1

    def __init__(self, handle: Callable[[], Any]) -> None:
        """The `handle` is Ray's, of the deployment."""
        self._handle = handle
        self.server = uuid4().hex

    async def ask(self, app: App, call: Call[Given, Result], given: Given) -> list[Result]:
        """What all replicas answer, or this one alone."""
        try:
            asked = self._handle().broadcast("answer_sibling", call.name, msgspec.msgpack.encode(given))
            seconds = call.seconds + REPLY_SECONDS
            bodies = await asked.results_async(timeout_s=seconds, return_exceptions=True)
        except DeploymentUnavailableError:  # Ray has not told this replica of any yet
            return [await call.run(app, given)]
        except Exception as error:  # Ray has its own for each reason
            log.warning("the other replicas were not asked", call=call.name, why=str(error) or repr(error))
            return [await call.run(app, given)]
        answers = [msgspec.msgpack.decode(body, type=Answer) for body in bodies if isinstance(body, bytes)]
        for one in answers:
            if one.refusal is not None:
                raise SiblingError(one.refusal)
        return [msgspec.msgpack.decode(one.body, type=call.gives) for one in answers] or [
            await call.run(app, given)
        ]


async def answered(app: App, name: str, body: bytes) -> bytes:
    """What this replica answers to another one."""
    return msgspec.msgpack.encode(await answer(app, Asked(0, name, body)))
