"""Every error has a message, a status and a type; the docstring is the default message."""

import pytest

from antiphon.core import errors

ALL = [
    value
    for value in vars(errors).values()
    if getattr(value, "__module__", "") == errors.__name__ and isinstance(value, type)
]


@pytest.mark.parametrize("kind", ALL)
def test_has_all_that_a_client_needs(kind: type[errors.AntiphonError]) -> None:
    error = kind()

    assert 400 <= error.status < 600
    assert error.type
    assert error.message.endswith(".")
    assert "\n" not in error.message


def test_carries_what_it_is_given() -> None:
    error = errors.RequestError("Too big.", param="n", code="big")

    assert (str(error), error.message, error.param, error.code) == ("Too big.", "Too big.", "n", "big")


def test_client_errors_are_request_errors() -> None:
    assert all(issubclass(kind, errors.RequestError) for kind in ALL if 400 <= kind.status < 429)


def test_errors_blame_what_the_request_calls_it() -> None:
    with pytest.raises(errors.RequestError) as raised, errors.naming({"prefix": "response_prefix"}):
        raise errors.RequestError(param="prefix")
    assert raised.value.param == "response_prefix"

    for param in ("seed", None):
        with pytest.raises(errors.RequestError) as raised, errors.naming({"prefix": "response_prefix"}):
            raise errors.RequestError(param=param)
        assert raised.value.param == param
