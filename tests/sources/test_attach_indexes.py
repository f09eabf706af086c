"""Inverted indices of what is attached: built file by file, used for the files they have seen, and never wrong."""

from __future__ import annotations

import json
import os
import random
import threading
import uuid
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
import skipping_data
from crashes import was_killed
from kartosql.errors import KartosqlError, KartosqlWarning
from kartosql.formats.segments import SegmentedIndex
from kartosql.sources import file_indexes
from kartosql.store import Store
from kartosql.store.keys import OutcomeUnknown
from s3_server import BUCKET, serve

COLUMNS = [c for c in skipping_data.COLUMNS if "." not in c]


class World:
    """A connection with the folder ``data`` attached as ``d``: 20 files of 10 keys each, which lie in no order."""

    def __init__(self, root: Path, kind: str = "parquet", **options: Any) -> None:
        self.root, self.data, self.kind = root, root / "data", kind
        (root / "store").mkdir()
        self.data.mkdir()
        for number in range(20):
            self.write(number)
        self.con = kartosql.connect(root / "store", **options)
        self.con.attach(self.data, "d", type=kind)

    def write(self, number: int | str, keys: list[int] | None = None) -> Path:
        path = self.data / f"{number}.{self.kind}"
        keys = [int(number) + 20 * n for n in range(10)] if keys is None else keys
        table = pa.table({"k": keys, "t": [f"key {k}" for k in keys], "n": [None] * len(keys)})
        table = table.set_column(2, "n", pa.array([k if k % 7 == 0 else None for k in keys], pa.int64()))
        if self.kind == "csv":
            path.write_text("k,t,n\n" + "".join(f"{k},key {k},\n" for k in keys))
        else:
            pq.write_table(table, path, compression="none")
        return path

    def files(self, where: str, con: kartosql.Connection | None = None) -> list[str]:
        """Return the files that a query opens; its rows are those that all files have."""
        con = con or self.con
        found, whole = con.sql(f"SELECT k FROM d WHERE {where}"), f"CASE WHEN random() >= 0 THEN {where} END"
        assert sorted(found.rows()) == sorted(con.sql(f"SELECT k FROM d WHERE {whole}").rows()), where
        return sorted(found.report.to_dict()["scans"][0]["datasets"][0]["files"])

    @property
    def list(self) -> Path:
        (found,) = (self.root / "store" / ".kartosql").glob("data-*/indexes.json")
        return found

    @property
    def segments(self) -> list[Path]:
        return sorted(self.list.parent.glob("*.parquet"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.con.close()


def test_a_lookup_opens_the_files_with_a_match(world):
    done = world.con.sql("CREATE INDEX ON d (k, t)").rows()
    assert [row[:6] for row in done] == [("d", "k", 20, 0, 0, 0), ("d", "t", 20, 0, 0, 0)]
    assert world.files("k = 47") == ["7.parquet"]
    assert world.files("k IN (47, 3, 999)") == ["3.parquet", "7.parquet"]
    assert world.files("k BETWEEN 46 AND 48") == ["6.parquet", "7.parquet", "8.parquet"]
    assert world.files("k > 46 AND k < 48") == ["7.parquet"]
    assert world.files("k < 0 OR t = 'key 5'") == ["5.parquet"]
    assert world.files("t LIKE 'key 19%' AND k <> 19") == [f"{n}.parquet" for n in sorted(range(10, 20), key=str)]
    assert world.files("k = 1 AND t = 'key 2'") == []
    step = world.con.explain("SELECT * FROM d WHERE k = 47").to_dict()["scans"][0]["datasets"][0]["steps"][0]
    assert (step["by"], step["files_before"], step["files_after"]) == ("inverted index", 20, 1)
    assert [row[1] for row in world.con.sql("SHOW INDEXES FROM d").rows()] == ["k", "t"]
    assert world.con.sql("SHOW DATASETS").rows()[0][4] == ["k", "t"]
    assert world.con.sql("DESCRIBE d").rows()[0][4] == "inverted index"


def test_another_connection_finds_it_and_one_that_may_not_write_uses_it(world):
    world.con.create_index("d", "k")
    with kartosql.connect(world.root / "store", read_only=True, attach=True) as con:
        con.attach(world.data, "d", type="parquet")
        assert world.files("k = 47", con) == ["7.parquet"]
        for statement in ("CREATE INDEX ON d (t)", "DROP INDEX ON d (k)"):
            with pytest.raises(KartosqlError) as error:
                con.sql(statement)
            assert error.value.code == "read-only"
        with pytest.raises(KartosqlError) as error:
            con.create_index("d", "t")
        assert error.value.code == "read-only"


def test_a_file_that_the_index_has_not_seen_is_read(world):
    world.con.create_index("d", "k")
    world.write(99, [47, 1000])
    assert world.files("k = 47") == ["7.parquet", "99.parquet"]
    assert world.files("k = 3") == ["3.parquet", "99.parquet"]
    done = world.con.create_index("d", "k")["files"][0]
    assert (done["added"], done["kept"], done["removed"]) == (1, 20, 0)
    assert world.files("k = 3") == ["3.parquet"]
    assert world.files("k = 1000") == ["99.parquet"]


def test_a_file_that_changed_is_read(world):
    world.con.create_index("d", "k")
    path = world.data / "7.parquet"
    before = path.stat()
    world.write(7, [8 + 20 * n for n in range(10)])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert path.stat().st_size == before.st_size  # the time alone tells
    assert world.files("k = 8") == ["7.parquet", "8.parquet"]
    assert world.files("k = 3") == ["3.parquet", "7.parquet"]
    assert world.con.create_index("d", "k")["files"][0]["added"] == 1
    assert world.files("k = 3") == ["3.parquet"]
    world.write(7, [1, 2, 3])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))  # and here the size
    assert world.files("k = 1") == ["1.parquet", "7.parquet"]


