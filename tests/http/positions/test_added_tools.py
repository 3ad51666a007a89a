"""Tools that come in the middle of a conversation are called with the right arguments, in every API."""

import json
from typing import Any

import pytest

from tests.apis.chat.support import collected
from tests.http.api import Api, client, user
from tests.http.chat_api import events
from tests.http.positions.model import CallingModel, begins
from tests.http.positions.test_tool_search import called
from tests.server import running

SCHEMA = {
    "type": "object",
    "properties": {"number": {"type": "integer"}, "text": {"type": "string"}, "all": {"type": "boolean"}},
    "required": ["number", "text", "all"],
    "additionalProperties": False,
}
CALL = ("ns__lookup", {"number": 7, "text": "7", "all": True})
LOOKUP = {"type": "function", "name": "lookup", "description": "Looks up.", "parameters": SCHEMA}
NAMESPACE = {"type": "namespace", "name": "ns", "description": "Lookups.", "tools": [LOOKUP]}
OWN = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("mode", ["whole", "streamed", "stored", "conversation"])
async def test_items_add_tools(api: Api, model: CallingModel, mode: str, strict: bool) -> None:
    own: dict[str, Any] = {"tools": [OWN]}
    if mode == "conversation":
        own["conversation"] = (await api.conversation()).removeprefix("/conversations/")
    ask = api.streamed if mode == "streamed" else api.create
    model.will("Hi.")
    sent = [user("Hello")]
    first = await ask(sent, **own)
    tools = [{**NAMESPACE, "tools": [{**LOOKUP, "strict": strict}]}]
    given = [{"type": "additional_tools", "role": "developer", "tools": tools}, user("Call it.")]
    if mode == "stored":
        own["previous_response_id"] = first["id"]
    model.will(CALL)
    second = await ask(
        given if mode in ("stored", "conversation") else [*sent, *first["output"], *given], **own
    )
    assert called(second["output"][0]) == ("ns", "lookup", CALL[1])
    assert begins(model.prompts)
    if strict:
        assert model.allows(CALL)
        assert not model.allows((CALL[0], {"number": "7"}))


@pytest.mark.parametrize("mode", ["whole", "streamed", "stored"])
async def test_messages_of_chats_add_tools(api: Api, model: CallingModel, mode: str) -> None:
    def tool(given: Any, name: str) -> Any:
        return {"type": "function", "function": {**given, "name": name, "type": None}}

    messages = [user("Hello")]
    for step, more in (
        ("Hi.", []),
        (CALL, [{"role": "system", "tools": [tool(LOOKUP, CALL[0])]}, user("Go.")]),
    ):
        messages = [*messages, *more]
        body = {"model": "scripted", "messages": messages, "tools": [tool(OWN, "now")]}
        body |= {"stream": mode == "streamed", "store": mode == "stored"}
        model.will(step)  # type: ignore[arg-type]
        response = await api.http.post("/chat/completions", json=body)
        assert response.status_code == 200, response.text
        if mode == "streamed":
            choice = collected(events(response.text)[:-1])[0]
        else:
            choice = response.json()["choices"][0]
        messages = [*messages, {"role": "assistant", "content": "Hi."}]
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] == CALL[0]
    assert json.loads(call["function"]["arguments"]) == CALL[1]
    assert begins(model.prompts)


async def test_a_tool_whose_message_is_left_out_is_listed() -> None:
    model = CallingModel("hermes", context=600)
    added = {"type": "additional_tools", "role": "developer", "tools": [NAMESPACE]}
    long = [user(f"number {number}") for number in range(200)]
    model.will(CALL)
    async with running(model, dialect="hermes") as server, client(server) as api:
        response = await api.create([user("Hello"), added, *long], tools=[OWN], truncation="auto")
    assert called(response["output"][0]) == ("ns", "lookup", CALL[1])
    [prompt] = model.prompts
    assert "number 0<" not in prompt
    assert prompt.index("ns__lookup") < prompt.index("number 199")
