"""The scripts of the benches: tokens of a realistic mix, and the requests for them.

Every token is a separate chunk, as a model under load yields them. Markers are single tokens, as in the
models that use them. Nothing is random: two runs, and the two sides of a comparison, get the same tokens.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, islice
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.core.chunks import Chunk, Finish, FinishReason, Token

MODEL = "bench"
MIN_TOKENS = 128
"""A shorter answer has no room for thoughts and a call."""

_PROSE = """\
A choir answers a choir: one side sings a line, and the other takes it up. That is all there is
to it, she said, "and yet nobody does it well" — least of all in the Café Zürich, at 9:30 p.m.

First, the words must come in order. Second, they must come at once; a voice that waits until
it knows the end of the verse (as some do) is late. Third: no voice may drown another.

* The cost of a word is the same, whether it is the 10th or the 10,000th.
* Nobody sings what was sung before.
"""
_CODE = """\
def total(prices: dict[str, float], *, tax: float = 0.19) -> float:
    \"\"\"The sum of all prices, with "tax" on top.\"\"\"
    if not prices:
        raise ValueError('no prices\\n')
    return sum(price * (1 + tax) for price in prices.values())

"""
# An escape, a word with the space before it, white space, or one other character.
_PIECES = re.compile(r"\\.|[ ]?\w+|\s+|[^\w\s]")
_TOOL = {
    "type": "function",
    "function": {
        "name": "write_file",
        "description": "Write a file.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
            "required": ["path", "content"],
        },
    },
}


class Case(Struct, frozen=True):
    """A kind of answer. `tokens` makes one of any length, `tools` are what the request offers."""

    name: str
    tokens: Callable[[int], list[str]]
    tools: tuple[dict[str, Any], ...] = ()

    def request(self, *, stream: bool, prompt: str = "Sing.") -> bytes:
        """The body of the request that gets this answer."""
        body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": prompt}]}
        if self.tools:
            body["tools"] = self.tools
        return msgspec.json.encode(body | {"stream": stream})

    def chunks(self, length: int) -> list[Chunk]:
        """An answer of `length` tokens, at least `MIN_TOKENS`, as an engine yields it."""
        chunks = [Chunk(text, (Token(id_, text),)) for id_, text in enumerate(self.tokens(length))]
        last = chunks[-1]
        return [*chunks[:-1], Chunk(last.text, last.tokens, Finish(FinishReason.STOP))]


def _pieces(text: str) -> list[str]:
    return _PIECES.findall(text)


def _repeat(text: str, length: int) -> list[str]:
    return list(islice(cycle(_pieces(text)), max(0, length)))


def _plain(length: int) -> list[str]:
    return _repeat(_PROSE, length)


def _reasoning(length: int) -> list[str]:
    """Half thoughts, half text."""
    thoughts = ["<think>", "\n", *_repeat(_PROSE, length // 2 - 5), ".", "\n", "</think>", "\n\n"]
    return thoughts + _plain(length - len(thoughts))


def _call(length: int, arguments: Iterable[str]) -> list[str]:
    """A quarter thoughts, then a call."""
    thoughts = ["<think>", "\n", *_repeat(_PROSE, length // 4 - 5), ".", "\n", "</think>", "\n\n"]
    before = [*thoughts, "<tool_call>", "\n", *_pieces('{"name": "write_file", "arguments": ')]
    after = ["}", "\n", "</tool_call>"]
    return before + list(arguments) + after


def _long_string(length: int) -> list[str]:
    """A call that writes a file: nearly all of it is one string."""
    before, after = _pieces('{"path": "src/total.py", "lines": [1, 6], "content": "'), ['"', "}"]
    code = msgspec.json.encode(_CODE).decode()[1:-1]
    room = length - len(_call(length, before + after))
    return _call(length, before + _repeat(code, room) + after)


def _structured(length: int) -> list[str]:
    """A call with many small objects; the rest of the length is white space."""
    before, after = _pieces('{"edits": ['), ["]", "}"]
    one = _pieces('{"line": 12, "keep": true, "score": -0.25, "text": "a new\\nline"}')
    room = length - len(_call(length, before + one + after))
    count, left = divmod(room, len(one) + 1)
    return _call(length, before + ([*one, ","] * count) + one + [" "] * left + after)


PLAIN = Case("plain", _plain)
CASES = (
    PLAIN,
    Case("reasoning", _reasoning),
    Case("reasoning + call, long string", _long_string, (_TOOL,)),
    Case("reasoning + call, many objects", _structured, (_TOOL,)),
)


def script_line(tokens: list[str], when: str, delay_ms: float = 0) -> bytes:
    """The line of a scripted engine's file with these tokens, for a prompt that contains `when`."""
    line = {"when": when, "output": "".join(tokens), "split": list(_cuts(tokens)), "delay_ms": delay_ms}
    return msgspec.json.encode(line)


def _cuts(tokens: list[str]) -> Iterator[int]:
    position = 0
    for token in tokens[:-1]:
        position += len(token)
        yield position


class Plan(Struct, frozen=True):
    """A request over HTTP: plain text, with `delay_ms` before each token."""

    prompt: str
    tokens: int
    delay_ms: float = 0

    def request(self, *, stream: bool) -> bytes:
        """The body of the request."""
        return PLAIN.request(stream=stream, prompt=self.prompt)

    @property
    def line(self) -> bytes:
        """The line of the scripted engine that answers it."""
        return script_line(PLAIN.tokens(self.tokens), self.prompt, self.delay_ms)


FULL = Plan("Sing as fast as you can.", 256)
PACED = Plan("Sing at an even pace.", 64, delay_ms=20)
SHORT = Plan("Sing one word.", 1)
PLANS = (FULL, PACED, SHORT)
