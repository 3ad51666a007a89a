"""Small chat templates, each with the manners of a family that real ones have."""

CHATML = """
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

GEMMA = """
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

MISTRAL = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {{- '[SYSTEM]' + messages[0].content + '[/SYSTEM]' }}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or message.get('tool_calls')) %}
        {%- if (message['role'] == 'user') != (ns.index % 2 == 0) %}
            {{- raise_exception('Roles must alternate.') }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{%- if tools is not none %}{{ '[TOOLS]' + tools | tojson + '[/TOOLS]' }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.get('tool_calls') %}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}{{ raise_exception('Ids must have length 9.') }}{% endif %}
            {{- '[CALL]' + call.function.name + call.function.arguments | tojson + call.id }}
        {%- endfor %}
        {{- eos_token }}
    {%- elif message.role == 'assistant' %}
        {%- if not message.content %}{{ raise_exception('Say something.') }}{% endif %}
        {{- message.content + eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[RESULT]' + message.tool_call_id + message.content + '[/RESULT]' }}
    {%- else %}
        {{- raise_exception('Unknown role ' + message.role) }}
    {%- endif %}
{%- endfor %}"""

LLAMA = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}{% set messages = messages[1:] %}
{%- else %}{% set system = '' %}{% endif %}
{{- '<|system|>' + system }}
{%- if tools is not none %}{% for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %}{% endif %}
{%- for message in messages %}
    {%- if message.tool_calls is defined %}
        {%- if message.tool_calls | length != 1 %}{{ raise_exception('Single calls only!') }}{% endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|assistant|>{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}' }}
    {%- elif message.role == 'tool' %}
        {{- '<|ipython|>' + message.content | tojson }}
    {%- else %}
        {{- '<|' + message.role + '|>' + message.content | trim }}
    {%- endif %}
{%- endfor %}
{{- '<|assistant|>' }}"""

DEEPSEEK = """
{%- for message in messages %}
    {%- if message.role == 'assistant' and message.content is none %}
        {%- for call in message.tool_calls %}{{ '<call>' + call.function.name + call.function.arguments }}{% endfor %}
    {%- elif message.role == 'tool' %}{{ '<output>' + message.content }}
    {%- else %}{{ '<' + message.role + '>' + message.content }}{% endif %}
{%- endfor %}"""

XML = """
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<assistant>' + message.content + '<think>' + message.reasoning_content + '</think>' }}
        {%- for call in message.tool_calls or [] %}
            {%- for key, value in call.function.arguments.items() %}{{ '<arg ' + key + '>' + value | string }}{% endfor %}
        {%- endfor %}
    {%- elif message.role in ['developer', 'system', 'user', 'tool'] %}{{ '<' + message.role + '>' + message.content }}
    {%- else %}{{ raise_exception('Unknown role') }}{% endif %}
{%- endfor %}"""

PARTS = """
{%- for message in messages %}
    {{- '<' + message.role + '>' }}
    {%- for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}
{%- endfor %}"""

STRICT = """
{%- if tools %}{{ '<tools>' + tools | tojson }}{% endif %}
{%- set last = namespace(calls=0) %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if not last.calls %}{{ raise_exception('A result without a call.') }}{% endif %}
        {%- set last.calls = last.calls - 1 %}
        {{- '<result>' + message.content + '</result>' }}
    {%- else %}
        {%- if last.calls %}{{ raise_exception('A call without a result.') }}{% endif %}
        {{- '<' + message.role + '>' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- set last.calls = last.calls + 1 %}
            {{- '<call>' + call.function.name + call.function.arguments | tojson + '</call>' }}
        {%- endfor %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""
"""Counts calls and results, as those of MiniMax, Kimi K3 and llm-jp do in ways of their own."""

ALL = {
    "chatml": CHATML,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "llama": LLAMA,
    "deepseek": DEEPSEEK,
    "xml": XML,
    "parts": PARTS,
    "strict": STRICT,
}
