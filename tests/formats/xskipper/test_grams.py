"""Pieces of texts: what contains a text has all of its pieces, with numpy and without."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from kartosql.formats.xskipper import grams
from kartosql.formats.xskipper.domain import OddCells
from kartosql.formats.xskipper.grams import SIZE, PieceSet, may_hold, pieces_of

LETTERS = "abAB éßıİſKk漢😀\n\0"


def cell(texts: list[str | None]) -> bytes:
    found = PieceSet()
    found.add(pa.array(texts[:5], pa.string()))
    found.add(pa.array(texts[5:], pa.string()))
    return found.cell()


def wanted(text: str, **ends: bool) -> Any:
    return partial(pieces_of, text, **ends)


def holds(made: bytes, text: str, **ends: bool) -> bool:
    return may_hold(pa.array([made]), [wanted(text, **ends)], [True]) == [True]


@pytest.mark.parametrize("seed", range(60))
def test_what_contains_a_text_has_its_pieces(seed, monkeypatch):
    choose = random.Random(seed)
    monkeypatch.setattr(grams, "_HELD_BYTES", choose.choice([5, 40, 1 << 20]))
    texts = ["".join(choose.choices(LETTERS, k=choose.randrange(9))) for _ in range(choose.randrange(1, 20))]
    made = cell([*texts, None])
    for text in texts:
        for at in range(len(text)):
            for end in range(at + 1, len(text) + 1):
                assert holds(made, text[at:end], begins=at == 0, ends=end == len(text))
                assert holds(made, text[at:end].swapcase() if text.isascii() else text[at:end])
    with monkeypatch.context() as without:
        without.setattr(grams, "numpy_or_none", lambda: None)
        assert cell([*texts, None]) == made


def test_every_letter_that_engines_lower_to_one_of_ascii_loses_its_case():
    letters = [chr(c) for c in range(0x80, 0x110000) if not 0xD800 <= c < 0xE000]
    rows = pa.table({"c": letters})  # noqa: F841 - DuckDB finds it
    found = duckdb.sql("SELECT c, lower(c) FROM rows WHERE lower(c) <> c AND ascii(lower(c)) < 128").fetchall()
    found += duckdb.sql("SELECT c, 'k' FROM rows WHERE regexp_matches(c, '(?i)k')").fetchall()
    found += duckdb.sql("SELECT c, 's' FROM rows WHERE regexp_matches(c, '(?i)s')").fetchall()
    found += duckdb.sql("SELECT c, 'i' FROM rows WHERE c ILIKE 'i' OR regexp_matches(c, '(?i)i')").fetchall()
    assert {letter for letter, _ in found} == set(grams._FOLDED)
    for letter, lower in found:
        assert holds(cell([f"a{letter}b"]), f"a{lower[0]}b")


def test_few_pieces_are_found_that_are_not_there():
    choose = random.Random(1)
    words = ["".join(choose.choices("etaoinshrdlu", k=6)) for _ in range(3_000)]
    made = cell(words)
    there = {piece for word in words for piece in pieces_of(word, begins=True, ends=True)}
    others = [piece for piece in range(1, 1 << 24, 487) if piece not in there]
    asked = [lambda size, piece=piece: frozenset({piece} if size == SIZE else ()) for piece in others]
    found = sum(may_hold(pa.array([made]), [one], [True]) == [True] for one in asked)
    assert found < 0.02 * len(others)
    assert int.from_bytes(made[-5:-1], "little") < 1.4 * len(there)


def test_a_text_without_pieces_is_not_looked_for():
    assert pieces_of("ab") == frozenset() == pieces_of("", begins=True, ends=True)
    assert len(pieces_of("ab", begins=True)) == 1 == len(pieces_of("漢"))
    assert len(pieces_of("x" * 10 + "".join(map(chr, range(32, 120))))) == grams.MOST


def test_files_without_texts_hold_nothing_and_unknown_ones_everything():
    cells = pa.array([cell([None]), None, cell(["abc"]), cell(["xyz"])])
    asked = [wanted("abc")]
    assert may_hold(cells, asked, [True] * 4) == [False, True, True, False]
    assert may_hold(cells.slice(1), asked, [False, True, False]) == [True, True, True]
    long = b"".join([b"1234", (4).to_bytes(4, "little"), b"\x04"])
    for odd in (pa.array(["a"]), *(pa.array([cell]) for cell in (b"\x03", b"\x04", b"12\x07", b"\xff" * 9, long))):
        with pytest.raises(OddCells):
            may_hold(odd, asked, [False])
    assert may_hold(pa.array([b"\xff" * 9, b"\0" * 9]), asked, [True] * 2, has_sizes=False) == [True, False]


@pytest.mark.parametrize("letters", ["abcdefghijklmnopqrstuvwxyz", "0123456789abcdef", "0123456789"])
def test_texts_of_random_letters_have_longer_pieces_that_tell_them_apart(letters, monkeypatch):
    choose = random.Random(2)
    rows = [["".join(choose.choices(letters, k=30)) for _ in range(1_000)] for _ in range(3)]
    cells = [cell(own) for own in rows]
    assert all(made[-1] in grams.LONGER and len(made) < 1.1 * 30_000 for made in cells)
    asked = [["".join(choose.choices(letters, k=12))] for _ in range(150)] + [[own[7][5:17]] for own in rows]
    found = [may_hold(pa.array(cells), [*map(wanted, texts)], [True] * 3) for texts in asked]
    assert all(found[150 + at][at] for at in range(3))
    assert sum(map(sum, found)) <= 3 + 2
    monkeypatch.setattr(grams, "numpy_or_none", lambda: None)
    assert cell(rows[0]) == cells[0]
    few = cell([choose.choice(["some words", "some more", "and others"]) for _ in range(1_000)])
    assert few[-1] == SIZE
