"""The conventions of Anthropic's API."""

from antiphon.apis.api import Api
from antiphon.apis.messages.errors import encode_error
from antiphon.apis.messages.resource import ErrorBody
from antiphon.core.accounts import Account

MESSAGES = Api(
    name="Anthropic",
    encode_error=encode_error,
    error_type=ErrorBody,
    keep_alive=b'event: ping\ndata: {"type":"ping"}\n\n',
    limit_headers=Account.anthropic_headers,
    client_header=b"anthropic-version",
)
"""Messages, their counts of tokens and their batches."""
