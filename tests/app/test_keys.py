"""The table of keys: what a file may say, what is refused, and what stays when it is read again."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from antiphon.app.keys import KeyTable, digest
from antiphon.core.accounts import ANYONE, Account
from antiphon.core.errors import AntiphonError


def table(tmp_path: Path, text: str, keys: tuple[str, ...] = ()) -> KeyTable:
    return KeyTable(keys, (), written(tmp_path, text))


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "keys.toml"
    file.write_text(text)
    return file


def found(keys: KeyTable, value: str) -> Account:
    account = keys.find(value)
    assert account is not None
    return account


def test_a_key_and_all_that_can_be_said_of_it(tmp_path: Path) -> None:
    keys = table(
        tmp_path,
        f"""
        [[keys]]
        name = "ann"
        hash = "sha256:{digest("one").upper()}"
        models = ["small", "qwen*"]
        scopes = ["inference", "metrics"]
        expires = 2001-02-03
        requests_per_minute = 60
        tokens_per_minute = 100_000
        concurrent = 4

        [[keys]]
        name = "bob"
        value = "two"
        expires = 2999-01-01T00:00:00+01:00
        """,
    )
    ann, bob = found(keys, "one"), found(keys, "two")
    assert (ann.name, ann.permissions.models, ann.permissions.scopes) == (
        "ann",
        ("small", "qwen*"),
        {"inference", "metrics"},
    )
    assert (ann.permissions.expires, ann.expired, bob.expired) == (981158400, True, False)
    assert (
        ann.permissions.requests_per_minute,
        ann.permissions.tokens_per_minute,
        ann.permissions.concurrent,
    ) == (
        60,
        100000,
        4,
    )
    assert bob.permissions.scopes == {"inference", "stored"}
    assert keys.find("three") is None
    assert keys.guarded
    assert not keys.administered


def test_a_value_is_the_same_owner_wherever_it_is_given(tmp_path: Path) -> None:
    option = found(KeyTable(["one"]), "one")
    assert found(table(tmp_path, '[[keys]]\nname = "ann"\nvalue = "one"'), "one").owner == option.owner
    assert option.owner == digest("one")[:32]
    assert "one" not in option.name


def test_a_key_that_is_rotated_stays_one_owner(tmp_path: Path) -> None:
    keys = table(tmp_path, '[[keys]]\nname = "ann"\nvalue = ["old", "new"]')
    owner = found(keys, "old").owner
    assert found(keys, "new") is found(keys, "old")

    written(tmp_path, f'[[keys]]\nname = "ann"\nvalue = "new"\nidentity = "{digest("old")}"')
    with capture_logs() as logs:
        keys.reload()
    assert found(keys, "new").owner == owner
    assert keys.find("old") is None
    assert [line["log_level"] for line in logs] == ["info"]

    written(tmp_path, '[[keys]]\nname = "ann"\nvalue = "new"')
    with capture_logs() as logs:
        keys.reload()
    assert found(keys, "new").owner != owner
    assert (logs[0]["log_level"], logs[0]["key"]) == ("warning", "ann")


def test_reading_again_keeps_what_was_used(tmp_path: Path) -> None:
    keys = table(tmp_path, '[[keys]]\nname = "ann"\nvalue = "one"\nrequests_per_minute = 1')
    account = found(keys, "one")
    account.admit()
    written(
        tmp_path,
        '[[keys]]\nname = "ann"\nvalue = "one"\nrequests_per_minute = 1\nmodels = ["a"]\n'
        '[[keys]]\nname = "bob"\nvalue = "two"',
    )
    keys.reload()
    assert found(keys, "one") is account
    assert account.permissions.models == ("a",)
    assert account.requests is not None
    assert account.requests.left < 1
    assert keys.of_owner(found(keys, "two").owner).name == "bob"
    assert keys.of_owner("nobody") is ANYONE


def test_a_broken_file_keeps_the_old_keys_and_says_so(tmp_path: Path) -> None:
    keys = table(tmp_path, '[[keys]]\nname = "ann"\nvalue = "one"', ("option",))
    for text in ("keys = 1", "[[keys", '[[keys]]\nname = "bob"\nvalue = "two"\nmodel = "x"'):
        written(tmp_path, text)
        with capture_logs() as logs:
            keys.reload()
        assert [line["event"] for line in logs] == ["the keys stay as they are"]
        assert str(tmp_path) in logs[0]["why"]
        assert found(keys, "one").name == "ann"
        assert keys.find("option") is not None
        assert keys.find("two") is None


def test_without_a_file_there_is_nothing_to_read_again() -> None:
    keys = KeyTable()
    keys.reload()
    assert not keys.guarded


def test_a_key_of_both_options_is_for_both() -> None:
    keys = KeyTable(["one"], ["one", "two"])
    assert found(keys, "one").permissions.scopes == {"inference", "stored", "metrics", "admin"}
    assert found(keys, "two").permissions.scopes == {"admin"}
    assert keys.administered
    assert not KeyTable((), ["two"]).guarded


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "keys"),
        ("keys = []", "there are none"),
        ('[[keys]]\nname = "ann"', 'the key "ann" has neither a hash nor a value'),
        ('[[keys]]\nvalue = "a"', "name"),
        ('[[keys]]\nname = ""\nvalue = "a"', "name"),
        ('[[keys]]\nname = "a"\nhash = "abc"', "64 hexadecimal digits"),
        ('[[keys]]\nname = "a"\nvalue = "sec ret"', "printable ASCII without spaces"),
        ('[[keys]]\nname = "a"\nvalue = ""', "printable ASCII"),
        ('[[keys]]\nname = "a"\nvalue = "v"\nscopes = ["root"]', "root"),
        ('[[keys]]\nname = "a"\nvalue = "v"\nconcurrent = 0', "concurrent"),
        ('[[keys]]\nname = "a"\nvalue = "v"\nexpires = "soon"', "write 2026-12-31"),
        ('[[keys]]\nname = "a"\nvalue = "v"\n[[keys]]\nname = "a"\nvalue = "w"', "two keys"),
        (
            '[[keys]]\nname = "a"\nvalue = "v"\n[[keys]]\nname = "b"\nvalue = "v"',
            "also a value of another key",
        ),
        ('[[keys]]\nname = "a"\nvalue = "option"', "also a value of another key"),
        ("keys = ", "Invalid value"),
    ],
)
def test_what_a_file_may_not_say(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(AntiphonError) as refused:
        table(tmp_path, text, ("option",))
    assert says in refused.value.message
    assert str(tmp_path) in refused.value.message
    assert "sec ret" not in refused.value.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AntiphonError, match="No such file"):
        KeyTable((), (), tmp_path / "none.toml")