def test_files_that_are_gone_are_dropped_from_the_index(world):
    world.con.create_index("d", "k")
    for number in range(15):
        (world.data / f"{number}.parquet").unlink()
    assert world.files("k = 47") == []
    done = world.con.create_index("d", "k")["files"][0]
    assert (done["added"], done["kept"], done["removed"]) == (5, 0, 15)  # made anew, as most of it was gone
    assert world.files("k = 15") == ["15.parquet"]
    assert len(world.segments) == 2  # readers of the former list may need the former one
    for path in world.segments:
        os.utime(path, (0, 0))
    world.con.create_index("d", "k")
    assert len(world.segments) == 1


def test_many_small_segments_become_one(world, monkeypatch):
    monkeypatch.setattr(file_indexes, "MOST_SMALL", 3)
    for number in range(20, 24):
        world.con.create_index("d", "k")
        world.write(number)
    assert len(json.loads(world.list.read_text())["indexes"]["k"][1]) == 4
    assert world.con.create_index("d", "k")["files"][0]["added"] == 24
    assert len(json.loads(world.list.read_text())["indexes"]["k"][1]) == 1
    assert world.files("k = 47") == ["7.parquet"]


def test_null_is_in_no_index(world):
    world.con.create_index("d", "n")
    assert world.files("n = 21") == ["1.parquet"]
    assert len(world.files("n IS NULL")) == 20
    assert len(world.files("coalesce(n, 0) = 0")) == 20
    assert len(world.files("n = 21 OR n IS NULL")) == 20


def test_a_lookup_that_does_not_pay_is_left_out_and_says_so(world, monkeypatch):
    world.con.create_index("d", "k")
    monkeypatch.setattr("kartosql.formats.segments.PAIR_SECONDS", 1.0)
    scan = world.con.explain("SELECT * FROM d WHERE k > 3").to_dict()["scans"][0]["datasets"][0]
    assert scan["files_selected"] == 20
    assert "not looked up, at most 20 files could be left out" in scan["steps"][0]["condition"]


def test_skipping_indexes_that_are_made_one_by_one_all_stay(world):
    for number, column in enumerate("ktn", 1):
        assert world.con.create_skipping_index("d", minmax=column)["indexes"] == number
    assert world.con.create_skipping_index("d", bloomfilter="k")["indexes"] == 4
    assert world.con.refresh_skipping_index("d")["indexes"] == 4


def test_an_index_leaves_skipping_indexes_that_are_older_than_the_grace_period(world):
    world.con.create_skipping_index("d", valuelist="k")
    parts = [*world.list.parent.glob("skipping/*.parquet")]
    for part in parts:
        os.utime(part, (0, 0))
    world.con.create_index("d", "t")
    assert len(parts) == len([part for part in parts if part.exists()]) > 0
    assert world.files("k = 47") == ["7.parquet"]


