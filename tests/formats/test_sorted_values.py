"""Values of indices as sorted buffers: searched as sets are, and refused wherever bytes are damaged."""

from __future__ import annotations

import random
import subprocess
import sys

import pyarrow as pa
import pytest

from kartosql.formats.sorted_values import Collected, SortedValues

STRANGE = ["", "\0", "a", "a\0", "a\0b", "ab", "b", "é", "é", "z", "\x7f", "\ud7ff", "\ue000", "\uffff", "\U00010000"]


def sorted_values(batches: list[tuple[pa.Array, pa.ListArray]], type_: pa.DataType, count: int) -> SortedValues:
    """Collect batches of values and numbers of files."""
    collected = Collected(type_, count)
    for values, lists in batches:
        collected.add(values, lists)
    return collected.all_values()


def build(pairs: list[tuple[object, list[int]]], type_: pa.DataType, count: int = 50, size: int = 100) -> SortedValues:
    """Build an index of pairs of a value and the numbers of its files, batch by batch."""
    values = pa.array([v for v, _ in pairs], type_)
    lists = pa.array([files for _, files in pairs], pa.list_(pa.int32()))
    parts = [slice(at, at + max(1, size)) for at in range(0, len(pairs), max(1, size))]
    return sorted_values([(values[part], lists[part]) for part in parts], type_, count)


def again_of(buffers: list[memoryview], count: int) -> SortedValues:
    """Return the values that stand in buffers as they are stored."""
    return SortedValues.of([memoryview(bytes(buffer)) for buffer in buffers], count)


def random_index(rng: random.Random, type_: pa.DataType) -> tuple[list[tuple[object, list[int]]], SortedValues]:
    pool: list[object]
    if pa.types.is_string(type_):
        pool = [*STRANGE, *("".join(rng.choices(STRANGE, k=2)) for _ in range(20))]
    else:
        bits = type_.bit_width - pa.types.is_signed_integer(type_)
        low = -(1 << bits) if pa.types.is_signed_integer(type_) else 0
        pool = [low, (1 << min(bits, 63)) - 1, *(rng.randrange(max(low, -40), 40) for _ in range(30))]
    chosen = [rng.choice(pool) for _ in range(rng.randrange(40))] + [None] * rng.randrange(2)
    rng.shuffle(chosen)
    pairs = [(v, rng.sample(range(50), rng.randrange(4))) for v in chosen]
    return pairs, build(pairs, type_, size=rng.choice([1, 7, 100]))


TYPES = [*(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint32(), pa.uint64(), pa.string())]


@pytest.mark.parametrize("type_", TYPES, ids=str)
def test_searches_find_the_files_that_a_loop_over_all_values_finds(type_: pa.DataType) -> None:
    rng = random.Random(str(type_))
    for _ in range(60):
        pairs, made = random_index(rng, type_)
        again = again_of(made.buffers, 50)
        stored = [(v, files) for v, files in pairs if v is not None]
        for index in (made, again):
            low, high = sorted((rng.choice(stored or [(0, [])])[0], rng.choice(stored or [(0, [])])[0])) or (0, 0)
            if isinstance(low, str) is not pa.types.is_string(type_):
                continue  # there is no value to ask for
            some = [v for v, _ in stored[:3]]
            without = {"without_low": rng.random() < 0.5, "without_high": rng.random() < 0.5}

            def inside(v, low=low, high=high, without=without):
                return (low < v or (v == low and not without["without_low"])) and (
                    v < high or (v == high and not without["without_high"])
                )

            assert index.files(index.equal(low)) == {f for v, files in stored if v == low for f in files}
            assert index.files(index.among(some)) == {f for v, files in stored if v in some for f in files}
            assert index.files(index.between(low, high, **without)) == {
                f for v, files in stored if inside(v) for f in files
            }
            assert index.files(index.between(low)) == {f for v, files in stored if v >= low for f in files}
            assert index.files(index.between(None, high)) == {f for v, files in stored if v <= high for f in files}
            assert index.files(index.between()) == {f for _, files in stored for f in files}
            assert index.pairs_of(index.between()) == index.pairs == sum(len(files) for _, files in stored)


