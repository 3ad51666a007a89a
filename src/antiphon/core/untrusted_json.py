"""JSON that other servers send, which may be anything."""

from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""What msgspec raises for JSON that cannot be read: the second for more than a thousand levels."""


@overload
def decode_untrusted(data: bytes, *, strict: bool = True) -> Any: ...
@overload
def decode_untrusted(data: bytes, form: type[T], *, strict: bool = True) -> T: ...
def decode_untrusted(data: bytes, form: Any = Any, *, strict: bool = True) -> Any:
    """The value, of the type `form`. Raises msgspec.DecodeError, also where msgspec raises another error."""
    try:
        return msgspec.json.decode(data, type=form, strict=strict)
    except (RecursionError, UnicodeDecodeError) as error:
        raise msgspec.DecodeError(str(error)) from error
