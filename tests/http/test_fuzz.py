"""Every endpoint, with bodies made from its own types and spoiled: only what a client did wrong is refused."""

import json

import httpx2 as httpx
import pytest
from starlette.routing import Route

from antiphon.http.app import ROUTES
from tests.server import NO_TLS, running
from tests.wire_cases import ENDPOINTS, IDS, MADE, cases

SCRIPT = [{"output": 'Hello!\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'}]
NUMBER = 500


def test_every_endpoint_that_takes_a_body_is_tried() -> None:
    taking = [route.path for route in ROUTES if isinstance(route, Route) and route.methods == {"POST"}]
    assert {path for path in taking if not path.endswith("/cancel")} == {*map(_route_of, ENDPOINTS)}


def _route_of(path: str) -> str:
    for id_, name in IDS.items():
        path = path.replace(id_, f"{{{name}}}")
    return path


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_comes_is_answered_or_refused(seed: int) -> None:
    answered = 0
    async with (
        running(SCRIPT) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=server.url, timeout=30) as client,
    ):
        ids = {name: (await client.post(path, json=body)).json()["id"] for name, (path, body) in MADE.items()}
        for case in cases(seed, NUMBER, ids):
            headers = {"content-type": case.content_type}
            response = await client.request(case.method, case.path, content=case.body, headers=headers)
            # 501: the model cannot decide.
            assert response.status_code < 500 or response.status_code == 501, (case, response.text)
            if response.status_code == 200:
                answered += 1
            else:
                error = json.loads(response.content)["error"]
                assert error if case.path.startswith("/api/") else error["message"], case
    assert answered > NUMBER / 50  # not all of them are spoiled
