"""Rendered text → prompts of tokens, with the media in their places."""

from collections.abc import Sequence

from antiphon.core.errors import RequestError
from antiphon.core.items import MediaPart
from antiphon.engines.engine import Engine, Prompt, as_text, check_size
from antiphon.render.media import FENCE, split_at_media
from antiphon.render.special_tokens import SEPARATOR, split_at_separators


class PromptReader:
    """Makes prompts for an engine. With a `context`, text that cannot fit it is refused before any work."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def rendered(self, text: str, media: Sequence[MediaPart] = (), context: int = 0) -> Prompt:
        """The prompt that was rendered as this text. Raises RequestError."""
        prompt = await self.continuation(text, media, context)
        return self._opened(prompt)

    async def texts(self, texts: Sequence[str], context: int) -> Prompt:
        """The prompt made of these texts, each read for itself. Raises RequestError."""
        return self._opened(await self._read(texts, context))

    async def continuation(self, text: str, media: Sequence[MediaPart] = (), context: int = 0) -> Prompt:
        """The same for rendered text that follows other text of a prompt. Raises RequestError."""
        max_tokens = self._engine.card.context
        # Each separator begins a text of its own to tokenize.
        if max_tokens and (spelled := text.count(SEPARATOR)) > max_tokens:
            raise too_long(f"more than {spelled}", max_tokens)
        if media and FENCE in text:
            return await self._with_media(text, media, context)
        return await self._read(self._pieces(text), context)

    async def _with_media(self, text: str, media: Sequence[MediaPart], context: int) -> Prompt:
        parts: list[MediaPart] = []
        placeholders: list[str] = []
        around: list[tuple[str, ...]] = []
        pieces: list[str] = []
        for piece in split_at_media(text):
            if isinstance(piece, str):
                around.append((*self._pieces(piece),))
                pieces += around[-1]
            else:
                number, placeholder = piece
                parts.append(media[number])
                placeholders.append(placeholder)
                pieces.append(placeholder)
        prompt = await self._read(pieces, context)
        return Prompt(prompt.text, prompt.ids, (*parts,), (*around,), placeholders=(*placeholders,))

    def _pieces(self, text: str) -> list[str]:
        """A rendered text in the pieces that are tokenized one by one; one piece, if a server does that."""
        pieces = split_at_separators(text)
        return [as_text(pieces)] if self._engine.card.capabilities.text_prompts else pieces

    async def _read(self, texts: Sequence[str], context: int) -> Prompt:
        if context:
            check_size(sum(map(len, texts)), context)
        return Prompt("".join(texts), tuple(await self._engine.tokenize(texts)))

    def _opened(self, prompt: Prompt) -> Prompt:
        """The prompt with the token that the model needs before any text."""
        opening = self._engine.card.opening
        if opening is None or prompt.ids[:1] == (opening,):
            return prompt
        ids = (opening, *prompt.ids)
        return Prompt(prompt.text, ids, prompt.media, prompt.around, placeholders=prompt.placeholders)


def too_long(tokens: int | str, context: int) -> RequestError:
    """The error for a conversation that does not fit the context."""
    message = (
        f"The prompt is too long: it has {tokens} tokens, but the context of this model is "
        f"{context} tokens, answer included. Shorten the conversation."
    )
    return RequestError(message, param="conversation", code="context_length_exceeded")