def test_an_index_is_dropped(world):
    world.con.create_index("d", ["k", "t"])
    assert world.con.sql("DROP INDEX ON d (k)").rows() == [("d", "k")]
    assert [row[1] for row in world.con.sql("SHOW INDEXES FROM d").rows()] == ["t"]
    assert len(world.segments) == 1
    with pytest.raises(KartosqlError) as error:
        world.con.drop_index("d", "k")
    assert (error.value.code, error.value.hint) == ("not-indexed", "Indices: t.")


@pytest.mark.parametrize(
    ("column", "code"), [("x", "unknown-column"), ("p", "invalid-data"), ("l", "invalid-data"), ("ns", "invalid-data")]
)
def test_what_cannot_be_indexed_is_refused(tmp_path, column, code):
    (tmp_path / "store").mkdir()
    (tmp_path / "f" / "p=1").mkdir(parents=True)
    table = pa.table({"l": [[1]], "ns": pa.array([1], pa.timestamp("ns"))})
    pq.write_table(table, tmp_path / "f" / "p=1" / "a.parquet")
    with kartosql.connect(tmp_path / "store") as con:
        con.attach(tmp_path / "f", "d", type="parquet")
        for call in (lambda: con.create_index("d", column), lambda: con.sql(f"CREATE INDEX ON d ({column})")):
            with pytest.raises(KartosqlError) as error:
                call()
            assert error.value.code == code, error.value


def test_csv_files_are_indexed_as_they_are_read(tmp_path):
    world = World(tmp_path, "csv")
    world.con.create_index("d", ["k", "t"])
    assert world.files("k = 47") == world.files("t = 'key 47'") == ["7.csv"]
    with kartosql.connect(tmp_path / "store") as con:
        con.attach(world.data, "d", type="csv", types={"k": "VARCHAR"})
        assert len(con.sql("SELECT k FROM d WHERE k = '47'").report.to_dict()["scans"][0]["datasets"][0]["files"]) == 20
    world.con.close()


def test_the_indices_lie_below_the_metadata_folder(tmp_path):
    world = World(tmp_path)
    with pytest.warns(KartosqlWarning, match="there are no metadata"):
        world.con.attach(world.data, "e", type="parquet", metadata=str(tmp_path / "meta"))
    world.con.create_index("e", "k")
    world.con.create_skipping_index("e", minmax="k")
    assert not (tmp_path / "store" / ".kartosql").exists()
    assert len([*(tmp_path / "meta" / ".kartosql").glob("data-*/indexes.json")]) == 1
    scan = world.con.explain("SELECT * FROM e WHERE k = 47").to_dict()["scans"][0]["datasets"][0]
    assert scan["files"] == ["7.parquet"]
    world.con.drop_skipping_index("e")
    assert [row[1] for row in world.con.sql("SHOW INDEXES FROM e").rows()] == ["k"]
    world.con.close()


def test_datasets_of_the_store_are_what_they_were(world):
    world.con.create_dataset("t", pa.table({"a": [1]}))
    world.con.create_index("d", "k")
    assert [row[0] for row in world.con.sql("SHOW DATASETS").rows()] == ["t", "d"]
    assert world.con.sql("CHECK t").rows() == []
    assert world.con.sql("CLEANUP t").rows() == []
    assert world.files("k = 47") == ["7.parquet"]


def test_joins_look_values_up(world):
    world.con.create_index("d", "k")
    world.con.register("small", pa.table({"k": [47, 66]}))
    query = world.con.sql("SELECT t FROM d JOIN small USING (k)")
    assert sorted(query.rows()) == [("key 47",), ("key 66",)]
    assert query.report.files_selected == 2


