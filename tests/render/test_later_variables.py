"""Variables that a conversation replaces act where the answer begins, if the prompt before that stays as it is."""

import pytest

from antiphon.core.items import Message, Role, TextPart
from antiphon.core.turn import Turn
from antiphon.render.renderer import CHATML, ChatTemplateRenderer

AT_HEAD = "{{- 'Effort: ' + (reasoning_effort or 'medium') + '\\n' -}}" + CHATML
AT_END = (
    CHATML + "{%- if add_generation_prompt and not enable_thinking -%}{{- '<think></think>' -}}{%- endif -%}"
)


@pytest.mark.parametrize(("template", "acts"), [(AT_HEAD, False), (AT_END, True), (AT_HEAD + AT_END, False)])
def test_they_never_change_what_comes_before(template: str, acts: bool) -> None:
    renderer = ChatTemplateRenderer(template, bos="", eos="", tool_prompt=None)
    first = {"reasoning_effort": "high", "enable_thinking": True}
    later = {"reasoning_effort": "none", "enable_thinking": False}
    said = (Message(Role.USER, (TextPart("Hello"),)),)
    before = renderer.render(Turn("m", said, variables=first))
    after = renderer.render(Turn("m", said, variables=first, later_variables=later))
    assert after == before + ("<think></think>" if acts else "")
