"""Response templates in the manner of several families, for tests."""

from typing import Any

FUNCTION = {"type": "function", "function": "{content}"}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}


def template(anchor: str = "<|start|>", **fields: Any) -> dict[str, Any]:
    return {"version": 1, "defaults": {"role": "assistant"}, "start_anchor": anchor, "fields": fields}


THINK = {"open": "<think>", "close": "</think>"}
TAGGED = {"open_pattern": r"\s*<tool_call>", "close": "</tool_call>", "content": "json", "repeats": True, "transform": FUNCTION}  # fmt: skip
PARAMETERS = r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"
ELEMENTS = {"content": "xml-inline", "content_args": {"tag_pattern": PARAMETERS}, "repeats": True, "transform": NAMED}  # fmt: skip
JSON_OR_TEXT = {"name": "json", "args": {"allow_non_json": True}}

HERMES = template("<|im_start|>assistant\n", reasoning_content=THINK, tool_calls=TAGGED, content={"close": "<|im_end|>"})  # fmt: skip

CODER = template(
    "<|im_start|>assistant\n",
    reasoning_content=THINK,
    tool_calls={
        "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
        "close_pattern": r"</function>\s*</tool_call>",
        **ELEMENTS,
    },
    content={"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)"},
)

BARE_CODER = template(
    reasoning=THINK,
    tool_calls={
        "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>",
        "close": "</tool_call>",
        **ELEMENTS,
    },
)
"""Says nothing of the answer, nor of the function's closing tag."""

COHERE = template(
    content={"open": "<|START_RESPONSE|>", "close": "<|END_RESPONSE|>"},
    thinking={"open": "<|START_THINKING|>", "close": "<|END_THINKING|>"},
    tool_calls={
        "open": "<|START_ACTION|>",
        "close": "<|END_ACTION|>",
        "content": "json",
        "transform_each": True,
        "transform": {
            "function": {"name": "{tool_name}", "arguments": "{parameters}"},
            "id": "{tool_call_id}",
        },
    },
)

CHANNELS = template(
    thinking={"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
    content={"open": "<|channel|>final<|message|>", "close": ["<|end|>", "<|return|>"]},
    tool_calls={
        "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
        "close": "<|call|>",
        "content": "json",
        "repeats": True,
        "transform": NAMED,
    },
)

GEMMA = template(
    thinking={"open": "<|channel>thought\n", "close": "<channel|>"},
    tool_calls={
        "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
        "close": "<tool_call|>",
        "content": "json",
        "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
        "repeats": True,
        "transform": NAMED,
    },
    content={"close": ["<turn|>", "<eos>"]},
)

ERNIE = template(
    thinking={"open_pattern": r"(?:^|<think>\s*)", "close": "</think>"},
    content={"open": "<response>\n", "close_pattern": r"\n?</response>"},
    tool_calls={**TAGGED, "open": "<tool_call>", "open_pattern": None},
)

ADDRESSED = template(
    reasoning_content={"open_pattern": r"to=self<\|msg\|>", "close": "<|eom|>"},
    content={
        "open_pattern": r"to=(?:user|all)<\|msg\|>",
        "close": ["<|eot|>", "<|eom|>"],
        "repeats": True,
        "join": "",
    },
    tool_calls={
        "open_pattern": r'<invoke\b[^>]*?\bname="(?P<name>[^"]+)">',
        "close": "</invoke>",
        **ELEMENTS,
        "content_args": {
            "tag_pattern": r'<param\b[^>]*?\bname="(?P<key>[^"]+)"[^>]*?>(?P<value>.*?)</param>',
            "value_parser": JSON_OR_TEXT,
        },
    },
)

BRACKETS = template(
    thinking={"open": "[THINK]", "close": "[/THINK]"},
    tool_calls={
        "open_pattern": r"\[TOOL_CALLS\](?P<name>[A-Za-z0-9_.:-]+)\[ARGS\]",
        "close_pattern": r"(?=\[TOOL_CALLS\]|</s>)",
        "content": "json",
        "repeats": True,
        "transform": NAMED,
    },
    content={"close": "</s>"},
)

GROUPED = template(
    thinking=THINK,
    tool_calls={
        "open_pattern": r'(?:\n\n)?(?:<calls>\s*)?<call name="(?P<name>[^"]+)">\s*',
        "close_pattern": r"\s*</call>\s*(?:</calls>)?",
        **ELEMENTS,
        "content_args": {
            "tag_pattern": r'<arg name="(?P<key>[^"]+)" string="(?:true|false)">(?P<value>.*?)</arg>',
            "value_parser": JSON_OR_TEXT,
        },
    },
    content={"close": "eos"},
)

KEYED = template(
    thinking={"open_pattern": r"\x3cthink[>]", "close": "</think>"},
    tool_calls={
        "open_pattern": r"<tool_call>(?P<name>[^<\n]+)",
        "close": "</tool_call>",
        **ELEMENTS,
        "content_args": {
            "tag_pattern": r"<key>(?P<key>.*?)</key>\s*<value>(?P<value>.*?)</value>",
            "value_parser": JSON_OR_TEXT,
        },
    },
    content={"close": "<|end|>"},
)
"""Writes no marker after the name of a function."""

UNCLOSED = template(
    thinking=THINK,
    tool_calls={
        "open_pattern": r"<call (?P<name>\w+|\$\w+)>",
        "close": "</call>",
        **ELEMENTS,
        "content_args": {
            "tag_pattern": r"<arg=(?P<key>\w+)>(?P<value>.*?)(?:</arg>|(?=<arg=))",
        },
    },
    content={"close": "<|end|>"},
)
"""A value may end where the next one begins."""

ALL = {
    "hermes": HERMES,
    "coder": CODER,
    "bare coder": BARE_CODER,
    "cohere": COHERE,
    "channels": CHANNELS,
    "gemma": GEMMA,
    "ernie": ERNIE,
    "addressed": ADDRESSED,
    "brackets": BRACKETS,
    "grouped": GROUPED,
    "keyed": KEYED,
    "unclosed": UNCLOSED,
}