def test_advice_for_what_is_attached_saves_what_it_promises(world, tmp_path):
    where = "SELECT t FROM d WHERE k = 47"
    advice, other = world.con.sql(f"ADVISE {where}").content.advice
    assert (advice.statement, advice.files, advice.files_saved) == ("CREATE INDEX ON d (k)", 20, 19)
    assert other.statement == "CREATE SKIPPING INDEX ON d (VALUELIST(k))"
    world.con.sql(advice.statement)
    assert world.con.sql(where).report.files_selected == 1
    assert world.con.sql(f"ADVISE {where}").content.advice == ()
    assert world.con.sql("ADVISE SELECT t FROM d WHERE n % 5 = 3").content.advice == ()  # which it would not be asked
    with pytest.warns(KartosqlWarning, match="there are no metadata"):
        world.con.attach(world.data, "e", type="parquet", metadata=str(tmp_path / "meta"))
    found = world.con.sql("ADVISE SELECT t FROM e WHERE k = 47").content.advice
    assert [a.statement for a in found] == ["CREATE INDEX ON e (k)", "CREATE SKIPPING INDEX ON e (VALUELIST(k))"]
    world.con.sql(found[1].statement)
    assert world.con.sql("SELECT t FROM e WHERE k = 47").report.files_selected == 1
    where = "SELECT k FROM e WHERE t ILIKE '%KEY 47'"
    (_, advice) = world.con.sql(f"ADVISE {where}").content.advice
    assert (advice.statement, advice.files_saved) == ("CREATE SKIPPING INDEX ON e (NGRAM(t))", 19)
    world.con.sql(advice.statement)
    assert world.con.sql(where).report.files_selected == 1


# -- damage ----------------------------------------------------------------------------------------


def _flipped(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def _read_all_of(world: World, con: kartosql.Connection) -> None:
    con.attach(world.data, "d", type="parquet")
    assert len(world.files("k = 47", con)) == 20


@pytest.mark.parametrize("place", ["page", "footer", "cut", "empty", "missing", "list", "newer", "name", "another"])
def test_what_is_damaged_is_told_and_leaves_out_nothing(world, place):
    world.con.create_index("d", "k")
    (segment,) = world.segments
    if place == "page":
        pages = pq.read_metadata(segment).row_group(0).column(0)
        _flipped(segment, pages.data_page_offset + pages.total_compressed_size - 3)
    elif place == "footer":
        _flipped(segment, segment.stat().st_size - 60)
    elif place in ("cut", "empty"):
        segment.write_bytes(segment.read_bytes()[: 100 if place == "cut" else 0])
    elif place == "missing":
        segment.unlink()
    elif place == "another":
        world.con.create_index("d", "t")
        (other,) = (s for s in world.segments if s != segment)
        segment.write_bytes(other.read_bytes())
    else:
        told = json.loads(world.list.read_text())
        if place == "name":
            told["indexes"]["k"][1][0][0] = "../../../etc/passwd"
        if place == "newer":
            told["version"] = 2
        world.list.write_text(json.dumps(told)[: -5 if place == "list" else None])
    with kartosql.connect(world.root / "store") as con:
        with pytest.warns(KartosqlWarning, match="Indices: "):
            _read_all_of(world, con)
        if place == "newer":
            with pytest.raises(KartosqlError) as error:
                con.create_index("d", "k")
            assert error.value.code == "unsupported-version"
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KartosqlWarning)
            con.create_index("d", "k")
            if place == "page":  # which nobody finds who does not read it
                con.drop_index("d", "k")
                con.create_index("d", "k")
        assert world.files("k = 47", con) == ["7.parquet"]


@pytest.mark.parametrize("times", [1, 2, 9])
@pytest.mark.parametrize("are_known", [False, True])
def test_an_index_that_is_replaced_while_it_is_read_is_read_again(world, monkeypatch, times, are_known):
    world.con.create_index("d", "k")
    ask, moved = SegmentedIndex._candidates, []

    def replaced(index, *given):
        if are_known:
            assert index.unseen == frozenset()  # from the footers, before the pages are gone
        if len(moved) < times:
            (segment,) = world.segments
            moved.append(segment.rename(segment.with_name(f"{uuid.uuid4().hex}.parquet")))
            world.list.write_text(world.list.read_text().replace(segment.name, moved[-1].name))
        return ask(index, *given)

    monkeypatch.setattr(SegmentedIndex, "_candidates", replaced)
    with kartosql.connect(world.root / "store") as con:
        con.attach(world.data, "d", type="parquet")
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            files = world.files("k = 47", con)
    assert (files == ["7.parquet"], len(warned)) == ((True, 0) if times < 3 else (False, 1))
    assert times < 3 or "it is missing" in str(warned[0].message)


