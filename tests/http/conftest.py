"""Clients of the `server` that a module makes: alice's, with the OpenAI SDK and without."""

from collections.abc import AsyncIterator

import httpx2 as httpx
import pytest_asyncio
from openai import AsyncOpenAI

from tests.http.api import sdk
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
