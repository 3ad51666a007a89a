"""Searches for tools over HTTP: found in the same answer, known from there on, and in every later request."""

import json
from typing import Any

import pytest

from antiphon.engines.upstream import Options, UpstreamEngine
from tests.http.api import Api, client, text_of, user
from tests.http.positions.model import CallingModel, begins
from tests.http.test_socket import connected, heard, send
from tests.response_invariants import check
from tests.server import running

MANY = 25
"""So many tools that there is a search."""
SEARCH = {"type": "tool_search"}
ORDERS = {
    "type": "function",
    "name": "list_orders",
    "description": "Lists the orders of a customer.",
    "parameters": {
        "type": "object",
        "properties": {"customer_id": {"type": "integer", "description": "Whose orders."}},
        "required": ["customer_id"],
        "additionalProperties": False,
    },
    "defer_loading": True,
}
CRM = {"type": "namespace", "name": "crm", "description": "Customers and orders.", "tools": [ORDERS]}
OTHERS = [
    {
        "type": "function",
        "name": f"tool_{number}",
        "description": "Nothing of interest.",
        "parameters": {"type": "object", "properties": {}},
        "defer_loading": True,
    }
    for number in range(MANY)
]
OWN = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}
TOOLS = [OWN, SEARCH, CRM, *OTHERS]
CALL = ("crm__list_orders", {"customer_id": 7})
QUERY = ("tool_search", {"query": "the orders of a customer"})


def kinds(response: Any) -> list[str]:
    return [item["type"] for item in response["output"]]


def called(item: Any) -> tuple[str | None, str, Any]:
    return item.get("namespace"), item["name"], json.loads(item["arguments"])


async def asked(api: Api, mode: str, given: Any, earlier: Any = None, **fields: Any) -> Any:
    """A response to further input, after an earlier one: stored, or sent whole."""
    if earlier is not None and mode == "stored":
        fields["previous_response_id"] = earlier["id"]
    elif earlier is not None:
        given = [*earlier["sent"], *earlier["output"], *given]
    if mode == "background":
        queued = await api.create(given, tools=TOOLS, background=True, **fields)
        return await api.finished(queued["id"]) | {"sent": given}
    response = await (api.streamed if mode == "streamed" else api.create)(given, tools=TOOLS, **fields)
    return response | {"sent": given}


@pytest.mark.parametrize("mode", ["whole", "streamed", "stored", "background"])
async def test_what_is_found_is_called_in_the_same_response(api: Api, model: CallingModel, mode: str) -> None:
    model.will(QUERY, CALL)
    first = await asked(api, mode, [user("How many open orders has customer 7?")])
    assert kinds(first) == ["tool_search_call", "tool_search_output", "function_call"]
    search, found, call = first["output"]
    assert (
        (search["execution"], search["call_id"]) == (found["execution"], found["call_id"]) == ("server", None)
    )
    assert search["arguments"] == QUERY[1]
    assert found["tools"] == [CRM]
    assert called(call) == ("crm", "list_orders", {"customer_id": 7})
    head, after = model.prompts
    assert "crm: Customers and orders." in head
    assert '"customer_id"' not in head
    assert '"customer_id"' in after

    model.will("Three.")
    given = [{"type": "function_call_output", "call_id": call["call_id"], "output": "3"}]
    second = await asked(api, mode, given, first)
    model.will(CALL)
    third = await asked(api, mode, [user("And now?")], second)
    assert text_of(second) == "Three."
    assert kinds(third) == ["function_call"]
    assert begins(model.prompts)


@pytest.mark.parametrize("mode", ["whole", "streamed", "stored"])
async def test_an_early_call_counts_as_a_search(api: Api, model: CallingModel, mode: str) -> None:
    model.will(("crm__list_orders", {"customer": "seven"}), CALL)
    first = await asked(api, mode, [user("How many open orders has customer 7?")])
    assert kinds(first) == ["tool_search_call", "tool_search_output", "function_call"]
    assert first["output"][0]["arguments"]["query"] == "crm__list_orders"
    assert first["output"][1]["tools"] == [CRM]
    assert called(first["output"][2]) == ("crm", "list_orders", {"customer_id": 7})
    model.will("Done.")
    given = [{"type": "function_call_output", "call_id": first["output"][2]["call_id"], "output": "3"}]
    await asked(api, mode, given, first)
    assert begins(model.prompts)


async def test_a_demanded_call_comes_after_the_search(api: Api, model: CallingModel) -> None:
    model.will(QUERY, CALL)
    response = await asked(api, "whole", [user("How many?")], tool_choice="required")
    assert kinds(response) == ["tool_search_call", "tool_search_output", "function_call"]
    assert not model.allows(CALL, 0)
    assert model.allows(CALL, 1)


