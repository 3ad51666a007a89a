"""The package `openai-harmony`, asked to render the conversations of `harmony_conversations`."""

from importlib import import_module
from typing import Any

from tests.harmony_vocabulary import encoding
from tests.render.harmony_conversations import Case, Written

DATE = "2025-06-28"


def reference_tokens(case: Case) -> list[int]:
    """The prompt of a conversation, without the reasoning that the case leaves out."""
    return _tokens(case, [pair.written for pair in case.pairs if pair.shown and pair.written])


def reference_tokens_of_its_choice(case: Case) -> list[int]:
    """The prompt of a conversation, without the reasoning that the reference leaves out."""
    return _tokens(case, [pair.written for pair in case.pairs if pair.written], auto_drop_analysis=True)


def _tokens(case: Case, messages: list[Written], *, auto_drop_analysis: bool = False) -> list[int]:
    harmony = _harmony()
    written = [_system(case), *_developer(case), *map(_message, messages)]
    config = harmony.RenderConversationConfig(auto_drop_analysis=auto_drop_analysis)
    conversation = harmony.Conversation.from_messages(written)
    return encoding().render_conversation_for_completion(conversation, harmony.Role.ASSISTANT, config)


def reference_developer(*tools: dict[str, Any]) -> str:
    """The developer's message that describes these tools, as text."""
    harmony = _harmony()
    described = [harmony.ToolDescription(**tool) for tool in tools]
    content = harmony.DeveloperContent.new().with_function_tools(described)
    message = harmony.Message.from_role_and_content(harmony.Role.DEVELOPER, content)
    return encoding().decode(encoding().render(message))


def _harmony() -> Any:
    """The package, which tests that are not compared do without."""
    return import_module("openai_harmony")


def _message(written: Written) -> Any:
    harmony = _harmony()
    return harmony.Message(
        author=harmony.Author(role=harmony.Role(written.role), name=written.name),
        content=[harmony.TextContent(text=written.text)],
        recipient=written.recipient,
        channel=written.channel,
        content_type=written.content_type,
    )


def _system(case: Case) -> Any:
    harmony = _harmony()
    content = harmony.SystemContent.new().with_conversation_start_date(DATE)
    content = content.with_reasoning_effort(harmony.ReasoningEffort(case.effort))
    if case.identity is not None:
        content = content.with_model_identity(case.identity)
    for name in case.built_in:
        content = content.with_tools(getattr(harmony.ToolNamespaceConfig, name)())
    return harmony.Message.from_role_and_content(harmony.Role.SYSTEM, content)


def _developer(case: Case) -> list[Any]:
    harmony = _harmony()
    content = harmony.DeveloperContent.new()
    if case.instructions:
        content = content.with_instructions(case.instructions)
    if case.tools:
        tools = [
            harmony.ToolDescription(
                name=tool.name,
                description=tool.description or "",
                parameters=dict(tool.parameters) if tool.parameters.get("properties") else None,
            )
            for tool in case.tools
        ]
        content = content.with_function_tools(tools)
    shown = case.instructions or case.tools
    return [harmony.Message.from_role_and_content(harmony.Role.DEVELOPER, content)] if shown else []
