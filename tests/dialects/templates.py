"""Small chat templates that write calls in the manner of a family, or of none."""


def chatml(calls: str, reasoning: str = "", opening: str = "", tools: str = "{{- tools | tojson }}") -> str:
    """ChatML with this way to write reasoning and calls; `opening` begins every answer."""
    return f"""
{{%- if tools %}}<|im_start|>system
{tools}<|im_end|>
{{% endif %}}
{{%- for message in messages %}}
{{%- set role = 'user' if message.role == 'tool' else message.role %}}
{{{{- '<|im_start|>' + role + '\\n' }}}}
{{%- if message.reasoning_content %}}{reasoning}{{% endif %}}
{{{{- message.content }}}}
{{%- for call in message.tool_calls or [] %}}
{{%- if message.content or not loop.first %}}{{{{- '\\n' }}}}{{% endif %}}
{calls}
{{%- endfor %}}
{{{{- '<|im_end|>\\n' }}}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{{{{- '<|im_start|>assistant\\n{opening}' }}}}{{% endif %}}"""


THOUGHT = "{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}"

OBJECT = '{"name": call.function.name, "arguments": call.function.arguments}'

TAGS = chatml(f"{{{{- '<tool_call>\\n' }}}}{{{{ {OBJECT} | tojson }}}}{{{{- '\\n</tool_call>' }}}}", THOUGHT)

CODER = chatml(
    """
{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for key, value in call.function.arguments.items() %}
{{- '<parameter=' + key + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' }}
{%- endfor %}
{{- '</function>\\n</tool_call>' }}""",
    THOUGHT,
)

MISTRAL = f"""
{{{{- bos_token }}}}
{{%- if tools %}}[AVAILABLE_TOOLS]{{{{ tools | tojson }}}}[/AVAILABLE_TOOLS]{{% endif %}}
{{%- for message in messages %}}
{{%- if message.role == 'user' %}}{{{{- '[INST]' + message.content + '[/INST]' }}}}
{{%- elif message.role == 'tool' %}}{{{{- '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}}}
{{%- elif message.tool_calls %}}
{{{{- '[TOOL_CALLS][' }}}}
{{%- for call in message.tool_calls %}}{{{{ {OBJECT} | tojson }}}}{{{{ ', ' if not loop.last }}}}{{% endfor %}}
{{{{- ']' + eos_token }}}}
{{%- else %}}{{{{- message.content + eos_token }}}}
{{%- endif %}}
{{%- endfor %}}"""

MADE_UP = chatml("""
{%- set made = {"fn": call.function.name, "given": call.function.arguments} %}
{{- '<<act>>' }}{{ made | tojson }}{{- '<<done>>' }}""")
"""JSON with keys of its own between tags of its own."""

NAMED = chatml(
    "{{- '@do ' + call.function.name + ' with ' }}{{ call.function.arguments | tojson }}{{- ' @od' }}"
)
"""The name is outside of the JSON."""

TEACHING = chatml("").replace("or []", "and []")
"""Describes tools, and shows no calls."""

THINKS = chatml("", THOUGHT, "<think>\\n", tools="").replace("or []", "and []")
"""Thinks, knows no tools."""

TWO_WAYS = chatml(f"{{{{- '<tool_call>' }}}}{{{{ {OBJECT} | tojson }}}}{{{{- '</tool_call>' }}}}")
"""Calls without reasoning."""
