"""The conventions of System One."""

from antiphon.apis.api import Api
from antiphon.apis.systemone.errors import encode_error, status
from antiphon.apis.systemone.schema import SystemOneFailureBody

SYSTEM_ONE = Api(name="SystemOne", encode_error=encode_error, error_type=SystemOneFailureBody, status=status)
"""Decisions in the form of Jev and its clients."""
