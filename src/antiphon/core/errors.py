"""Everything that can go wrong, in four roots, each with the HTTP status it suggests.

    AntiphonError
    ├── RequestError            the request is wrong                          400
    │   ├── AuthenticationError     no key, or a wrong one                    401
    │   ├── NotFoundError           no such model, response or path           404
    │   ├── MethodNotAllowedError   the path exists, the method does not      405
    │   ├── MalformedBodyError      the body is no JSON                       400
    │   ├── ModelInUseError         a model is to be unloaded, and answers    409
    │   ├── BodyTooLargeError       the body is over the limit                413
    │   ├── MediaTypeError          the body is not JSON                      415
    │   ├── ScopeError              the key is not for this                   403
    │   ├── ClientBusyError         too many requests of this client wait     429
    │   ├── RateLimitError          the key has used up what it may           429
    │   └── UnsupportedModelError   the model has no way to do this           501
    ├── EngineError             the model could not answer                    500
    │   ├── EngineNotReadyError     still loading, or shutting down           503
    │   ├── ModelNotLoadedError     the model could not be loaded             503
    │   ├── EngineBusyError         too many requests wait already            429
    │   └── EngineDiedError         it ended in the middle of an answer       500
    ├── StoreError              stored data cannot be reached                 503
    │   └── StoreFullError          its disk is full                          503
    └── ToolError               a server-side tool failed                     500

The docstring of a class is its default message and names the remedy. A message
reaches clients word for word: it never holds internals. Put those in
`__cause__` (raise … from …), which goes to the log.

To add an error: a class here; its docstring is the message and names the remedy; the table in `docs/api.md`.
"""

import copyreg
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit


