"""Every error has a message, a status and a type; the docstring is the default message."""

import pytest

from antiphon.core import errors

ALL = [value for value in vars(errors).values() if isinstance(value, type)]


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
