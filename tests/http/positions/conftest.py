"""Tests of tools and settings by place: in dialects that differ, with a model that calls what its test says."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.http.api import Api, client
from tests.http.positions.model import SOME, CallingModel
from tests.server import running


@pytest.fixture(params=SOME)
def dialect(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def model(dialect: str) -> CallingModel:
    return CallingModel(dialect)


@pytest_asyncio.fixture
async def api(model: CallingModel, dialect: str) -> AsyncIterator[Api]:
    """The Responses API of a server with the model."""
    async with running(model, dialect=dialect, date="2025-06-28") as server, client(server) as api:
        yield api
