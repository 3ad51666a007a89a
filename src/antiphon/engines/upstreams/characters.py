"""Characters of several tokens, in the events of servers that return texts and the ids of their tokens.

A server that has computed several tokens, or could not send them at once, returns them in one event with one
text, and the last of them may only begin a character. The event does not show that, so the tokens are looked
up: usually only the last one, and each only once. This is needed where an answer may have to be continued,
because an engine cannot continue after such a token: see `run/replay.py`.
"""

from collections.abc import Callable

from antiphon.core.errors import EngineError, RequestError
from antiphon.engines.engine import GenerationRequest

BROKEN = "\ufffd"
"""The text of bytes that are not a whole character."""

LONGEST = 8
"""The largest number of tokens of a character. It has four bytes at most: more tokens never become one."""

Decode = Callable[[tuple[int, ...]], str]
"""The text of tokens, special ones included. Raises NotFetched."""


class Characters:
    """Finds out which of the tokens of an answer of vLLM the texts of its events belong to.

    A text ends with the last character that is complete.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._pending: tuple[int, ...] = ()  # the last tokens, if no text belongs to them yet

    def read(self, ids: tuple[int, ...], text: str) -> int:
        """The number of the next tokens that this text belongs to: those after them begin a character.

        If it raises NotFetched, nothing has changed.
        """
        end = self._end(ids, text) if text else 0
        self._pending = ids[end:] if end else (self._pending + ids)[-LONGEST:]
        return end

    def _end(self, ids: tuple[int, ...], text: str) -> int:
        if len(ids) == 1:
            return 1
        tokens, before = self._pending + ids, len(self._pending)
        ends = (end for end in range(len(tokens), before, -1) if _is_whole(self._decode, tokens[:end], text))
        return next(ends, len(tokens)) - before


class WholeEvents:
    """Holds back the texts of SGLang's events until one ends with a whole character.

    If an event does not, its text may have a part of its last token, or lack its last words.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._pending: tuple[int, ...] = ()
        self._held: list[str] = []

    def read(self, ids: tuple[int, ...], text: str) -> str:
        """The text to pass on. If it raises NotFetched, nothing has changed."""
        tokens = (self._pending + ids)[-LONGEST:]
        # The text of an event that ends inside a character ends with a space, or with a Chinese character.
        if text and ((text[-1:].isascii() and text[-1] != " ") or _is_whole(self._decode, tokens, text)):
            self._pending = ()
            return self.rest() + text
        self._pending = tokens
        self._held.append(text)
        return ""

    def rest(self) -> str:
        """The text that is held back."""
        held, self._held = self._held, []
        return "".join(held)


def _is_whole(decode: Decode, tokens: tuple[int, ...], text: str) -> bool:
    """Whether the last of these tokens does not begin a character. The text may end with broken ones."""
    start = end = len(tokens)
    while start and end - start < LONGEST and decode(tokens[start - 1 : start]).endswith(BROKEN):
        start -= 1
    return _broken(decode(tokens[start:])) <= _broken(text) if start < end else True


class FirstText:
    """Finds the first text of an answer in what vLLM returns.

    vLLM decodes the tokens of an answer together with those of its prompt, and removes the text of the
    prompt, but not if that ends with `\ufffd`, as it does inside a character.
    """

    def __init__(self, decode: Decode, request: GenerationRequest) -> None:
        self._decode = decode
        self._request = request
        self._ids: tuple[int, ...] = ()

    def read(self, ids: tuple[int, ...], text: str) -> str:
        """The text of these tokens, without the prompt; `skip` is called for them if they have none.

        Raises EngineError or RequestError if it is not known which part of it is not of the prompt.
        """
        if not text:
            return text
        prompt, expected = self._request.prompt.text, self._decode(self._ids + ids)
        if len(text) <= len(expected) + 1 and text != prompt + expected:  # alone, a token may lack its space
            return text
        if prompt.endswith(BROKEN):
            if text.startswith(prompt):
                return text[len(prompt) :]
            if text.endswith(expected):
                return expected
            whole = prompt.rstrip(BROKEN)
            if text.startswith(whole):  # the answer completes the character
                return text[len(whole) :]
        if self._request.answer_start:
            raise EngineError from RuntimeError("the server repeats the prompt")
        message = "The prompt ends inside a character, which the server of this model cannot complete."
        raise RequestError(f"{message} End it with a whole character.", param="prompt")

    def skip(self, ids: tuple[int, ...]) -> None:
        """These tokens have no text."""
        self._ids += ids


def may_repeat_prompt(request: GenerationRequest) -> bool:
    """Whether a `FirstText` is needed."""
    return bool(request.answer_start) or request.prompt.text.endswith(BROKEN)


def _broken(text: str) -> int:
    """The number of broken characters at the end."""
    return len(text) - len(text.rstrip(BROKEN))
