r"""An engine that replays written text: for tests, docs, demos and load benches.

It stands where a model would, so that everything above it (rendering,
decoding, HTTP) runs for real and the answer is known beforehand. The first line
of its script (see `script.py`) whose `when` occurs in the rendered prompt
answers. All of its text is shown, whatever `Generation.preserve` says: what a
real model would hide is simply not written. One chunk is one step of the engine.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from antiphon.core.chunks import Chunk
from antiphon.core.errors import EngineError, EngineNotReadyError, RequestError
from antiphon.engines.admission import Admission
from antiphon.engines.engine import Capabilities, Generation, ModelCard
from antiphon.engines.script import Answer, Line, answer_of, check_lines, pieces_of, read_script, token_id

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

_DRAWING = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "seed",
        "cache_salt",
    }
)
"""What is taken and changes nothing: a script draws no tokens, and has no cache."""

HONOURED = _DRAWING | {
    "max_tokens",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "logprobs",
    "priority",
}
"""The fields of `Sampling` that are taken.

Before `min_tokens`, and with `ignore_eos`, a line begins again where it would end.
"""

CAPABILITIES = Capabilities(token_ids=True, sampling=HONOURED)

REMEMBERED_PIECES = 65536
"""Pieces of prompts whose ids can be turned into text again."""

REMEMBERED_GENERATIONS = 64


class ScriptedEngine:
    """Answers by `script`: the path of a JSON Lines file, or its lines as mappings.

    `capabilities` is what it claims; of what it does not really have it plays the
    same line. `active` generations run now, `steps` chunks were yielded in all,
    `seen` are the last generations that were asked for. Raises EngineError at once
    if the script is malformed.
    """

    def __init__(
        self,
        script: Path | Iterable[Line | Mapping[str, Any]],
        *,
        name: str = "scripted",
        context: int = 32768,
        parallel: int = 256,
        capabilities: Capabilities = CAPABILITIES,
    ) -> None:
        lines = read_script(script) if isinstance(script, Path) else check_lines(script)
        self._answers = [answer_of(line) for line in lines]
        self._pieces = _Pieces(chunk.text for answer in self._answers for chunk in answer.chunks)
        self._admission = Admission(parallel)
        self._ready = False
        self.card = ModelCard(
            name=name, context=context, chat_template=TEMPLATE, eos="<|im_end|>", capabilities=capabilities
        )
        self.active = 0
        self.steps = 0
        self.seen: deque[Generation] = deque(maxlen=REMEMBERED_GENERATIONS)

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
        return self._pieces.ids(pieces_of(text))

    async def detokenize(self, ids: Sequence[int]) -> str:
        """The pieces with these ids: those of the script, and those that were tokenized not too long ago.

        Raises RequestError, which blames `tokens`, for any other id.
        """
        return "".join(map(self._pieces.text, ids))

    async def generate(self, generation: Generation) -> AsyncGenerator[list[Chunk], None]:
        """Replay the first line that fits the prompt, one chunk in a batch."""
        self.seen.append(generation)
        async with self._admission.slot(generation.sampling.priority or 0):
            answer = self._find(generation.prompt.text)
            pause = answer.line.delay_ms / 1000
            self.active += 1
            try:
                for chunk in answer.play(generation):
                    await asyncio.sleep(pause)  # with 0 too: others get their turn after each step
                    if not self._ready:
                        raise EngineNotReadyError
                    self.steps += 1
                    yield [chunk]
            finally:
                self.active -= 1

    def _find(self, prompt: str) -> Answer:
        for answer in self._answers:
            if answer.line.when is None or answer.line.when in prompt:
                return answer
        raise EngineError(
            "No line of the script fits this prompt. Add one whose `when` occurs in it, or one without."
        )


class _Pieces:
    """Which piece has which id: all of `own`, and as many of others as there is room for."""

    def __init__(self, own: Iterable[str]) -> None:
        self._own = {token_id(piece): piece for piece in own}
        self._others: dict[int, str] = {}

    def ids(self, pieces: Iterable[str]) -> list[int]:
        ids = []
        for piece in pieces:
            ids.append(token_id(piece))
            self._others[ids[-1]] = piece
        while len(self._others) > REMEMBERED_PIECES:
            del self._others[next(iter(self._others))]
        return ids

    def text(self, token: int) -> str:
        piece = self._own.get(token) or self._others.get(token)
        if piece is None:
            raise RequestError(f"There is no token {token}.", param="tokens")
        return piece
