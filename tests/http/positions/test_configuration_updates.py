"""Settings that count from a place of the input on: they act on the answer, and leave the prompt before them as it was."""

from typing import Any

import pytest

from tests.http.api import Api, text_of, user
from tests.http.positions.model import CallingModel, begins

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "name": "number", "schema": SCHEMA, "strict": True}
OTHER = {"type": "json_schema", "name": "text", "schema": {"type": "string"}, "strict": True}


def update(effort: str | None = None, **text: Any) -> dict[str, Any]:
    given = {"reasoning": {"effort": effort}} if effort else {}
    return {"type": "configuration_update", **given, **({"text": text} if text else {})}


@pytest.mark.parametrize("mode", ["whole", "streamed", "stored", "conversation"])
async def test_they_count_from_their_place_on(api: Api, model: CallingModel, mode: str) -> None:
    own: dict[str, Any] = {"reasoning": {"effort": "low"}}
    if mode == "conversation":
        own["conversation"] = (await api.conversation()).removeprefix("/conversations/")
    sent: list[Any] = []
    last = None
    for given in (
        [user("One")],
        [update("high"), user("Two")],
        [update("high"), user("Three")],
        [update("none")],
    ):
        model.will("Yes.")
        fields = own if mode != "stored" or last is None else own | {"previous_response_id": last["id"]}
        sent = given if mode in ("stored", "conversation") else [*sent, *given]
        last = await (api.streamed if mode == "streamed" else api.create)(sent, **fields)
        assert last["reasoning"]["effort"] == "low"
        sent = [*sent, *last["output"]]
    prompts = model.prompts
    assert begins(prompts)
    assert prompts[-1].count("Reasoning effort from now on: high.") == 1
    assert prompts[-1].count("Reasoning effort from now on: none.") == 1


async def test_a_format_holds_from_its_place_on(api: Api, model: CallingModel) -> None:
    given: list[Any] = []
    for item in (user("One"), update(format=FORMAT), update(format={"type": "text"})):
        model.will('{"a": 1}')
        given = [*given, item]
        response = await api.create(given)
        given = [*given, *response["output"]]
        assert response["text"]["format"] == {"type": "text"}
        assert text_of(response) == '{"a": 1}'
    before, held, after = model.constraints
    assert before is None
    assert held is not None
    assert after is None
    assert begins(model.prompts)


async def test_a_format_replaces_that_of_the_request(api: Api, model: CallingModel) -> None:
    model.will('"a"')
    first = await api.create([user("One")], text={"format": OTHER})
    model.will('{"a": 1}')
    second = await api.create(
        [update(format=FORMAT)], text={"format": OTHER}, previous_response_id=first["id"]
    )
    assert second["text"]["format"]["name"] == "text"
    assert begins(model.prompts)


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "configuration_update"}, "input[1].reasoning"),
        (update("immense"), "input[1].reasoning.effort"),
        (update(format={"type": "json"}), "input[1].text.format.type"),
    ],
)
async def test_what_cannot_be_updated_is_refused_by_its_place(api: Api, item: Any, param: str) -> None:
    assert (await api.refused([user("One"), item]))["param"] == param


async def test_updates_are_items_of_the_input(api: Api, model: CallingModel) -> None:
    model.will("Yes.")
    response = await api.create([user("One"), update("high")])
    items = (await api.http.get(f"/responses/{response['id']}/input_items?order=asc")).json()["data"]
    assert items[1] == update("high") | {"id": items[1]["id"]}
