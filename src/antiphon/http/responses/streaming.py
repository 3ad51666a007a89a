"""The wire events of a response → server-sent events."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from antiphon.apis.responses.framing import DONE, frame, obfuscate
from antiphon.core.errors import AntiphonError
from antiphon.http.context import Context
from antiphon.http.errors import encode_error
from antiphon.http.sse import Source, StreamResponse

Payloads = AsyncGenerator[list[bytes], None]
"""The wire events of a response, as they come."""

LastWords = Callable[[Exception], list[bytes]]
"""The wire events that end a stream that failed."""


def stream_of(
    context: Context, payloads: Payloads, obfuscated: bool, last_words: LastWords | None = None
) -> StreamResponse:
    """The events as a response to a request. Without `last_words` a failure is told as a bare error."""

    def fail(error: AntiphonError) -> bytes:
        if last_words is None:
            return b"event: error\ndata: %b\n\n%b" % (encode_error(error), DONE)
        return frame(last_words(error)) + DONE

    source = _framed(payloads, obfuscate if obfuscated else list)
    return StreamResponse(source, fail, patience=context.options.patience)


async def _framed(payloads: Payloads, pad: Callable[[list[bytes]], list[bytes]]) -> Source:
    async with aclosing(payloads):
        async for lines in payloads:
            yield frame(pad(lines))
    yield DONE