def test_an_index_that_is_dropped_while_it_is_asked_leaves_out_nothing(world, monkeypatch):
    world.con.create_index("d", "k")
    ask = SegmentedIndex._candidates

    def dropped(index, *given):
        for segment in world.segments:
            segment.unlink()
        world.list.write_text(json.dumps({"version": 1, "indexes": {}}))
        return ask(index, *given)

    monkeypatch.setattr(SegmentedIndex, "_candidates", dropped)
    with kartosql.connect(world.root / "store") as con:
        _read_all_of(world, con)


@pytest.mark.parametrize("seed", range(3))
def test_bytes_that_change_never_change_an_answer(world, seed):
    chance = random.Random(seed)
    world.con.create_index("d", "k")
    kept = {path: path.read_bytes() for path in (*world.segments, world.list)}
    for _ in range(20):
        for path, data in kept.items():
            changed = bytearray(data)
            changed[chance.randrange(len(data))] = chance.randrange(256)
            path.write_bytes(bytes(changed) if chance.random() < 0.9 else data[: chance.randrange(len(data))])
        with warnings.catch_warnings(), kartosql.connect(world.root / "store") as con:
            warnings.simplefilter("ignore", KartosqlWarning)
            con.attach(world.data, "d", type="parquet")
            assert "7.parquet" in world.files("k = 47", con)


# -- random statements -----------------------------------------------------------------------------

SEEDS = range(int(os.environ.get("KARTOSQL_LAKE_INDEXES", "2")))


@pytest.mark.parametrize("seed", SEEDS)
def test_pruned_and_unpruned_rows_are_the_same_while_files_come_and_go(tmp_path, seed, monkeypatch):
    monkeypatch.setattr(file_indexes, "GROUP_ROWS", 4)
    monkeypatch.setattr(file_indexes, "MOST_SMALL", 3)
    monkeypatch.setattr("kartosql.indexes.index.MIN_FOR_STATISTICS", 10**6)
    chance = random.Random(seed)
    data, pruned = tmp_path / "data", 0
    data.mkdir()
    (tmp_path / "store").mkdir()
    write = lambda n: pq.write_table(_rows(chance, 10 * n), data / f"{n}.parquet")  # noqa: E731
    for number in range(6):
        write(number)
    zone = chance.choice(skipping_data.ZONES)
    with kartosql.connect(tmp_path / "store", TimeZone=zone) as con:
        con.attach(data, "d", type="parquet")
        for turn in range(6):
            some = chance.sample(COLUMNS, chance.randint(1, len(COLUMNS)))
            con.create_index("d", some)
            for number in chance.sample(range(12), 2):
                path = data / f"{number}.parquet"
                if turn and path.exists() and chance.random() < 0.4:
                    path.unlink()
                elif turn:
                    write(number)
            for _ in range(25):
                pruned += _same(con, skipping_data.predicate(chance))
    assert pruned > 30


def _rows(chance: random.Random, around: int) -> pa.Table:
    table = skipping_data.rows(chance, around)
    more = pa.array([chance.choice([None, 0, around, 2**32 - 1]) for _ in range(len(table))], pa.uint32())
    return table.append_column("u", more)


def _same(con: kartosql.Connection, where: str) -> bool:
    """Ask with and without pruning, and return whether files were left out."""
    try:
        whole = con.sql(f"SELECT * FROM d WHERE CASE WHEN random() >= 0 THEN {where} END").rows()
    except KartosqlError as e:
        assert e.code in ("query-failed", "invalid-query"), e  # noqa: PT017
        return False
    found = con.sql(f"SELECT * FROM d WHERE {where}")
    assert Counter(map(repr, found.rows())) == Counter(map(repr, whole)), (where, str(found.report))
    return found.report.files_selected < found.report.files_total


# -- kills, races, lost answers --------------------------------------------------------------------