def test_texts_ascend_by_their_code_points_as_in_the_engine() -> None:
    import duckdb

    rows = duckdb.sql("SELECT v FROM (SELECT unnest($1::VARCHAR[]) AS v) ORDER BY v", params=[STRANGE]).fetchall()
    index = build([(v, [0]) for v in STRANGE], pa.string())
    assert [index.value(i).decode() for i in range(index.count)] == [v for (v,) in rows]


def test_an_index_without_values_has_none() -> None:
    for type_ in (pa.int64(), pa.string()):
        for batches in ([], [(pa.array([], type_), pa.array([], pa.list_(pa.int32())))]):
            index = again_of(sorted_values(batches, type_, 3).buffers, 3)
            assert index.count == 0
            assert index.equal("a" if pa.types.is_string(type_) else 1) == []


@pytest.mark.parametrize("type_", [pa.int8(), pa.int32(), pa.int64(), pa.uint32()], ids=str)
def test_slices_and_dictionaries_of_arrow_are_read_as_what_they_are(type_: pa.DataType) -> None:
    plain = pa.array([[0], [1], [2], [3]], pa.list_(type_))
    coded = pa.ListArray.from_arrays(plain.offsets, plain.values.dictionary_encode())
    for lists in (plain[1:3], coded[1:3]):
        index = sorted_values([(pa.array([7, 8, 9, 10])[1:3], lists)], pa.int64(), 4)
        assert [index.files(index.equal(v)) for v in (7, 8, 9, 10)] == [frozenset(), {1}, {2}, frozenset()]


def test_integers_of_more_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="not in range"):
        sorted_values([(pa.array([2**63], pa.uint64()), pa.array([[0]], pa.list_(pa.int32())))], pa.uint64(), 1)


def test_a_value_of_another_kind_is_refused() -> None:
    numbers, texts = build([(1, [0])], pa.int64()), build([("1", [0])], pa.string())
    for index, value in ((numbers, "1"), (texts, 1)):
        with pytest.raises(ValueError, match="another kind"):
            index.equal(value)
        with pytest.raises(ValueError, match="another kind"):
            index.between(value)
    with pytest.raises(ValueError, match="surrogates"):
        texts.equal("\ud800")


def test_hostile_buffers_end_in_a_refusal_and_never_in_a_file_that_is_not_there() -> None:
    rng = random.Random(5)
    for _ in range(3_000):
        texts = rng.random() < 0.5
        count = rng.randrange(5)

        def numbers(letter: str, n: int) -> memoryview:
            return memoryview(b"".join(rng.randrange(7).to_bytes(4, "little") for _ in range(n))).cast(letter)

        values = memoryview(bytes(rng.randrange(256) for _ in range(count if texts else 8 * count)))
        index = SortedValues(
            values if texts else values.cast("q"),
            numbers("I", count + 1) if texts else None,
            numbers("I", count + 1),
            numbers("i", rng.randrange(8)),
            4,
        )
        try:
            found = index.files(index.equal("a" if texts else 7)) | index.files(index.between())
            assert found <= {0, 1, 2, 3}
        except ValueError:
            pass


def test_what_is_stored_is_searched_without_arrow_and_without_an_engine() -> None:
    kept = [bytes(buffer) for buffer in build([("a", [1]), ("b", [2])], pa.string()).buffers]
    code = (
        "import sys; from kartosql.formats.sorted_values import SortedValues; "
        f"ends, values, starts, files = map(memoryview, {kept!r}); "
        "index = SortedValues(values, ends.cast('I'), starts.cast('I'), files.cast('i'), 50); "
        "print(sorted(index.files(index.equal('b'))), "
        "[m for m in sys.modules if m.split('.')[0] in ('pyarrow', 'duckdb', '_duckdb', 'sqlglot', 'numpy')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[2] []\n"


@pytest.mark.parametrize("of", [(3, None, 3, 1), (2, 2, 3, 1), (2, 4, 3, 1), (0, None, 0, 0)], ids=str)
def test_buffers_of_other_lengths_are_refused(of: tuple[int, int | None, int, int]) -> None:
    values, ends, starts, files = of
    with pytest.raises(ValueError, match="number of values"):
        SortedValues(
            memoryview(bytes(8 * values)).cast("q"),
            None if ends is None else memoryview(bytes(4 * ends)).cast("I"),
            memoryview(bytes(4 * starts)).cast("I"),
            memoryview(bytes(4 * files)).cast("i"),
            9,
        )
