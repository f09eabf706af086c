"""Spark's Bloom filters: the bits of values, and the object around them."""

from __future__ import annotations

import random
import subprocess
import sys

import pyarrow as pa
import pytest

import golden
from kartosql.formats.xskipper import bloom
from kartosql.formats.xskipper.java import JavaStreamError
from skipping_data import might_contain

DEFAULT = bloom.shape_for()


def test_sizes_are_those_of_spark():
    assert bloom.Shape(1, 7, 0, 958_528) == DEFAULT
    assert bloom.shape_for(0.03, 1000).hashes == 5
    assert bloom.shape_for(0.5, 1).bits == 64


@pytest.mark.parametrize(
    ("value", "seed", "expected"),
    [
        (0, 0, 1669671676),
        (-42, 0, -846261623),
        (42, 0, 1871679806),
        (-(1 << 63), 0, 1366273829),
        ((1 << 63) - 1, 0, -2106506049),
        (b"", 0, 0),
        (b"ABC", 42, -757602832),
    ],
)
def test_the_hash_is_that_of_spark(value, seed, expected):
    # The numbers of Spark's tests and, for text, of the example in the page of its function hash.
    assert bloom.murmur3(value, seed) == expected


@pytest.mark.parametrize("values", [[], ["a", "", "é", "\U0001f600" * 50], [0, -1, 1 << 62, -(1 << 63)]])
@pytest.mark.parametrize("shape", [DEFAULT, bloom.shape_for(0.2, 3), bloom.shape_for(0.01, 1000)])
def test_what_is_put_in_is_found(values, shape):
    cell = bloom.cell_of(shape, bloom.build(values, shape))
    for value in values:
        assert might_contain(cell, [value])
    assert bloom.words_of(cell) == (shape, bloom.build(values, shape))
    if not values:
        assert not might_contain(cell, ["x", 1])


def test_few_others_are_found():
    shape = bloom.shape_for(0.01, 1000)
    layout = bloom.CellLayout(cell := bloom.cell_of(shape, bloom.build(range(1000), shape)))
    false = sum(all(cell[at] & mask for at, mask in layout.probes(n)) for n in range(1000, 11_000))
    assert false < 200


@pytest.mark.parametrize("words", [1, 30, 31, 32, 33, 126, 127, 128, 129, 14_977])
def test_cells_are_cut_as_java_cuts_them(words):
    # The last block has a short head up to 255 bytes.
    shape = bloom.Shape(1, 3, 0, 64 * words)
    cell = bloom.cell_of(shape, bytes(range(8)) * words)
    layout = bloom.CellLayout(cell)
    assert layout.fits(cell)
    assert bloom.words_of(cell) == (shape, bytes(range(8)) * words)
    assert not layout.fits(cell[:-1])
    assert not layout.fits(cell + b"x")


def test_bits_are_where_the_layout_says():
    shape = bloom.Shape(1, 5, 0, 64 * 300)
    empty = bytearray(bloom.cell_of(shape, bytes(2400)))
    layout = bloom.CellLayout(bytes(empty))
    for at, mask in layout.probes("kartosql"):
        empty[at] |= mask
    assert bytes(empty) == bloom.cell_of(shape, bloom.build(["kartosql"], shape))


def test_the_second_version_keeps_its_running_number():
    shape = bloom.Shape(2, 6, 42, 640)
    first = bloom.murmur3(7, 42)
    second = bloom.murmur3(7, first)
    running, expected = (first * 2147483647), []
    for _ in range(6):
        running += second
        wrapped = (running + (1 << 63)) % (1 << 64) - (1 << 63)
        expected.append((~wrapped if wrapped < 0 else wrapped) % 640)
    assert shape.positions(7) == expected


def test_damaged_cells_are_refused():
    shape = bloom.shape_for(0.1, 50)
    cell = bloom.cell_of(shape, bloom.build(["a"], shape))
    for cut in range(len(cell)):
        with pytest.raises(JavaStreamError):
            bloom.CellLayout(cell[:cut])
    for at in range(len(cell)):
        for change in (1, 0x80):
            changed = bytearray(cell)
            changed[at] ^= change
            try:
                bloom.CellLayout(bytes(changed))
            except JavaStreamError:
                continue


