from antiphon.render.capabilities import TemplateCapabilities
from antiphon.render.messages import gather
from antiphon.render.tool_prompt import PLAIN_HISTORY, ToolPromptRenderer
from tests.render.support import HERMES, call, output, say

IGNORES = TemplateCapabilities(tools=False, calls=False, results=False)
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def test_tools_are_described_in_the_system_message() -> None:
    text = '# Tools\n\n<tools>\n{"type": "function", "function": {"name": "f"}}\n</tools>'
    writer = ToolPromptRenderer(HERMES)
    assert writer.describe_tools([], TOOLS) == [{"role": "system", "content": text}]
    (system,) = writer.describe_tools([{"role": "system", "content": "Be brief."}], TOOLS)
    assert system["content"] == "Be brief.\n\n" + text


def test_calls_are_written_into_what_was_said() -> None:
    messages = gather([say("assistant", "ok"), call(), call("b", arguments="broken")])
    (written,) = ToolPromptRenderer(HERMES).write_history(messages, IGNORES)
    assert written == {
        "role": "assistant",
        "content": 'ok\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": "broken"}\n</tool_call>',
    }


def test_results_in_a_row_are_one_message_of_the_user() -> None:
    messages = gather([output("a", "1"), output("b", "2"), say("user", "q"), output("c", "3")])
    written = ToolPromptRenderer(HERMES).write_history(messages, IGNORES)
    assert [message["role"] for message in written] == ["user", "user", "user"]
    assert written[0]["content"] == (
        "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>"
    )


def test_what_the_template_shows_is_left_alone() -> None:
    messages = gather([call(), output()])
    assert ToolPromptRenderer(HERMES).write_history(messages, TemplateCapabilities()) == messages


def test_history_is_written_plainly_without_a_dialect() -> None:
    called, result = ToolPromptRenderer(PLAIN_HISTORY).write_history(gather([call(), output()]), IGNORES)
    assert called["content"] == '{"name": "get_weather", "arguments": {"city": "Zürich"}}'
    assert result == {"role": "user", "content": "sunny"}
