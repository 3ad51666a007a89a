"""The conventions of Ollama's API."""

from antiphon.apis.api import Api
from antiphon.apis.ollama.errors import ErrorBody, encode_error

OLLAMA = Api(
    name="Ollama",
    encode_error=encode_error,
    error_type=ErrorBody,
    media_type=b"application/x-ndjson",
    keep_alive=b" ",  # before the next line: clients read an empty line as one that is no JSON
    any_content_type=True,
)
"""All below /api."""
