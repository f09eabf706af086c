"""Java's serialization as data, and what is refused of it."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kartosql.formats.xskipper import bloom, java
from kartosql.formats.xskipper.java import JavaStreamError, parse

INTEGER = (
    b"sr\x00\x11java.lang.Integer\x12\xe2\xa0\xa4\xf7\x81\x878\x02\x00\x01I\x00\x05value"
    b"xr\x00\x10java.lang.Number\x86\xac\x95\x1d\x0b\x94\xe0\x8b\x02\x00\x00xp"
)


def _text(value: str) -> bytes:
    data = value.encode()
    return b"t" + struct.pack(">H", len(data)) + data


def test_boxed_numbers_and_texts_are_read():
    found = parse(java.MAGIC + INTEGER + struct.pack(">i", -7))
    assert (found.class_name, found.fields) == ("java.lang.Integer", {"value": -7})
    assert parse(java.MAGIC + _text("é")) == "é"
    assert parse(java.MAGIC + b"p") is None


def test_text_is_in_the_utf_8_of_java():
    grin = b"\xed\xa0\xbd\xed\xb8\x80"
    assert parse(java.MAGIC + b"t\x00\x08\xc0\x80" + grin) == "\0\U0001f600"


def test_arrays_and_references_are_read():
    array = b"ur\x00\x13[Ljava.lang.String;\xad\xd2\x56\xe7\xe9\x1d\x7b\x47\x02\x00\x00xp\x00\x00\x00\x03"
    found = parse(java.MAGIC + array + _text("a") + b"q\x00~\x00\x02" + b"p")
    assert found.values == ["a", "a", None]


def test_an_object_may_refer_to_itself():
    loop = b"sr\x00\x01N\x00\x00\x00\x00\x00\x00\x00\x01\x02\x00\x01L\x00\x01nt\x00\x03LN;xpq\x00~\x00\x02"
    found = parse(java.MAGIC + loop)
    assert found.fields["n"] is found


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xac\xed\x00\x04p",
        java.MAGIC,
        java.MAGIC + b"q\x00~\x00\x00",
        java.MAGIC + b"q\xff\xff\xff\xff",
        java.MAGIC + b"t\xff\xffabc",
        java.MAGIC + b"z\xff\xff\xff\xff",
        java.MAGIC + b"z\x7f\xff\xff\xffabc",
        java.MAGIC + b"x",
        java.MAGIC + b"\x7bp",
        java.MAGIC + b"\x7d\x00\x00\x00\x00",
        java.MAGIC + b"t\x00\x02\xff\xff",
        java.MAGIC + b"|\x7f\xff\xff\xff\xff\xff\xff\xff",
        java.MAGIC + b"ur\x00\x02[J\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00xp\x7f\xff\xff\xff",
        java.MAGIC + b"ur\x00\x02[L\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00xp\xff\xff\xff\xff",
        # Externalizable: what such an object wrote cannot be known.
        java.MAGIC + b"sr\x00\x01E\x00\x00\x00\x00\x00\x00\x00\x00\x0c\x00\x00xpx",
    ],
)
def test_odd_streams_are_refused(data):
    with pytest.raises(JavaStreamError):
        parse(data)


def test_deep_nesting_is_refused():
    head = b"ur\x00\x13[Ljava.lang.Object;\x90\xce\x58\x9f\x10\x73\x29\x6c\x02\x00\x00xp\x00\x00\x00\x01"
    again = b"uq\x00~\x00\x00\x00\x00\x00\x01"
    assert parse(java.MAGIC + head + again * 10 + b"p")
    with pytest.raises(JavaStreamError, match="deeper"):
        parse(java.MAGIC + head + again * 100_000 + b"p")


def test_many_parents_are_refused():
    head = b"r\x00\x01A\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00x"
    with pytest.raises(JavaStreamError):
        parse(java.MAGIC + b"s" + head * 10_000 + b"p")


def test_more_values_than_the_limit_are_refused(monkeypatch):
    monkeypatch.setattr(java, "MAX_ITEMS", 100)
    array = b"ur\x00\x02[I\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00xp"
    assert len(parse(java.MAGIC + array + struct.pack(">i", 50) + bytes(200)).values) == 50
    with pytest.raises(JavaStreamError, match="more than"):
        parse(java.MAGIC + array + struct.pack(">i", 200) + bytes(800))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(data):
    with contextlib.suppress(JavaStreamError):
        parse(java.MAGIC + data)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4))
def test_changed_streams_are_read_or_refused(changes):
    data = bytearray(bloom.cell_of(bloom.Shape(1, 2, 0, 640), bytes(80)))
    for at, value in changes:
        data[at % len(data)] = value
    with contextlib.suppress(JavaStreamError):
        parse(bytes(data))
