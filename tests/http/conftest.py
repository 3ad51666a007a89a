"""Clients of the `server` that a module makes: alice's, with the OpenAI SDK and without. And what it logs."""

import logging
from collections.abc import AsyncIterator, Iterator

import httpx2 as httpx
import pytest
import pytest_asyncio
from openai import AsyncOpenAI
from structlog.testing import capture_logs

from antiphon.log import with_request
from tests.http.api import sdk
from tests.http.test_observing import Line
from tests.server import NO_TLS, Running


@pytest_asyncio.fixture
async def alice(server: Running) -> AsyncIterator[AsyncOpenAI]:
    async with sdk(server, "alice") as client:
        yield client


@pytest_asyncio.fixture
async def http(server: Running) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": "Bearer alice"}
    async with httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1", headers=headers) as http:
        yield http


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[Line]]:
    """What is logged. Nothing of it is an error, or has a traceback."""
    with capture_logs(processors=[with_request]) as lines, caplog.at_level(logging.WARNING):
        yield lines
    assert caplog.get_records("call") == []
    assert [each for each in lines if each["log_level"] == "error" or "exc_info" in each] == []
