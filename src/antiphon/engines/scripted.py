r"""An engine that replays written text: for tests, docs, demos and load benches.

It stands where a model would, so that everything above it (rendering,
decoding, HTTP) runs for real and the answer is known beforehand. A script is
JSON Lines; the first line whose `when` occurs in the rendered prompt answers:

    {"when": "weather", "output": "<tool_call>\n{…}\n</tool_call>", "split": "chars"}
    {"output": "Hello there!", "delay_ms": 20}

The keys are the fields of `Line`. The text is the model's raw text with special
tokens written out; all of it is shown, whatever `Generation.preserve` says: what
a real model would hide is simply not written. Each piece of the text is one token
and one chunk, and one chunk is one step of the engine.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
from msgspec import Struct

from antiphon.core.chunks import Chunk, Finish, FinishReason, Token
from antiphon.core.errors import EngineError, EngineNotReadyError
from antiphon.engines.admission import Admission
from antiphon.engines.engine import Capabilities, Generation, ModelCard

TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
{{- 'You may call these functions:\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}
{{- '\\n</tools>\\nFor each call write <tool_call>\\n' }}
{{- '{"name": NAME, "arguments": OBJECT}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif not (tools and loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking %}{{ '<think>\\n' }}{% endif %}
{%- endif %}
"""
"""ChatML with Hermes-style tools. With `enable_thinking` true the prompt ends in `<think>`."""

# A special token, a tag, a word with the space before it, white space, or one other character.
_PIECES = re.compile(r"<\|[^<>|]*\|>|</?\w+>|\s?\w+|\s+|[^\w\s]")


class Line(Struct, frozen=True, forbid_unknown_fields=True):
    """One answer of a script.

    `when` must occur in the rendered prompt; None matches any. `split` says where
    the pieces of `output` end: "whole", "chars", a number of characters for each,
    the positions of the cuts, or None for word-like pieces. `finish` is "stop" or
    "length". `delay_ms` is the pause before each chunk. `tokens` repeats the pieces
    in a circle until there are so many. `fail_after` raises EngineError after so
    many chunks.
    """

    output: str
    when: str | None = None
    split: str | int | list[int] | None = None
    finish: FinishReason = FinishReason.STOP
    delay_ms: float = 0
    tokens: int | None = None
    fail_after: int | None = None

    def __post_init__(self) -> None:
        for name in ("delay_ms", "tokens", "fail_after"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"`{name}` must not be negative")
        if self.tokens and not self.output:
            raise ValueError("`tokens` repeats `output`, which must not be empty then")
        _cut(self.output, self.split)


class _Answer(Struct, frozen=True):
    """A line made ready to be replayed: its chunks, each with one token."""

    line: Line
    chunks: tuple[Chunk, ...]

    @property
    def length(self) -> int:
        """How many chunks the whole answer has."""
        return len(self.chunks) if self.line.tokens is None else self.line.tokens

    def replay(self, limit: int) -> Iterator[Chunk]:
        """The chunks, at most `limit`, the last one with the end. Raises EngineError if the line says so."""
        line, length = self.line, min(limit, self.length)
        chunks = cycle(self.chunks)
        if line.fail_after is not None and line.fail_after <= length:
            yield from islice(chunks, line.fail_after)
            raise EngineError(f"The script says to fail after {line.fail_after} chunks.")
        yield from islice(chunks, max(length - 1, 0))
        last = next(chunks) if length else Chunk("")
        reason = FinishReason.LENGTH if length < self.length else line.finish
        yield Chunk(last.text, last.tokens, Finish(reason))


def _cut(text: str, split: str | int | Sequence[int] | None) -> list[str]:
    """The pieces of `text`. Raises ValueError if `split` makes no sense for it."""
    match split:
        case None:
            return _PIECES.findall(text)
        case "whole":
            return [text] if text else []
        case "chars":
            return list(text)
        case int() if split > 0:
            return [text[start : start + split] for start in range(0, len(text), split)]
        case list() if all(start < end for start, end in pairwise([0, *split, len(text)])):
            return [text[start:end] for start, end in pairwise([0, *split, len(text)])]
    raise ValueError(
        '`split` must be "whole", "chars", a number above 0, or rising positions inside `output`'
    )


def _token_id(piece: str) -> int:
    return crc32(piece.encode())


def _chunk(piece: str) -> Chunk:
    return Chunk(piece, (Token(_token_id(piece), piece),))


def read_script(path: Path) -> list[Line]:
    """The lines of a script file. Raises EngineError that names the line and the key at fault."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise EngineError(f"The script {path} cannot be read ({error.strerror}).") from error
    script = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                script.append(msgspec.json.decode(line, type=Line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise EngineError(f"{path.name}, line {number}: {error}.") from error
    return script


def _read_lines(lines: Iterable[Line | Mapping[str, Any]]) -> list[Line]:
    script = []
    for number, line in enumerate(lines, 1):
        try:
            script.append(line if isinstance(line, Line) else msgspec.convert(line, Line))
        except msgspec.ValidationError as error:
            raise EngineError(f"The script, line {number}: {error}.") from error
    return script


class ScriptedEngine:
    """Answers by `script`: the path of a JSON Lines file, or its lines as mappings.

    `active` generations run now, `steps` chunks were yielded in all. Raises
    EngineError at once if the script is malformed.
    """

    def __init__(
        self,
        script: Path | Iterable[Line | Mapping[str, Any]],
        *,
        name: str = "scripted",
        context: int = 32768,
        parallel: int = 256,
    ) -> None:
        lines = read_script(script) if isinstance(script, Path) else _read_lines(script)
        self._answers = [_Answer(line, tuple(map(_chunk, _cut(line.output, line.split)))) for line in lines]
        self._admission = Admission(parallel)
        self._ready = False
        self.card = ModelCard(
            name=name,
            context=context,
            chat_template=TEMPLATE,
            eos="<|im_end|>",
            capabilities=Capabilities(token_ids=True, seed=True),
        )
        self.active = 0
        self.steps = 0

    @property
    def waiting(self) -> int:
        """Generations that wait for a slot."""
        return self._admission.waiting

    async def start(self) -> None:
        """Begin to accept generations."""
        self._ready = True

    async def stop(self) -> None:
        """Accept no more; those that run fail at their next chunk."""
        self._ready = False

    async def tokenize(self, text: str) -> list[int]:
        """Word-like pieces, each with an id that depends on its text alone."""
        return [_token_id(piece) for piece in _cut(text, None)]

    async def generate(self, generation: Generation) -> AsyncGenerator[list[Chunk], None]:
        """Replay the first line that fits the prompt, one chunk in a batch."""
        async with self._admission.slot():
            answer = self._find(generation.prompt.text)
            pause = answer.line.delay_ms / 1000
            self.active += 1
            try:
                for chunk in answer.replay(generation.max_tokens):
                    await asyncio.sleep(pause)  # with 0 too: others get their turn after each step
                    if not self._ready:
                        raise EngineNotReadyError
                    self.steps += 1
                    yield [chunk]
            finally:
                self.active -= 1

    def _find(self, prompt: str) -> _Answer:
        for answer in self._answers:
            if answer.line.when is None or answer.line.when in prompt:
                return answer
        raise EngineError(
            "No line of the script fits this prompt. Add one whose `when` occurs in it, or one without."
        )
