from __future__ import annotations

import pytest

from kartosql.errors import FormatError
from kartosql.store.keys import MAX_KEY_LENGTH, check_key, key_problem


@pytest.mark.parametrize(
    "key",
    [
        "a",
        "a.by-dataset-metadata.json",
        "u/table/p=a%2Fb/0123.parquet",
        "u/table/p=/x.parquet",
        "u/table/p=../x.parquet",
        "u/ta..ble/x",
        "u/table/p=ünï☃ 😀/x.parquet",
        "u//x",
        "u/" + "c" * 255,
    ],
)
def test_plain_keys_are_fine(key):
    assert check_key(key, source="doc") == key


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "empty"),
        ("/etc/passwd", "absolute"),
        ("s3://bucket/key", "absolute"),
        ("a/file:///etc/passwd", "absolute"),
        ("..", "path component '..'"),
        ("u/../v/x", "path component '..'"),
        ("u/./x", "path component '.'"),
        ("u/x/..", "path component '..'"),
        ("u/a\0b", "control"),
        ("u/a\nb", "control"),
        ("u/" + "c" * 256, "longer than 255"),
        ("u/" + "ü" * 128, "longer than 255"),
        ("a/" * MAX_KEY_LENGTH, "longer than 4096"),
        ("u/\ud800", "Unicode"),
    ],
)
def test_keys_that_leave_the_store_or_cannot_be_a_path_are_refused(key, reason):
    assert reason in key_problem(key)
    with pytest.raises(FormatError) as e:
        check_key(key, source="doc.json")
    assert e.value.code == "unsafe-key"
    assert e.value.message.startswith("doc.json: ")
    assert e.value.hint
    assert len(str(e.value)) < 500


@pytest.mark.parametrize("key", ["v/table/x", "u", "uu/x", "U/x"])
def test_keys_of_another_dataset_are_refused(key):
    with pytest.raises(FormatError) as e:
        check_key(key, "u/", source="doc")
    assert e.value.code == "unsafe-key"
    assert "does not start with 'u/'" in e.value.message


@pytest.mark.parametrize("key", [None, 1, ["u/x"], b"u/x"])
def test_keys_that_are_no_text_are_refused(key):
    with pytest.raises(FormatError) as e:
        check_key(key, source="doc")
    assert e.value.code == "invalid-metadata"