async def test_what_was_found_may_be_demanded(api: Api, model: CallingModel) -> None:
    model.will(QUERY, "It is there.")
    first = await asked(api, "whole", [user("What is there?")])
    model.will(CALL)
    choice = {"type": "function", "name": "list_orders", "namespace": "crm"}
    second = await asked(api, "whole", [user("Call it.")], first, tool_choice=choice)
    assert called(second["output"][0]) == ("crm", "list_orders", {"customer_id": 7})
    assert model.allows(CALL)
    assert not model.allows(("now", {}))
    assert begins(model.prompts)
    error = await api.refused("Call it.", tools=TOOLS, tool_choice=choice)
    assert error["param"] == "tool_choice.name"


async def test_one_that_is_strict_is_held_to_its_schema_when_it_is_found(
    api: Api, model: CallingModel
) -> None:
    strict = {**CRM, "tools": [{**ORDERS, "strict": True}]}
    model.will(QUERY, CALL)
    await api.create("How many?", tools=[OWN, SEARCH, strict, *OTHERS])
    assert model.constraints[0] is None
    assert model.allows(CALL)
    assert not model.allows((CALL[0], {"customer_id": "seven"}))


async def test_a_few_tools_are_given_at_once(api: Api, model: CallingModel) -> None:
    model.will(CALL)
    response = await api.create("How many?", tools=[OWN, SEARCH, CRM])
    assert kinds(response) == ["function_call"]
    assert [note["param"] for note in response["notes"]] == ["tools"]
    assert '"tool_search"' not in model.prompts[0]
    model.will("Hi.")
    response = await api.create("How many?", tools=[OWN, CRM])
    assert [note["param"] for note in response["notes"]] == ["tools[1].tools[0].defer_loading"]
    model.will("Hi.")
    response = await api.create("How many?", tools=[OWN, SEARCH])
    assert [note["param"] for note in response["notes"]] == ["tools"]


async def test_a_search_of_the_clients_ends_the_response(api: Api, model: CallingModel) -> None:
    searching = {**SEARCH, "execution": "client", "parameters": {"type": "object"}, "description": "Finds."}
    tools = [OWN, searching]
    model.will(("tool_search", {"goal": "orders"}))
    first = await api.create([user("How many?")], tools=tools)
    (call,) = first["output"]
    assert (call["execution"], call["arguments"]) == ("client", {"goal": "orders"})
    found = {"type": "tool_search_output", "call_id": call["call_id"], "execution": "client", "tools": [CRM]}
    model.will(CALL)
    second = await api.create([found], tools=tools, previous_response_id=first["id"])
    assert called(second["output"][0]) == ("crm", "list_orders", {"customer_id": 7})
    assert begins(model.prompts)


async def test_a_compaction_carries_what_was_found(api: Api, model: CallingModel) -> None:
    model.will(QUERY, "It is there.")
    first = await asked(api, "whole", [user("What is there?")])
    model.will("We looked for tools.", CALL)
    limit = {"context_management": [{"type": "compaction", "compact_threshold": 1}]}
    second = await asked(api, "whole", [user("Call it.")], first, **limit)
    assert kinds(second) == ["compaction", "tool_search_output", "function_call"]
    listed = model.prompts[-1]
    assert "customer_id" in listed
    model.will("Done.")
    output = {"type": "function_call_output", "call_id": second["output"][2]["call_id"], "output": "3"}
    third = await asked(api, "whole", [output], second)
    model.will("Done.")
    kept = [user("What is there?"), *second["output"]]
    alone = await asked(api, "whole", [*kept, output, user("Go on.")])
    assert kinds(third) == kinds(alone) == ["message"]
    assert begins([listed, model.prompts[-2]])
    last = model.prompts[-1]
    assert last.index("customer_id") < last.index("We looked for tools.")


async def test_over_a_socket_it_is_the_same(model: CallingModel, dialect: str) -> None:
    async with running(model, dialect=dialect, date="2025-06-28") as server, connected(server) as socket:
        model.will(QUERY, "It is there.")
        await send(socket, [user("What is there?")], tools=TOOLS, store=False)
        first = check(await heard(socket))
        assert kinds(first) == ["tool_search_call", "tool_search_output", "message"]
        model.will(CALL)
        more = {"previous_response_id": first["id"], "store": False}
        await send(socket, [user("Call it.")], tools=TOOLS, **more)
        second = check(await heard(socket))
    assert called(second["output"][0]) == ("crm", "list_orders", {"customer_id": 7})
    assert begins(model.prompts)


async def test_a_model_behind_a_server_of_conversations_searches_too() -> None:
    behind = CallingModel("hermes")
    behind.will(QUERY, CALL)
    async with running(behind, dialect="hermes") as there:
        engine = UpstreamEngine(Options(there.url, upstream_kind="chat"))
        async with running(engine, dialect=None) as server, client(server) as api:
            given = [user("How many?"), {"type": "configuration_update", "reasoning": {"effort": "high"}}]
            response = await api.create(given, tools=TOOLS)
    assert kinds(response) == ["tool_search_call", "tool_search_output", "function_call"]
    assert called(response["output"][2]) == ("crm", "list_orders", {"customer_id": 7})
    head, after = behind.prompts
    assert '"customer_id"' not in head
    assert "crm: Customers and orders." in head
    assert "Reasoning effort from now on: high." in head
    assert '"customer_id"' in after
