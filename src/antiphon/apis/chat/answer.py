"""The events of an answer → the body of the full answer."""

from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw, UnsetType

from antiphon.apis.chat.calls import add_calls, reason_shown
from antiphon.apis.chat.resource import (
    Annotation,
    AnswerMessage,
    ChatCompletion,
    Choice,
    ChoiceLogprobs,
    TokenLogprob,
    TopLogprob,
    UrlCitation,
)
from antiphon.apis.citations import Citations
from antiphon.apis.completion_body import ChoiceError, PromptLogprobs, finish_reason, total
from antiphon.apis.ending import notes_at_end
from antiphon.apis.envelope import DEFAULT_PRESENTATION, Envelope, PresentationOptions
from antiphon.apis.logprobs import EncodedList, bytes_of, logprob_of, namer, prompt_logprobs
from antiphon.apis.moderation import ChatModeration, chat_moderation
from antiphon.apis.projection import BodyProjection, ChoiceResult, shows_tokens
from antiphon.core.accumulator import PARAGRAPH
from antiphon.core.chunks import Token
from antiphon.core.events import Event, Finished, Usage
from antiphon.core.moderation import ModerationResult
from antiphon.core.tool_result import ToolResult

_NO_TOKENS = EncodedList()


class Annotations:
    """Finds the citations in the content of one choice; `before` is the length of the echo before it."""

    def __init__(self, before: int) -> None:
        self._citations: Citations | None = None  # None without server tools
        self._start = before  # of the next message

    def add(self, result: ToolResult) -> None:
        """Later messages may cite this result of a server tool."""
        self._citations = self._citations or Citations()
        self._citations.add(result)

    def find(self, text: str) -> tuple[Annotation, ...]:
        """The annotations of the next message: each message is a paragraph of the content."""
        start = self._start
        self._start += len(text) + len(PARAGRAPH)
        if self._citations is None:
            return ()
        return tuple(
            Annotation(UrlCitation(start + cited.start, start + cited.end, cited.url, cited.title))
            for cited in self._citations.find(text)
            if cited.url  # OpenAI's messages have no citations of files
        )


class ChatCompletionBuilder(BodyProjection):
    """Builds the full answer from the events of all choices; `body` is complete when all have finished."""

    def __init__(
        self, envelope: Envelope, choices: int, presentation: PresentationOptions = DEFAULT_PRESENTATION
    ) -> None:
        self._envelope = envelope
        self._presentation = presentation
        self.shows_tokens = presentation.logprobs is not None or presentation.token_ids
        self._shown = shows_tokens(presentation)
        scored = None if presentation.logprobs is None else partial(token_logprobs, presentation=presentation)
        self._choices = [
            ChoiceResult(scored, EncodedList() if scored else _NO_TOKENS) for _ in range(choices)
        ]
        self._scored: PromptLogprobs | UnsetType = UNSET
        self._body: bytes | None = None
        self._moderation: ChatModeration | UnsetType = UNSET

    def moderated(self, result: ModerationResult) -> None:
        """What a guard says of the request, and of each choice."""
        self._moderation = chat_moderation(result)

    def set_prompts(self, prompts: Iterable[Any]) -> None:
        super().set_prompts(prompts)
        if self._presentation.prompt_logprobs and len(self._envelope.prompts) == 1:
            self._scored = prompt_logprobs(self._envelope.prompts[0].tokens)

    def push(self, choice: int, events: list[Event]) -> list[bytes]:
        """Process the next events of a choice."""
        state = self._choices[choice]
        state.push(events)
        if self.shows_tokens:
            for event in filter(self._shown, events):
                state.show(event.tokens)
        return []

    def body(self) -> bytes:
        """The JSON body."""
        if self._body is None:  # it may be stored, then sent
            self._body = self._encoded()
        return self._body

    def _encoded(self) -> bytes:
        envelope, presentation = self._envelope, self._presentation
        prompt = envelope.prompts[0] if len(envelope.prompts) == 1 else None
        choices: list[Choice] = []
        usages: list[Usage] = []
        for index, state in enumerate(self._choices):
            end = state.end
            choices.append(_choice(index, state, end, presentation))
            usages.append(end.usage)
        completion = ChatCompletion(
            id=envelope.id,
            created=envelope.created,
            model=envelope.model,
            choices=choices,
            usage=total(envelope.prompt_tokens, usages, len(envelope.prompts)),
            system_fingerprint=envelope.system_fingerprint,
            service_tier=presentation.service_tier,
            metadata=presentation.metadata,
            notes=presentation.notes or UNSET,
            prompt_logprobs=self._scored,
            prompt_token_ids=prompt.ids if prompt is not None and presentation.token_ids else UNSET,
            prompt_text=prompt.text if prompt is not None and presentation.prompt_text else UNSET,
            kv_transfer_params=self._choices[0].end.kv_transfer_params or UNSET,
            moderation=self._moderation,
        )
        return msgspec.json.encode(completion)


def _choice(
    index: int, state: ChoiceResult[EncodedList], end: Finished, presentation: PresentationOptions
) -> Choice:
    reason = finish_reason(end.reason, len(state.calls))
    scored = presentation.logprobs is not None
    return Choice(
        index,
        _message(state, presentation),
        reason_shown(reason, presentation),
        logprobs=ChoiceLogprobs(cast("list[Raw]", state.tokens.raw)) if scored else None,
        stop_reason=end.stop,
        token_ids=state.ids if presentation.token_ids else UNSET,
        error=ChoiceError(end.error) if end.error else UNSET,
        unmet=end.unmet or UNSET,
        generations=end.generations or UNSET,
        notes=notes_at_end(end, "max_tokens") or UNSET,
    )


def _message(state: ChoiceResult[EncodedList], presentation: PresentationOptions) -> AnswerMessage:
    text = presentation.echo + PARAGRAPH.join(state.texts)
    # OpenAI: content is null where the model only called functions.
    content = text or (None if state.calls else "")
    message = AnswerMessage(presentation.role, content)
    if state.results:
        message.annotations = _annotations(state, len(presentation.echo))
    if reasoning := PARAGRAPH.join(state.reasonings):
        for name in presentation.reasoning:
            setattr(message, name, reasoning)
    if state.calls:
        add_calls(message, state.calls, presentation)
    return message


def _annotations(state: ChoiceResult[EncodedList], before: int) -> tuple[Annotation, ...]:
    annotations = Annotations(before)
    citations: list[Annotation] = []
    for number, text in enumerate(state.texts):
        for texts, result in state.results:
            if texts == number:
                annotations.add(result)
        citations += annotations.find(text)
    return tuple(citations)


def token_logprobs(tokens: Iterable[Token], presentation: PresentationOptions) -> list[Raw]:
    """An encoded `TokenLogprob` for each token, with the requested number of alternatives.

    In a full answer, each is encoded when its token arrives: encoding all at the end would block the event
    loop.
    """
    name, count = namer(presentation), presentation.logprobs or 0
    return [
        Raw(
            msgspec.json.encode(
                TokenLogprob(
                    name(token),
                    logprob_of(token),
                    bytes_of(token),
                    [TopLogprob(name(top), logprob_of(top), bytes_of(top)) for top in token.top[:count]],
                )
            )
        )
        for token in tokens
    ]
