"""JSON in which `&quot;` stands for quotes."""

import json

import pytest

from antiphon.decode.entity_scanner import MAX_HELD, EntityScanner

READ = [
    ('{"url":"https://a.example&quot;}', {"url": "https://a.example"}),
    ("{&quot;a&quot; : &quot;b&quot;, &quot;c&quot;:[1,&quot;d&quot;]}", {"a": "b", "c": [1, "d"]}),
    ('{"a":"x&quot;,"b":2}', {"a": "x", "b": 2}),
    ('{"a&quot;: 1}', {"a": 1}),
    ('{"a":"say &quot;hi&quot; &amp; go"}', {"a": "say &quot;hi&quot; &amp; go"}),
    ('{"a":"&quot;&quot;"}', {"a": "&quot;&quot;"}),
    ('{"a":"1 &quo, &"}', {"a": "1 &quo, &"}),
    ('{"a":"f(&quot;x&quot;, y)"}', {"a": "f(&quot;x&quot;, y)"}),
    (f'{{"a":"b&quot;{" " * MAX_HELD}"}}', {"a": f"b&quot;{' ' * MAX_HELD}"}),
]


@pytest.mark.parametrize(("text", "value"), READ)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
def test_quotes_are_told_from_text_however_the_text_is_cut(text: str, value: object, size: int) -> None:
    scanner, out, read = EntityScanner(), list[str](), 0
    whole = text + "}<|end|>"
    for start in range(0, len(whole), size):
        piece = whole[start : start + size]
        end = scanner.feed(piece, 0, out)
        read += end
        if end < len(piece):
            break

    assert scanner.done
    assert read == len(text)
    assert json.loads("".join(out)) == value


def test_what_is_no_json_is_broken_where_it_is() -> None:
    scanner, out = EntityScanner(), list[str]()

    assert scanner.feed('{"a" &quot;', 0, out) == len('{"a" ')
    assert scanner.broken