class AntiphonError(Exception):
    """Something went wrong."""

    status = 500
    type = "server_error"
    code: str | None = None
    retry_after: float | None = None
    """Seconds after which to try again, if that is known."""

    def __init__(
        self, message: str | None = None, *, param: str | None = None, code: str | None = None
    ) -> None:
        self.message = message or " ".join((self.__doc__ or "").split())
        self.param = param
        if code is not None:
            self.code = code
        super().__init__(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        """An error that another process raised comes back whole, also where its constructor asks for more."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


def missing_extra(what: str, extra: str) -> str:
    """The message for clients if `what` needs an extra that is not installed. It names no paths."""
    return f"{what} cannot be used here: the server is installed without the extra `{extra}`."


def install_extra(what: str, extra: str) -> str:
    """The message for the operator, with the command that installs the extra."""
    return f"{what} cannot be used without an extra: `{installing(extra)}`."


@contextmanager
def needing_extra(option: str, extra: str) -> Iterator[None]:
    """Name the extra that an option needs, if an import in the block fails. Raises AntiphonError."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise AntiphonError(install_extra(option, extra)) from error


def installing(extra: str) -> str:
    """The command that installs an extra, from where Antiphon itself was installed (PEP 610)."""
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415 - slow to import

    try:
        origin = json.loads(distribution("antiphon").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:  # run from its source
        origin = {"url": "file:.", "dir_info": {"editable": True}}
    url, folder = origin.get("url"), origin.get("dir_info")
    if url is None:
        return f"pip install 'antiphon[{extra}]'"
    if folder is None:  # a wheel, or a repository
        source = url if "vcs_info" not in origin else f"{origin['vcs_info']['vcs']}+{url}"
        return f"pip install 'antiphon[{extra}] @ {source}'"
    path = unquote(urlsplit(url).path)
    return f"pip install {'-e ' if folder.get('editable') else ''}'{path}[{extra}]'"


class RequestError(AntiphonError):
    """The request is not valid."""

    status = 400
    type = "invalid_request_error"

    def rename(self, parameters: Mapping[str, str]) -> None:
        """Name the parameter as the request does: the code below the APIs uses neutral names."""
        if self.param is not None:
            self.param = parameters.get(self.param, self.param)


class AuthenticationError(RequestError):
    """No valid API key was given. Send it as `Authorization: Bearer KEY`, or as `x-api-key: KEY`."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class NotFoundError(RequestError):
    """There is nothing here. Check the path and the id."""

    status = 404
    type = "not_found_error"


class MethodNotAllowedError(RequestError):
    """This path does not support this method. Check the method."""

    status = 405


class MalformedBodyError(RequestError):
    """The request body is not valid JSON. Send a JSON object."""


class ModelInUseError(RequestError):
    """Other requests use the model, so it is not unloaded. Try again when they are answered."""

    status = 409
    code = "model_in_use"


class BodyTooLargeError(RequestError):
    """The request body is too large."""

    status = 413


class MediaTypeError(RequestError):
    """The body must be JSON: send `Content-Type: application/json`."""

    status = 415


class ContentEncodingError(RequestError):
    """The body is compressed in a way that is not supported: send it as it is, without `Content-Encoding`."""

    status = 415


class UnsupportedModelError(RequestError):
    """This model has no way to do this. Name another."""

    status = 501
    code = "unsupported_model"


class ClientBusyError(RequestError):
    """Too many requests of this client are waiting. Try again when some of them are answered."""

    status = 429
    type = "rate_limit_error"
    code = "client_busy"


class ScopeError(RequestError):
    """This key may not do this. Use another, or ask the operator of the server."""

    status = 403
    type = "permission_error"
    code = "insufficient_permissions"


class RateLimitError(RequestError):
    """This key has used up its limit. Try again later: `retry_after` says in how many seconds."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, message: str | None = None, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineError(AntiphonError):
    """The model failed to answer. Try again."""

    code = "engine_error"


class EngineNotReadyError(EngineError):
    """The model is not ready yet. Try again in a moment."""

    status = 503
    code = "engine_not_ready"


class ModelNotLoadedError(EngineError):
    """The model could not be loaded. The log of the server says why. Use another, or try again later."""

    status = 503
    code = "model_not_loaded"


class EngineBusyError(EngineError):
    """Too many requests are waiting for the model. Try again in a moment."""

    status = 429
    type = "rate_limit_error"
    code = "engine_busy"


class EngineDiedError(EngineError):
    """The engine of the model ended in the middle of the answer. Try again."""


class ReplicaLostError(EngineDiedError):
    """The server of the model stopped in the middle of the answer. Try again.

    Another replica can continue it: the caller of `generate` starts a generation for the rest.
    """


class StoreError(AntiphonError):
    """Stored data cannot be reached at the moment. Try again."""

    status = 503
    code = "store_error"

    @property
    def why(self) -> str:
        """The database's own message, for the log and the operator, without what its driver adds."""
        cause = self.__cause__ or self
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        original = getattr(cause, "orig", None)
        return str((original.__cause__ or original) if original else cause)


class StoreFullError(StoreError):
    """The disk of the server is full: nothing can be stored. Try again later, or send `store: false`."""

    code = "store_full"


class StoreUnusableError(StoreError):
    """The store cannot be used. The message says why, and is for the operator."""

    @property
    def why(self) -> str:
        return self.message


class StoreUnavailableError(StoreError):
    """The database cannot be reached: it may be starting."""


class ToolError(AntiphonError):
    """A server-side tool failed."""

    code = "tool_error"


class ReportedError(Exception):
    """What another program did, or reported, as the cause of an error: its traceback says nothing more."""


def public_error(error: BaseException | None) -> AntiphonError:
    """The error that a client may see: an AntiphonError as it is; other failures without details."""
    return error if isinstance(error, AntiphonError) else EngineError()


class naming:  # noqa: N801 - it is used as a function
    """While a block runs, `rename` the parameters of errors. `Turn.parameters` maps them."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._parameters = parameters

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, RequestError):
            error.rename(self._parameters)
