from __future__ import annotations

import json

import pytest

from kartosql.text.escape import escaped, escaped_csv, escaped_json, escaped_lines, width


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("Zürich 東京 👩\u200d🚀", "Zürich 東京 👩\u200d🚀"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b31m", "\\x9b31m"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\u202efdp.exe", "\\u202efdp.exe"),
        ("\u2028", "\\u2028"),
        ("\U000e0041", "\\U000e0041"),
        ("C:\\temp", "C:\\temp"),
    ],
)
def test_escaped_text_is_one_harmless_line(text, shown):
    assert escaped(text) == shown


def test_escaped_lines_keep_their_ends():
    assert escaped_lines("a\n\x1bb\n") == "a\n\\x1bb\n"


def test_csv_keeps_what_quotes_hold():
    assert escaped_csv("a\n\tü\x1b") == "a\n\tü\\x1b"


@pytest.mark.parametrize("text", ["\x9b", "\u202e", "\x7f", "\U000e0041", "ü東"])
def test_escaped_json_reads_back_the_same(text):
    written = escaped_json(json.dumps({"a": text}, ensure_ascii=False))
    assert json.loads(written) == {"a": text}
    assert escaped(written) == written


@pytest.mark.parametrize(("text", "columns"), [("abc", 3), ("ü", 1), ("東京", 4), ("e\u0301", 1), ("", 0), ("Ａ", 2)])
def test_width_counts_terminal_columns(text, columns):
    assert width(text) == columns
