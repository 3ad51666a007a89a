"""Functions, and choices of one, in the form of another API are refused: the error names the place and the form."""

from typing import Any

import httpx2 as httpx
import pytest

from tests.server import NO_TLS, running

CHAT = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
RESPONSES = {"type": "function", "name": "f", "parameters": {"type": "object"}}
MESSAGES = {"name": "f", "input_schema": {"type": "object"}}

REFUSED = [
    ("/chat/completions", RESPONSES, "tools[0].function", "object with the 'name'"),
    ("/chat/completions", MESSAGES, "tools[0].type", ""),
    ("/responses", CHAT, "tools[0].name", "beside its 'type'"),
    ("/responses", MESSAGES, "tools[0].type", ""),
    ("/responses", {"type": "namespace", "name": "n", "tools": [CHAT]}, "tools[0].tools[0].name", "beside"),
    ("/messages", CHAT, "tools[0].type", "'input_schema'"),
    ("/messages", RESPONSES, "tools[0].type", "'input_schema'"),
]

CHOICES = [
    ("/chat/completions", CHAT, {"type": "function", "name": "f"}, "tool_choice.function", "'name'"),
    (
        "/chat/completions",
        CHAT,
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        },
        "tool_choice.allowed_tools.tools[0]",
        "an object of that name",
    ),
    ("/responses", RESPONSES, {"type": "function", "function": {"name": "f"}}, "tool_choice.name", "beside"),
]


def asking(path: str, **more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": "Hi"}]
    return {
        "model": "scripted",
        "max_tokens": 9,
        **({"input": "Hi"} if "resp" in path else {"messages": said}),
        **more,
    }


@pytest.mark.parametrize(
    ("path", "more", "param", "remedy"),
    [
        *((path, {"tools": [tool]}, param, remedy) for path, tool, param, remedy in REFUSED),
        *(
            (path, {"tools": [tool], "tool_choice": choice}, param, remedy)
            for path, tool, choice, param, remedy in CHOICES
        ),
    ],
)
async def test_the_form_of_another_api_is_refused(
    path: str, more: dict[str, Any], param: str, remedy: str
) -> None:
    async with (
        running([{"output": "Hi"}]) as server,
        httpx.AsyncClient(verify=NO_TLS, base_url=f"{server.url}/v1") as client,
    ):
        answer = await client.post(path, json=asking(path, **more))

    error = answer.json()["error"]
    assert answer.status_code == 400, error
    assert param in error["message"]
    assert remedy in error["message"]
    assert error.get("param", param) == param