def test_absurd_sizes_are_refused():
    cell = bloom.cell_of(bloom.Shape(1, 3, 0, 64), bytes(8))
    for old, new in (
        (b"\x00\x00\x00\x01" * 1 + b"\x00\x00\x00\x03", b"\x00\x00\x00\x01\x00\x00\x00\x00"),
        (b"\x00\x00\x00\x03\x00\x00\x00\x01", b"\x7f\xff\xff\xff\x00\x00\x00\x01"),
        (b"\x00\x00\x00\x03\x00\x00\x00\x01", b"\x00\x00\x00\x03\x7f\xff\xff\xff"),
        (b"w\x14\x00\x00\x00\x01", b"w\x14\x00\x00\x00\x02"),
    ):
        assert old in cell
        with pytest.raises(JavaStreamError):
            bloom.CellLayout(cell.replace(old, new))


def test_cells_of_the_original_are_written_byte_for_byte():
    """Up to the UIDs of classes, which the compiler chooses and nobody looks at."""
    import pyarrow.parquet as pq

    found = 0
    root = golden.find("xskipper/repo_v4_t1").parent
    for path in sorted(root.glob("*_v[34]_*/metadata/*/*.parquet")) + sorted(root.glob("built_types*/metadata/*/*")):
        table = pq.read_table(path)
        for name in [n for n in table.column_names if "bloomfilter" in n]:
            for cell in table[name].to_pylist():
                shape, words = bloom.words_of(cell)
                written = bloom.cell_of(shape, words)
                assert len(written) == len(cell)
                # The two UIDs, right behind the names of their classes.
                places = [written.index(n) + len(n) for n in (b"metadata.MetadataType", b"BloomFilterImpl")]
                for at in places:
                    written = written[:at] + cell[at : at + 8] + written[at + 8 :]
                assert written == cell
                found += 1
    assert found >= 20


@pytest.mark.parametrize("without_numpy", [False, True])
@pytest.mark.parametrize("shape", [DEFAULT, bloom.shape_for(0.2, 3)])
def test_filters_over_arrays_are_the_same(monkeypatch, shape, without_numpy):
    if without_numpy:
        monkeypatch.setattr(bloom, "numpy_or_none", lambda: None)
    rng = random.Random(1)
    numbers = [rng.randrange(-(1 << 63), 1 << 63) for _ in range(200)] + [0, -1, None]
    texts = ["".join(rng.choice("aé€\U0001f600") for _ in range(rng.randrange(20))) for _ in range(200)] + ["", None]
    for values, type_ in ((numbers, pa.int64()), (texts, pa.string()), ([], pa.string()), ([1, 2], pa.int8())):
        builder = bloom.FilterBuilder(shape)
        array = pa.array(values, type_)
        builder.add(array.slice(len(array) // 2))
        builder.add(array)
        assert builder.words() == bloom.build([v for v in values if v is not None], shape)


@pytest.mark.parametrize("without_numpy", [False, True])
@pytest.mark.parametrize("shape", [bloom.shape_for(0.3, 1), bloom.shape_for(0.01, 100), bloom.shape_for(0.001, 2_000)])
@pytest.mark.parametrize(("hashes", "held"), [(1, 20), (1 << 18, 1 << 20)])
def test_filters_of_many_files_are_those_of_each(monkeypatch, shape, without_numpy, hashes, held):
    """With as many values at once as one file has, and with fewer."""
    if without_numpy:
        monkeypatch.setattr(bloom, "numpy_or_none", lambda: None)
    monkeypatch.setattr(bloom, "_HASHES", hashes)
    monkeypatch.setattr(bloom, "_BYTES", held)
    rng = random.Random(2)
    counts = [0, 3, 0, 700, 1, 255, 256, 257, 0]
    numbers = [[rng.randrange(-(1 << 63), 1 << 63) for _ in range(n)] for n in counts]
    texts = [["".join(rng.choice("aé€\U0001f600") for _ in range(rng.randrange(9))) for _ in range(n)] for n in counts]
    for files, type_ in ((numbers, pa.int64()), (texts, pa.string())):
        arrays = [[bloom.prepared(pa.array(v[:5], type_)), bloom.prepared(pa.array(v[5:], type_))] for v in files]
        made = bloom.filters_of(arrays, shape)
        assert made == [bloom.cell_of(shape, bloom.build(v, shape)) for v in files]
    assert bloom.filters_of([], shape) == []


def test_numpy_is_used_where_the_command_line_left_it_out():
    code = """
import sys
sys.modules["numpy"] = None
from kartosql.formats.xskipper import bloom
import pyarrow as pa
shape = bloom.shape_for()
for values in ([1, 2], ["a", "b"]):
    made = bloom.filters_of([[bloom.prepared(pa.array(values))]], shape)
    assert made == [bloom.cell_of(shape, bloom.build(values, shape))]
print(sys.modules["numpy"].__name__)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "numpy"
