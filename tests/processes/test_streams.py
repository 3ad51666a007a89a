"""The file of a stream, and how many of its bytes the system has got."""

import os
import socket

from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.processes.streams import HALF, MAX_ENTRIES, StreamFile, handed_over

WRITES = st.lists(
    st.tuples(st.integers(1, HALF // 4), st.booleans(), st.integers(0, HALF // 2)), min_size=1, max_size=40
)


@settings(deadline=None, max_examples=40)
@given(writes=WRITES)
def test_the_last_bytes_and_all_entries_are_there_after_every_write(
    writes: list[tuple[int, bool, int]],
) -> None:
    file, whole, entries, count, possible = StreamFile.create(b"head"), b"", b"", 0, 0
    try:
        for number, (size, has_entry, waiting) in enumerate(writes):
            unsent = min(waiting, possible)  # what was written once stays written
            possible = unsent + size
            data, entry = bytes([number % 256]) * size, b"entry %d" % number if has_entry else b""
            assert file.append(data, has_entry, entry, number % 3, lambda unsent=unsent: unsent)  # type: ignore[misc]
            whole, entries, count = whole + data, entries + entry, count + has_entry
            other = StreamFile(os.dup(file.descriptor))
            kept = other.read()
            other.close()
            assert (kept.head, kept.state) == (b"head", number % 3)
            assert (kept.count, kept.entries) == (count, entries)
            for place in (len(whole) - size - unsent, len(whole) - size, len(whole) - 1, len(whole)):
                assert kept.after(place) == whole[place:]
            assert kept.after(len(whole) + 1) is None
    finally:
        file.close()


def test_what_does_not_fit_changes_nothing() -> None:
    file = StreamFile.create(b"")
    assert file.append(b"one", 0, b"", 0, lambda: 0)
    assert not file.append(b"x" * (HALF + 1), 1, b"entry", 1, lambda: 0)
    assert not file.append(b"x" * HALF, 0, b"", 1, lambda: 3)
    assert not file.append(b"two", 1, b"x" * (MAX_ENTRIES + 1), 1, lambda: 3)
    kept = file.read()
    assert (kept.last, kept.entries, kept.count, kept.state) == (b"one", b"", 0, 0)
    file.close()


def test_bytes_are_counted_whether_they_are_read_or_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        connection, _ = listener.accept()
        with client, connection:
            connection.setblocking(False)
            base, count = handed_over(connection), 0
            for size in (1, 1000, 5_000_000, 5_000_000):
                try:
                    count += connection.send(b"x" * size)
                except BlockingIOError:
                    break
                assert handed_over(connection) - base == count
            client.recv(100_000)
            assert handed_over(connection) - base == count