def test_kills_while_an_index_is_built_leave_an_older_or_a_newer_one(world, monkeypatch):
    monkeypatch.setattr(file_indexes, "BATCHES", 1)
    world.con.create_index("d", "t")

    def build() -> None:
        with kartosql.connect(world.root / "store", write_memory=4_000) as con:
            con.attach(world.data, "d", type="parquet")
            con.create_index("d", "k")

    seen = set()
    for at in range(0, 400, 7):
        if not was_killed(build, at, ("before", "in", "after")[at % 3]):
            break
        assert world.files("t = 'key 47'") == ["7.parquet"]
        seen.add(len(world.files("k = 47")))
    else:
        raise AssertionError("it was never built")
    assert world.files("k = 47") == ["7.parquet"]
    assert len(seen) > 2  # what was indexed for some files is kept


def test_an_index_that_is_begun_again_goes_on(world, monkeypatch):
    monkeypatch.setattr(file_indexes, "BATCHES", 1)
    size = (world.data / "1.parquet").stat().st_size
    put, done = Store.put_if, []

    def fails(self: Store, key: str, *more: Any) -> Any:
        done.append(key)
        if len(done) == 3:
            raise KeyboardInterrupt
        return put(self, key, *more)

    with kartosql.connect(world.root / "store", write_memory=5 * size) as con:
        con.attach(world.data, "d", type="parquet")
        monkeypatch.setattr(Store, "put_if", fails)
        with pytest.raises(KeyboardInterrupt):
            con.create_index("d", "k")
        again = con.create_index("d", "k")["files"][0]
        assert again["kept"] >= 8
        assert again["added"] == 20 - again["kept"]
        assert world.files("k = 47", con) == ["7.parquet"]


@pytest.mark.parametrize("is_done", [True, False])
def test_a_put_without_an_answer_is_looked_at_again(world, monkeypatch, is_done):
    put, lost = Store.put_if, []

    def without_answer(self: Store, key: str, *more: Any) -> Any:
        if not lost:
            lost.append(key)
            if is_done:
                put(self, key, *more)
            raise OutcomeUnknown(key)
        return put(self, key, *more)

    monkeypatch.setattr(Store, "put_if", without_answer)
    world.con.create_index("d", "k")
    assert len(json.loads(world.list.read_text())["indexes"]["k"][1]) == 1
    assert world.files("k = 47") == ["7.parquet"]


def test_indices_that_are_built_at_the_same_time_are_all_there(world):
    def build(column: str) -> None:
        with kartosql.connect(world.root / "store") as con:
            con.attach(world.data, "d", type="parquet")
            con.create_index("d", column)

    threads = [threading.Thread(target=build, args=(c,)) for c in ("k", "t", "n")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [row[1] for row in world.con.sql("SHOW INDEXES FROM d").rows()] == ["k", "n", "t"]
    assert world.files("k = 47") == world.files("t = 'key 47'") == ["7.parquet"]


def test_no_row_is_lost_to_writers_that_race_with_an_index(world):
    stop, written = threading.Event(), {n: n for n in range(20)}

    def write() -> None:
        chance = random.Random(0)
        while not stop.is_set():
            number = chance.randrange(20)
            key = chance.randrange(1_000, 2_000)
            path = world.write(f".{number}", [key + n for n in range(10)])
            path.rename(world.data / f"{number}.parquet")
            written[number] = key

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(int(os.environ.get("KARTOSQL_LAKE_RACES", "8"))):
            world.con.create_index("d", "k")
    finally:
        stop.set()
        thread.join()
    for number, key in written.items():
        assert f"{number}.parquet" in world.files(f"k = {key}")


def test_folders_and_indices_in_object_stores(tmp_path):
    with serve() as server:
        options = server.storage_options
        store = Store(f"s3://{BUCKET}/f", options)
        for number in range(10):
            sink = pa.BufferOutputStream()
            pq.write_table(pa.table({"k": [number, number + 10]}), sink)
            store.fs.pipe_file(store.path(f"{number}.parquet"), sink.getvalue().to_pybytes())
        with kartosql.connect(f"s3://{BUCKET}/store", storage_options=options) as con:
            con.attach(f"s3://{BUCKET}/f", "d", type="parquet", storage_options=options)
            con.create_index("d", "k")
            query = con.sql("SELECT k FROM d WHERE k = 13")
            assert query.rows() == [(13,)]
            assert query.report.files_selected == 1
            store.fs.pipe_file(store.path("4.parquet"), store.read("3.parquet"))
            assert con.sql("SELECT k FROM d WHERE k = 13").rows() == [(13,), (13,)]
