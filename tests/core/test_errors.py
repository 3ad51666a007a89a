"""Every error has a message, a status and a type; the docstring is the default message."""

import json
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest

from antiphon.core import errors

ALL = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, errors.AntiphonError)
]


@pytest.mark.parametrize("kind", ALL)
def test_has_all_that_a_client_needs(kind: type[errors.AntiphonError]) -> None:
    error = kind(retry_after=1) if kind is errors.RateLimitError else kind()  # type: ignore[call-arg]

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


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'antiphon[hub]'"),
        ({"url": "file:///a%20b", "dir_info": {"editable": True}}, "pip install -e '/a b[hub]'"),
        ({"url": "file:///src", "dir_info": {}}, "pip install '/src[hub]'"),
        ({"url": "file:///x.whl", "archive_info": {}}, "pip install 'antiphon[hub] @ file:///x.whl'"),
        ({"url": "https://h/x", "vcs_info": {"vcs": "git"}}, "pip install 'antiphon[hub] @ git+https://h/x'"),
    ],
)
def test_an_extra_is_installed_from_where_antiphon_is_from(
    monkeypatch: pytest.MonkeyPatch, origin: object, command: str
) -> None:
    found = SimpleNamespace(read_text=lambda _: None if origin is None else json.dumps(origin))
    monkeypatch.setattr(metadata, "distribution", lambda _: found)
    assert errors.installing("hub") == command


def test_an_extra_of_a_source_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: str) -> None:
        raise PackageNotFoundError

    monkeypatch.setattr(metadata, "distribution", nothing)
    assert errors.installing("hub") == "pip install -e '.[hub]'"
