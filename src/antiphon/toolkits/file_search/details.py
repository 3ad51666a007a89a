"""What `file_search` tells of its results, besides their texts for the model."""

from collections.abc import Iterator, Sequence

from antiphon.apis.citations import CitableDetails, TextCitation
from antiphon.toolkits.file_search.query import FileResult, file_citations

TYPE = "file_search"
"""The type of the tool."""


class FileSearchDetails(CitableDetails, frozen=True, tag="files_searched"):
    """Vector stores were searched: the search of this `number` in the answer, counted from 0."""

    queries: tuple[str, ...]
    number: int
    results: tuple[FileResult, ...]

    @classmethod
    def citations(cls, text: str, details: Sequence["FileSearchDetails"]) -> Iterator[TextCitation]:
        """The results that a text cites by the numbers of their search, and of themselves."""
        searches = {search.number: search.results for search in details}
        for start, end, search, result in file_citations(text):
            results = searches.get(search, ())
            if result < len(results):
                file = results[result]
                yield TextCitation(start, end, file_id=file.file_id, filename=file.filename)
