"""Messages: text, with or without the log probabilities of its tokens."""

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from msgspec import UNSET, Raw, Struct, UnsetType

from antiphon.apis.citations import TextCitation
from antiphon.apis.logprobs import EncodedList, bytes_of, logprob_of, text_of
from antiphon.apis.responses.events import (
    AnnotationAdded,
    ContentPartAdded,
    ContentPartDone,
    TextDelta,
    TextDone,
)
from antiphon.apis.responses.output.item import IN_PROGRESS, ItemPosition, OpenItem, encode, frame
from antiphon.apis.responses.resource import LogProb, OutputMessage, OutputText, TopLogProb
from antiphon.core.chunks import Token
from antiphon.core.events import Delta
from antiphon.core.items import Item, Message
from antiphon.core.plain_tokens import SequenceNumbers

Cite = Callable[[str], Sequence[TextCitation]]
"""The citations in a text."""


class FileCitation(Struct, tag_field="type", tag="file_citation"):
    """The model cites a part of a file that was found. `index` is where its citation begins in the text."""

    file_id: str
    index: int
    filename: str


class UrlCitation(Struct, tag_field="type", tag="url_citation"):
    """The model cites a page of the web. The citation is from `start_index` to `end_index` of the text."""

    url: str
    title: str
    start_index: int
    end_index: int


class ContainerFileCitation(Struct, tag_field="type", tag="container_file_citation"):
    """The model names a file that a program of the answer has written. Indexes are those of its path."""

    container_id: str
    file_id: str
    filename: str
    start_index: int
    end_index: int


def annotation_of(cited: TextCitation) -> FileCitation | UrlCitation | ContainerFileCitation:
    """The annotation of a citation."""
    if cited.container_id:
        return ContainerFileCitation(
            cited.container_id, cited.file_id, cited.filename, cited.start, cited.end
        )
    if cited.file_id:
        return FileCitation(cited.file_id, cited.start, cited.filename)
    return UrlCitation(cited.url, cited.title, cited.start, cited.end)


def _no_citations(text: str) -> Sequence[TextCitation]:
    return ()


class OpenMessage(OpenItem):
    """A message with one part. `phase` is the model's name for it, if it has one.

    `cite` finds the citations in its text.
    """

    def __init__(
        self, numbers: SequenceNumbers, position: ItemPosition, phase: str | None, cite: Cite = _no_citations
    ) -> None:
        super().__init__(numbers, position)
        self._cite = cite
        self._annotations: Sequence[Struct] = ()
        self.frame = frame(TextDelta, *position, 0)
        self._phase: str | UnsetType = UNSET if phase is None else phase
        self._logprobs = EncodedList()  # for all events that have all of them

    def item(self, status: str) -> OutputMessage:
        """The message; without a part if it has only begun."""
        content = () if status == IN_PROGRESS else (self._part(),)
        return OutputMessage(self.position.id, status, content, phase=self._phase)

    def start(self) -> list[bytes]:
        """The message, then its part."""
        return [self.added(), self.numbers.encode(ContentPartAdded, *self.position, 0, self._part())]

    def end(self, item: Item) -> list[bytes]:
        """The whole text, then its part."""
        assert isinstance(item, Message)
        self.text = item.text
        self._annotations = tuple(map(annotation_of, self._cite(item.text)))
        return [
            *(
                self.numbers.encode(AnnotationAdded, *self.position, 0, index, annotation)
                for index, annotation in enumerate(self._annotations)
            ),
            self.numbers.encode(TextDone, *self.position, 0, self.text, self._logprobs.raw),
            self.numbers.encode(ContentPartDone, *self.position, 0, self._part()),
        ]

    def _part(self) -> OutputText:
        return OutputText(self.text, self._annotations, cast("Sequence[Raw]", self._logprobs.raw))


class OpenScoredMessage(OpenMessage):
    """A message with the log probabilities of its tokens."""

    def __init__(
        self, numbers: SequenceNumbers, position: ItemPosition, phase: str | None, cite: Cite = _no_citations
    ) -> None:
        super().__init__(numbers, position, phase, cite)
        self.frame = None

    def add(self, event: Delta, out: list[bytes]) -> None:
        """Append a delta with the tokens that begin in it."""
        logprobs = to_logprobs(event.tokens)
        self._logprobs.extend(logprobs)
        out.append(self.numbers.encode(TextDelta, *self.position, 0, event.text, logprobs))


def to_logprobs(tokens: Iterable[Token]) -> list[Raw]:
    """An encoded `LogProb` for each token."""
    return [Raw(encode(_logprob(token))) for token in tokens]


def _logprob(token: Token) -> LogProb:
    top = [TopLogProb(text_of(other), logprob_of(other), bytes_of(other)) for other in token.top]
    return LogProb(text_of(token), logprob_of(token), bytes_of(token), top)
