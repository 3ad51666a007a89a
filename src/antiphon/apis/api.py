"""The conventions of an API, which http/ asks for: how its errors, its streams and its requests look.

Each API has an `Api`; those of OpenAI share one, `OPENAI`, and another says what differs from it.
"""

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from msgspec import Struct

from antiphon.apis.errors import encode_error
from antiphon.core.accounts import Account
from antiphon.core.errors import AntiphonError


class Api(Struct, frozen=True):
    """The conventions of an API; the defaults are those of OpenAI's.

    `encode_error` makes the body of an error, whose type is `error_type`; `status` is its HTTP status.
    `parameters` are the names of
    fields in requests, for errors, where code below the API knows another: field → name, which may have dots.

    A stream has this `media_type`; one without events for some time sends `keep_alive`, or nothing, if that
    is empty.

    The name of the model is the parameter `model_in_path` of the path; without one it is the field `model` of
    the body. With `any_content_type` bodies are JSON whatever their header says.

    `limit_headers` are the headers of responses that say what is left of a key's limits. `client_header` is
    one that every client of the API sends: on a path that several APIs have, errors are in the API's form.
    """

    name: str = "OpenAI"
    encode_error: Callable[[AntiphonError], bytes] = encode_error
    error_type: Any = None
    status: Callable[[AntiphonError], int] = attrgetter("status")
    parameters: Mapping[str, str] = {}
    media_type: bytes = b"text/event-stream; charset=utf-8"
    keep_alive: bytes = b": keep-alive\n\n"
    model_in_path: str | None = None
    any_content_type: bool = False
    limit_headers: Callable[[Account], Iterable[tuple[str, str]]] = Account.openai_headers
    client_header: bytes | None = None


OPENAI = Api()
"""Chat Completions, Completions, Responses, and all other paths of OpenAI and vLLM."""
