"""Skipping indexes of folders that are attached: made, refreshed and dropped as the original would, and never wrong."""

from __future__ import annotations

import datetime as dt
import json
import os
import random
import shutil
import threading
import uuid
import warnings
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq
import pytest

import golden
import kartosql
import kartosql.query
import skipping_data
from crashes import NAMES
from kartosql.errors import FormatError, KartosqlError, KartosqlWarning, SqlError, UsageError
from kartosql.formats.xskipper.domain import OddCells
from kartosql.formats.xskipper.kinds import KINDS
from kartosql.formats.xskipper.naming import folder_name
from kartosql.formats.xskipper.store import MetadataStore
from kartosql.plan.prune import prune
from kartosql.sources.folder_metadata import FolderMetadata
from kartosql.store import syscalls

SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
KEY = "MDEyMzQ1Njc4OTAxMjM0NQ=="
ALL = golden.samples(lambda s: s["data_format"] in ("csv", "parquet") and "regex" not in s["name"])
# Bounds of NaN are not those of the original, which loses rows by them.
NEWEST = [p for p in ALL if not p.values[0] or (p.values[0]["version"] == 4 and not p.values[0]["encrypted"])]
NEWEST = [p for p in NEWEST if not p.values[0] or "nan" not in p.values[0]["name"]]
SPECS = "MINMAX(a, f, s, t), VALUELIST(s, b, k), BLOOMFILTER(a, s) WITH (fpp = 0.05, ndv = 100)"


def rows(begin: int, count: int = 10) -> pa.Table:
    """``a`` and ``t`` grow, ``f`` has NaN, ``s`` NULLs."""
    numbers = range(begin, begin + count)
    values = {
        "a": list(numbers),
        "f": [float("nan") if n % 37 == 5 else -0.0 if n % 41 == 0 else n / 4 for n in numbers],
        "s": [None if n % 11 == 3 else f"s{n // 5}" for n in numbers],
        "t": [dt.datetime(2024, 1, 1) + dt.timedelta(hours=n) for n in numbers],
        "b": [n % 60 < 20 for n in numbers],
        "k": [Decimal(n // 20) / 2 for n in numbers],
    }
    types = {"a": pa.int64(), "f": pa.float64(), "s": pa.string(), "t": pa.timestamp("us")}
    types |= {"b": pa.bool_(), "k": pa.decimal128(10, 2)}
    return pa.table(values, schema=pa.schema(list(types.items())))


class World:
    """A connection with the folder ``data`` attached as ``t``, as files of one type, and a base of metadata."""

    def __init__(self, folder: Path, type_: str) -> None:
        self.folder, self.type = folder, type_
        self.data, self.base = folder / "data", folder / "base"
        (folder / "store").mkdir()
        for number in range(20):
            self.write(number)
        self.con = kartosql.connect(folder / "store")
        self.attach()

    def write(self, number: int, count: int = 10, begin: int | None = None) -> Path:
        path = self.data / f"p={number // 5}" / f"{number}.{self.type}"
        path.parent.mkdir(parents=True, exist_ok=True)
        table = rows(10 * number if begin is None else begin, count)
        if self.type == "csv":
            pv.write_csv(table, path)
        else:
            pq.write_table(table, path)
        return path

    def attach(self, name: str = "t", **options: Any) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Data skipping: .* there are no metadata")
            self.con.attach(self.data, name, type=self.type, **{"metadata": str(self.base), **options})

    @property
    def metadata(self) -> Path:
        return self.base / folder_name(str(self.data))

    def left(self, where: str) -> dict[str, int]:
        """Return how many files each kind of index leaves, of those that leave out any."""
        (scan,) = self.con.explain(f"SELECT * FROM t WHERE {where}").to_dict()["scans"]
        steps = [step for d in scan["datasets"] for step in d["steps"]]
        return {s["by"]: s["files_after"] for s in steps if s["files_after"] < s["files_before"]}

    def both(self, monkeypatch: pytest.MonkeyPatch, where: str) -> list[str]:
        """Return the rows, which are the same without pruning."""
        sql = f"SELECT * FROM t WHERE {where}"
        found = sorted(map(repr, self.con.sql(sql).rows()))
        with monkeypatch.context() as patch:
            patch.setattr(kartosql.query, "prune", partial(prune, enabled=False))
            assert found == sorted(map(repr, self.con.sql(sql).rows())), sql
        return found


@pytest.fixture(params=["parquet", "csv"])
def world(request, tmp_path):
    made = World(tmp_path, request.param)
    yield made
    made.con.close()


@pytest.fixture
def parquet(tmp_path):
    made = World(tmp_path, "parquet")
    yield made
    made.con.close()


def test_statements_make_show_refresh_and_drop_them(world):
    assert world.con.sql(f"CREATE SKIPPING INDEX ON T ({SPECS})").rows() == [("t", 9, 20, 0, 0, 0)]
    assert world.left("a = 42") == {"minmax": 1}  # at once
    shown = world.con.sql("SHOW SKIPPING INDEXES FROM t").rows()
    assert ("t", "bloomfilter", "s", "fpp = 0.05, ndv = 100", 20, 20) in shown
    assert ("a", "minmax, bloomfilter") in [(r[0], r[4]) for r in world.con.sql("DESCRIBE t").rows()]
    found = MetadataStore.open(world.metadata)
    assert found.versions == [4]
    assert found.table_identifiers == [str(world.data)]
    times = {f"{p}#{p.stat().st_mtime_ns // 10**6}" for p in world.data.rglob("*.*") if p.is_file()}
    assert set(found.objects) == times
    world.write(3, begin=500)
    world.write(20)
    (world.data / "p=0" / f"4.{world.type}").unlink()
    assert world.left("a = 42") == {"minmax": 2}  # what changed or came is read
    assert world.left("a = 501") == {"minmax": 2}
    assert world.con.sql("REFRESH SKIPPING INDEX ON t").rows() == [("t", 9, 2, 2, 18, 0)]
    assert world.left("a = 42") == {"minmax": 0}
    assert world.left("a = 501") == {"minmax": 1}
    assert world.con.sql("DROP SKIPPING INDEX ON t").rows() == [("t", 1)]
    assert not world.metadata.exists()  # to the original, a folder means that there are indexes
    assert world.left("a = 42").keys() <= {"row groups"}
    assert world.con.sql("SHOW SKIPPING INDEXES FROM t").rows() == []
    assert world.con.sql("SELECT count(*) FROM t").rows() == [(200,)]


def test_the_same_in_python(world):
    made = world.con.create_skipping_index("t", minmax="a", bloomfilter={"s": {"ndv": 10}})
    assert (made["indexes"], made["added"]) == (2, 20)
    made = world.con.create_skipping_index("t", valuelist=["s"], bloomfilter={"s": {"ndv": 50}})
    assert (made["indexes"], made["added"]) == (3, 20)
    assert world.con.refresh_skipping_index("T")["kept"] == 20
    assert world.con.drop_skipping_index("t") == {"files": 1}


def replaced(world: World, number: int, begin: int) -> None:
    """Rename a file of another size over one, with the very same modification time."""
    path = world.data / f"p={number // 5}" / f"{number}.{world.type}"
    before, aside = path.stat(), path.rename(world.folder / "aside")
    world.write(number, count=30, begin=begin)
    path.replace(made := world.folder / "made")
    aside.rename(path)
    os.utime(made, ns=(before.st_atime_ns, before.st_mtime_ns))
    made.replace(path)
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_size != before.st_size


def test_a_file_of_another_size_is_another_file_whatever_its_time(world, monkeypatch):
    world.con.sql(f"CREATE SKIPPING INDEX ON t ({SPECS})")
    asked = ("a = 915", "s = 's183'", "f >= 228", "a = 42", "a BETWEEN 30 AND 120", "t > TIMESTAMP '2024-02-07'")
    before = {where: world.both(monkeypatch, where) for where in asked}
    replaced(world, 4, begin=900)
    after = {where: world.both(monkeypatch, where) for where in asked}
    assert [len(found[w]) for found in (before, after) for w in ("a = 915", "a = 42")] == [0, 1, 1, 0]
    assert world.con.sql("SHOW SKIPPING INDEXES FROM t").rows()[0][-2:] == (19, 20)
    assert world.left("a = 915") == {"minmax": 1}  # that one is read
    assert world.con.sql("REFRESH SKIPPING INDEX ON t").rows() == [("t", 9, 1, 1, 19, 0)]
    assert world.left("a = 42") == {"minmax": 0}
    assert {where: world.both(monkeypatch, where) for where in asked} == after
    world.con.create_skipping_index("t", minmax="k")  # entries are kept in other part files, with their sizes
    replaced(world, 7, begin=900)
    assert world.left("a = 915") == {"minmax": 2}
    assert world.con.refresh_skipping_index("t")["removed"] == 1
    for part in world.metadata.glob("*.parquet"):  # as the original writes them, and an older kartosql
        skipping_data.with_sizes(part, None)
    replaced(world, 8, begin=900)
    assert world.left("a = 915") == {"minmax": 2}
    assert world.con.refresh_skipping_index("t")["kept"] == 20


def test_partition_columns_have_the_types_that_spark_gives_them(parquet):
    shutil.copytree(parquet.data / "p=0", parquet.data / "p=07")
    parquet.con.create_skipping_index("t", minmax="a")
    (part,) = parquet.metadata.glob("*.parquet")
    assert pq.read_table(part)["virtual_p"].type == pa.int32()
    assert set(pq.read_table(part)["virtual_p"].to_pylist()) == {0, 1, 2, 3, 7}
    big = parquet.data / "p=5000000000"
    shutil.copytree(parquet.data / "p=0", big)
    assert parquet.con.refresh_skipping_index("t")["kept"] == 25
    assert {pq.read_schema(p).field("virtual_p").type for p in parquet.metadata.glob("*.parquet")} == {pa.int64()}


def test_random_predicates_give_the_rows_of_all_files(world, monkeypatch):
    world.con.sql(f"CREATE SKIPPING INDEX ON t ({SPECS})")
    chosen = random.Random(11)
    atoms = [
        lambda: f"a {chosen.choice(['=', '<>', '<', '>='])} {chosen.randrange(-5, 420)}",
        lambda: f"f {chosen.choice(['=', '<>', '<', '>='])} {chosen.choice([0.0, -0.0, 3.25, 50, 1e9])}",
        lambda: f"s {chosen.choice(['=', '<>', '<', 'LIKE', 'NOT LIKE'])} 's{chosen.randrange(50)}'",
        lambda: f"s IN ('s1', 's{chosen.randrange(50)}')",
        lambda: chosen.choice(["s LIKE '%{}'", "contains(s, '{}')", "s LIKE 's%{}_'"]).format(chosen.randrange(50)),
        lambda: f"t < TIMESTAMP '2024-01-{chosen.randrange(1, 12):02} 12:00:00'",
        lambda: f"k = {chosen.randrange(20) / 2}",
        lambda: f"p {chosen.choice(['=', '<>'])} {chosen.randrange(5)}",
        lambda: chosen.choice(["b", "NOT b", "b IS NULL", "s IS NULL", "s IS NOT NULL", "f = 'NaN'::DOUBLE"]),
    ]
    skipped = 0
    for turn in range(60):
        if turn % 20 == 10:
            world.write(turn, chosen.randrange(1, 20))
            world.write(chosen.randrange(20), begin=chosen.randrange(400))
        if turn % 20 == 15:
            world.con.refresh_skipping_index("t")
        where = chosen.choice(atoms)()
        for _ in range(chosen.randrange(3)):
            other = chosen.choice(atoms)()
            where = f"{chosen.choice(['', 'NOT '])}({where} {chosen.choice(['AND', 'OR'])} {other})"
        world.both(monkeypatch, where)
        skipped += bool({"minmax", "valuelist", "bloomfilter"} & world.left(where).keys())
    assert skipped > 20


# -- what the original wrote ---------------------------------------------------------------------


def plain(value: Any) -> Any:
    """Return a value; moments without their zone, as times of 12 bytes have none."""
    return value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value


def cells_of(metadata: MetadataStore) -> dict[str, dict[str, Any]]:
    """Return what metadata say, by file and index; of filters what they hold."""
    found: dict[str, dict[str, Any]] = {}
    for segment in metadata.segments:
        for index in segment.schema.indexes:
            try:
                cells = segment.column(index.column).to_pylist()
            except OddCells:
                continue
            if index.name == "bloomfilter":
                from kartosql.formats.xskipper.bloom import words_of

                cells = [None if c is None else repr(words_of(c)) for c in cells]
            if index.name == "valuelist":
                cells = [None if c is None else sorted(repr(plain(v)) for v in c) for c in cells]
            if index.name == "minmax":
                cells = [None if c is None else {k: plain(v) for k, v in c.items()} for c in cells]
            for name, cell in zip(segment.ids(), cells, strict=True):
                found.setdefault(name, {})[f"{index.name} {index.cols}"] = repr(cell)
    return found


@pytest.mark.parametrize("sample", ALL)
def test_metadata_of_the_original_become_version_4_and_say_the_same(tmp_path, monkeypatch, sample):
    folder, metadata = tmp_path / "data", tmp_path / "metadata"
    skipping_data.copied(sample, folder)
    shutil.copytree(golden.find(f"xskipper/{sample['metadata_dir']}"), metadata)
    for path in [metadata, *metadata.rglob("*")]:
        path.chmod(0o755)
    monkeypatch.setattr(FolderMetadata, "identifiers", property(lambda self: [sample["object_prefix"]]))
    keys = sample["encrypted"]["keys"] if sample["encrypted"] else None
    given = {"metadata_keys": keys} if keys else {}
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        where = {"metadata": str(metadata), "metadata_type": "EXPLICIT_LOCATION", **given}
        con.attach(folder, "t", type=sample["data_format"], **where)
        before = MetadataStore.open(metadata, keys)
        objects, cells = set(before.objects), cells_of(before) if before.versions != [0] else {}
        done = con.refresh_skipping_index("t")
        after = MetadataStore.open(metadata, keys)
        assert after.versions == [4]
        assert after.table_identifiers == before.table_identifiers
        assert [(i.name, i.cols) for i in after.indexes] == [(i.name, i.cols) for i in before.indexes]
        assert [i.key_metadata for i in after.indexes] == [i.key_metadata for i in before.indexes]
        assert set(after.describe()["encryption"]) == set(before.describe()["encryption"])
        assert set(after.objects) == objects
        if before.versions != [0]:
            assert (done["added"], done["kept"]) == (0, len(objects))
            assert cells_of(after) == cells
        for case in sample["cases"]:
            listing = [(str(n).rpartition("#")[0], int(str(n).rpartition("#")[2])) for n in sample["objects"]]
            prefix = len(sample["object_prefix"]) + 1
            try:
                kept = {path[prefix:] for path in after.select(case["predicate"], listing)}
            except SqlError:
                continue
            assert set(case["must_keep"]) <= kept, case
            # Version 0 was read anew, from text.
            assert not set(case["must_skip"]) & kept or before.versions == [0], case
        # A new file, and one that is gone.
        victim = sorted(folder.rglob(f"*.{sample['data_format']}"))[0]
        shutil.copy(victim, victim.with_name(f"new.{sample['data_format']}"))
        victim.unlink()
        done = con.refresh_skipping_index("t")
        assert (done["added"] + done["unindexed"], done["removed"]) == (1, 1)


@pytest.mark.parametrize("sample", NEWEST)
def test_what_is_made_is_what_the_original_made(tmp_path, monkeypatch, sample):
    original = MetadataStore.open(golden.find(f"xskipper/{sample['metadata_dir']}"))
    kinds: dict[str, Any] = {"minmax": [], "valuelist": [], "bloomfilter": {}}
    for index in original.indexes:
        if index.name == "bloomfilter":
            kinds[index.name][index.cols[0]] = {}
        elif "binary" not in index.cols[0]:
            kinds[index.name].append(index.cols[0])
    folder, base = tmp_path / "data", tmp_path / "base"
    skipping_data.copied(sample, folder)
    monkeypatch.setattr(FolderMetadata, "identifiers", property(lambda self: [sample["object_prefix"]]))
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        with pytest.warns(KartosqlWarning, match="there are no metadata"):
            con.attach(folder, "t", type=sample["data_format"], metadata=str(base))
        con.create_skipping_index("t", **kinds)
    made = MetadataStore.open(base / folder_name(sample["object_prefix"]))
    assert set(made.objects) == set(original.objects)
    wanted = {name: {k: v for k, v in cells.items() if "binary" not in k} for name, cells in cells_of(original).items()}
    assert cells_of(made) == wanted
    described = [
        {f["name"]: f for f in json.loads(pq.read_metadata(Path(s._data)).metadata[SCHEMA])["fields"]}
        for s in (made.segments[0], original.segments[0])
    ]
    assert described[0] == {name: f for name, f in described[1].items() if "binary" not in name}


def test_indexes_of_plugins_are_left_as_they_are(tmp_path, monkeypatch):
    sample = golden.sample("built_regex")
    metadata = tmp_path / "metadata"
    shutil.copytree(golden.find(f"xskipper/{sample['metadata_dir']}"), metadata)
    monkeypatch.setattr(FolderMetadata, "identifiers", property(lambda self: [sample["object_prefix"]]))
    data = golden.find(f"xskipper/{sample['data_dir']}")
    (tmp_path / "store").mkdir()
    monkeypatch.delitem(KINDS, "regexvaluelist")
    before = {p.name: p.read_bytes() for p in metadata.iterdir() if p.is_file()}
    with kartosql.connect(tmp_path / "store") as con:
        con.attach(data, "t", type=sample["data_format"], metadata=str(metadata), metadata_type="EXPLICIT_LOCATION")
        with pytest.raises(UsageError) as caught:
            con.refresh_skipping_index("t")
    assert caught.value.code == "unsupported-index"
    assert before == {p.name: p.read_bytes() for p in metadata.iterdir() if p.is_file()}


# -- where ---------------------------------------------------------------------------------------


def test_a_folder_named_for_metadata_holds_nothing_else(parquet):
    explicit = {"metadata_type": "EXPLICIT_LOCATION"}
    mine = parquet.folder / "mine"
    mine.mkdir()
    (mine / "letter.txt").write_text("dear")
    with pytest.warns(KartosqlWarning, match="cannot be opened"):
        parquet.attach("u", metadata=str(mine), **explicit)
    for statement in ("CREATE SKIPPING INDEX ON u (MINMAX(a))", "DROP SKIPPING INDEX ON u"):
        with pytest.raises(FormatError, match=r"letter\.txt") as caught:
            parquet.con.sql(statement)
        assert caught.value.code == "invalid-metadata"
    assert os.listdir(mine) == ["letter.txt"]
    (mine / "letter.txt").rename(mine / "_letter.txt")  # a name that no reader of metadata looks at
    with pytest.warns(KartosqlWarning, match="there are no metadata"):
        parquet.con.sql("CREATE SKIPPING INDEX ON u (MINMAX(a))")
    assert parquet.con.sql("DROP SKIPPING INDEX ON u").rows() == [("u", 1)]
    assert [n for n in os.listdir(mine) if n != ".commit"] == ["_letter.txt"]


def test_metadata_of_another_table_are_neither_replaced_nor_dropped(parquet):
    parquet.con.sql("CREATE SKIPPING INDEX ON t (MINMAX(a))")
    other = parquet.folder / "other"
    shutil.copytree(parquet.data, other)
    where = {"metadata": str(parquet.metadata), "metadata_type": "EXPLICIT_LOCATION"}
    with pytest.warns(KartosqlWarning, match="the metadata are about"):
        parquet.con.attach(other, "u", type="parquet", **where)
    for statement in (
        "CREATE SKIPPING INDEX ON u (MINMAX(a))",
        "REFRESH SKIPPING INDEX ON u",
        "DROP SKIPPING INDEX ON u",
    ):
        with pytest.raises(UsageError, match="are about"):
            parquet.con.sql(statement)
    assert parquet.left("a = 42") == {"minmax": 1}


@pytest.mark.parametrize("inside", [".", "meta", "p=0"])
def test_metadata_never_become_rows_of_their_table(parquet, inside):
    for number, more in enumerate([{}, {"metadata_type": "EXPLICIT_LOCATION"}]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", KartosqlWarning)
            parquet.attach(f"u{number}", metadata=str(parquet.data / inside), **more)
            with pytest.raises(UsageError, match="among its files"):
                parquet.con.sql(f"CREATE SKIPPING INDEX ON u{number} (MINMAX(a))")
    parquet.attach("v", metadata=str(parquet.data / "_meta"))
    parquet.con.sql("CREATE SKIPPING INDEX ON v (MINMAX(a))")
    assert parquet.con.sql("SELECT count(*) FROM v").rows() == [(200,)]


def test_one_file_is_a_table_too(parquet):
    path = parquet.data / "p=1" / "7.parquet"
    with pytest.warns(KartosqlWarning, match="there are no metadata"):
        parquet.con.attach(path, "one", type="parquet", metadata=str(parquet.base))
    assert parquet.con.create_skipping_index("one", minmax="a")["added"] == 1
    (scan,) = parquet.con.explain("SELECT * FROM one WHERE a = 3").to_dict()["scans"]
    assert scan["datasets"][0]["files"] == []
    assert parquet.con.sql("SELECT count(*) FROM one WHERE a = 73").rows() == [(1,)]
    assert MetadataStore.open(parquet.base / folder_name(str(path))).objects == [
        f"{path}#{path.stat().st_mtime_ns // 10**6}"
    ]


def test_metadata_of_one_file_do_not_become_rows_of_its_folder(parquet):
    path = parquet.data / "p=1" / "7.parquet"
    base = {"metadata": str(path.parent), "metadata_type": "EXPLICIT_BASE_PATH_LOCATION"}
    with pytest.warns(KartosqlWarning, match="there are no metadata"):
        parquet.con.attach(path, "one", type="parquet", **base)
    with pytest.raises(UsageError, match="among its files"):
        parquet.con.create_skipping_index("one", minmax="a")
    assert parquet.con.sql("SELECT count(*) FROM t").rows() == [(200,)]


def test_folders_of_object_stores_are_indexed(tmp_path):
    files, name = fsspec.filesystem("memory"), uuid.uuid4().hex
    for number in range(5):
        pq.write_table(rows(10 * number), tmp_path / "x.parquet")
        files.pipe(f"/{name}/t#1/{number}.parquet", (tmp_path / "x.parquet").read_bytes())
    with kartosql.connect(f"memory://{name}/store") as con:
        with pytest.warns(KartosqlWarning, match="there are no metadata"):
            con.attach(f"memory://{name}/t#1", "t", metadata=f"memory://{name}/meta")
        assert con.create_skipping_index("t", minmax="a")["added"] == 5
        assert files.ls(f"/{name}/meta", detail=False) == [f"/{name}/meta/{folder_name('/t#1')}"]
        (scan,) = con.explain("SELECT * FROM t WHERE a = 3").to_dict()["scans"]
        assert scan["datasets"][0]["files_selected"] == 1
        files.pipe(f"/{name}/t#1/1.parquet", (tmp_path / "x.parquet").read_bytes())
        assert con.sql("SELECT count(*) FROM t WHERE a = 43").rows() == [(2,)]
        assert con.refresh_skipping_index("t")["added"] == 1
        assert con.drop_skipping_index("t")["files"] > 0
        assert not files.exists(f"/{name}/meta/{folder_name('/t#1')}")


# -- what must not go wrong ----------------------------------------------------------------------


def test_a_column_of_the_files_is_not_the_partition_column_of_its_name(tmp_path, monkeypatch):
    made = World(tmp_path, "parquet")
    for number in range(20):
        path = made.data / f"p={number // 5}" / f"{number}.parquet"
        pq.write_table(rows(10 * number).append_column("p", pa.array([100 + number] * 10)), path)
    made.attach("flat", hive_partitioning=False)
    made.con.create_skipping_index("flat", minmax=["p", "a"], valuelist="p")
    assert made.con.sql("SELECT count(*) FROM flat WHERE p = 107").rows() == [(10,)]
    assert len(made.both(monkeypatch, "p = 2")) == 50  # that is the one of the path
    assert made.both(monkeypatch, "p = 107") == []
    assert len(made.both(monkeypatch, "p = 2 OR a = -1")) == 50  # a condition that partition keys alone do not answer
    made.con.close()


def test_csv_read_in_another_way_is_another_table(tmp_path):
    made = World(tmp_path, "csv")
    for number in range(20):
        (made.data / f"p={number // 5}" / f"{number}.csv").write_text(f"x;v\n{number};{number}.5\n")
    made.attach("other", nullstr="7")
    made.con.create_skipping_index("other", minmax=["x", "v"])
    assert made.con.sql("SELECT v FROM other WHERE x = 7").rows() == []
    assert made.con.explain("SELECT v FROM other WHERE x = 7").to_dict()["scans"][0]["datasets"][0]["files"] == []
    with pytest.warns(KartosqlWarning, match="read with other options"):
        made.attach("plain")
    assert made.con.sql("SELECT v FROM plain WHERE x = 7").rows() == [(7.5,)]
    assert made.con.refresh_skipping_index("plain")["added"] == 20
    assert len(made.con.explain("SELECT v FROM plain WHERE x = 7").to_dict()["scans"][0]["datasets"][0]["files"]) == 1
    assert made.con.sql("SELECT v FROM plain WHERE x = 7").rows() == [(7.5,)]
    with pytest.warns(KartosqlWarning, match="read with other options"):
        assert made.con.sql("SELECT v FROM other WHERE x = 7").rows() == []
    made.con.close()


def test_moments_in_text_are_indexed_only_where_their_zone_is_written(tmp_path, monkeypatch):
    made = World(tmp_path, "csv")
    for number in range(20):
        moments = [f"2024-01-{number + 1:02} 12:00:00{zone}" for zone in ("+02", "" if number == 7 else "Z")]
        path = made.data / f"p={number // 5}" / f"{number}.csv"
        path.write_text("m,n\n" + "".join(f"{m},{number}\n" for m in moments))
    made.attach("t", replace=True, types={"m": "TIMESTAMPTZ"})
    assert made.con.create_skipping_index("t", minmax="m")["unindexed"] == 1
    for zone in ("UTC", "Asia/Tokyo", "America/New_York"):
        made.con.sql(f"SET TimeZone = '{zone}'")
        assert made.left("m = '2024-01-03 12:00:00Z'::TIMESTAMPTZ")["minmax"] == 2
        for hour in (0, 12, 20):
            made.both(monkeypatch, f"m > '2024-01-08 {hour}:00:00Z'::TIMESTAMPTZ")
    made.con.close()


def test_encrypted_metadata_stay_encrypted(parquet):
    pytest.importorskip("cryptography")
    parquet.attach("e", metadata_keys={"k1": KEY})
    parquet.con.create_skipping_index("e", minmax="a", valuelist="s")
    parquet.write(30)
    assert parquet.con.refresh_skipping_index("e")["added"] == 1
    parquet.con.create_skipping_index("e", bloomfilter="a")
    assert all(p.read_bytes()[:4] == b"PARE" for p in parquet.metadata.glob("*.parquet"))
    (scan,) = parquet.con.explain("SELECT * FROM e WHERE a = 305").to_dict()["scans"]
    assert scan["datasets"][0]["files_selected"] == 1
    assert {i.key_metadata for i in MetadataStore.open(parquet.metadata, {"k1": KEY}).indexes} == {"k1"}
    before = sorted(os.listdir(parquet.metadata))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KartosqlWarning)
        for statement in ("CREATE SKIPPING INDEX ON t (MINMAX(a))", "REFRESH SKIPPING INDEX ON t"):
            with pytest.raises(UsageError) as caught:
                parquet.con.sql(statement)
            assert caught.value.code == "encrypted-metadata"
        parquet.attach("two", metadata=str(parquet.folder / "two"), metadata_keys={"k1": KEY, "k2": KEY})
        with pytest.raises(UsageError, match="several keys"):
            parquet.con.create_skipping_index("two", minmax="a")
    assert sorted(os.listdir(parquet.metadata)) == before


def test_a_reader_meets_whole_sets_while_others_refresh(parquet):
    parquet.con.sql(f"CREATE SKIPPING INDEX ON t ({SPECS})")
    parquet.write(21)
    stop, failures = threading.Event(), []

    def refresh() -> None:
        with kartosql.connect(parquet.folder / "store") as con:
            con.attach(parquet.data, "t", metadata=str(parquet.base))
            number = 40
            while not stop.is_set():
                # Something old goes and something new comes, so part files are replaced.
                (parquet.data / "p=9").mkdir(exist_ok=True)
                # By another name first: a file that is half written is none that can be read.
                pq.write_table(rows(10 * number), parquet.data / "p=9" / ".z")
                (parquet.data / "p=9" / ".z").replace(parquet.data / "p=9" / "z.parquet")
                con.refresh_skipping_index("t")
                number += 1

    def guarded() -> None:
        try:
            refresh()
        except Exception as e:  # noqa: BLE001 - told by the thread that waits
            failures.append(e)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        for turn in range(40):
            where = ("a = 42", "s = 's8'", "a = 42 AND b")[turn % 3]
            left = parquet.left(f"{where} AND p < 4")
            assert min(v for k, v in left.items() if k in ("minmax", "valuelist", "bloomfilter")) <= 1, (turn, left)
    finally:
        stop.set()
        thread.join(60)
    assert not failures, failures


class _Dead(BaseException):
    """The process ended."""


@pytest.mark.parametrize("statement", ["REFRESH SKIPPING INDEX ON t", "CREATE SKIPPING INDEX ON t (BLOOMFILTER(a))"])
def test_whoever_dies_leaves_a_whole_set(parquet, monkeypatch, statement):
    parquet.con.sql("CREATE SKIPPING INDEX ON t (MINMAX(a), VALUELIST(s))")
    for at in range(100):
        parquet.write(25, count=at + 1, begin=250)  # something to do
        done = 0

        def step(*args: Any, real: Any, at: int = at) -> Any:
            nonlocal done
            done += 1
            if done > at:
                raise _Dead
            return real(*args)

        ended = True
        with monkeypatch.context() as patch:
            for name in NAMES:
                patch.setattr(syscalls, name, partial(step, real=getattr(syscalls, name)))
            try:
                parquet.con.sql(statement)
            except _Dead:
                ended = False
        assert parquet.left("a = 42 AND s = 's8'")["minmax"] <= 2
        assert parquet.con.sql("SELECT count(*) FROM t WHERE a BETWEEN 245 AND 400").rows() == [(at + 1,)]
        if ended:
            break
    assert at > 4
    parquet.con.sql("REFRESH SKIPPING INDEX ON t")
    assert parquet.left("a = 42 AND s = 's8'") == {"minmax": 1}
    assert sum(s.rows for s in MetadataStore.open(parquet.metadata).segments) == 21  # each file once


def test_dropping_leaves_what_others_are_writing(parquet):
    parquet.con.create_skipping_index("t", minmax="a")
    (parquet.metadata / ".commit").mkdir(exist_ok=True)
    for name, age in (("new.tmp", 0), ("old.tmp", 7200)):
        path = parquet.metadata / ".commit" / name
        path.write_bytes(b"x")
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    parquet.con.drop_skipping_index("t")
    assert [p.name for p in parquet.metadata.rglob("*.*") if p.is_file()] == ["new.tmp"]


@pytest.mark.parametrize("where", ["s = 's8'", "k = 1 AND s < 's9' AND s >= 's8'", "a = 42"])
@pytest.mark.parametrize("specs", [SPECS, "BLOOMFILTER(s, a) WITH (fpp = 0.0001, ndv = 100), VALUELIST(k)"])
def test_part_files_that_vanish_are_looked_for_again(parquet, monkeypatch, where, specs):
    parquet.con.sql(f"CREATE SKIPPING INDEX ON t ({specs})")
    wanted = parquet.left(where)
    parquet.con.close()
    parquet.con = kartosql.connect(parquet.folder / "store")
    parquet.attach()
    # Another program refreshes after the metadata were opened, and before a column of them is read.
    (part,) = parquet.metadata.glob("*.parquet")
    original = FolderMetadata.now
    calls = []

    def now(self: FolderMetadata) -> Any:
        found = original(self)
        if not calls:
            calls.append(found.objects)
            part.rename(part.with_name("part-1.parquet"))
        return found

    monkeypatch.setattr(FolderMetadata, "now", now)
    assert parquet.left(where) == wanted
    assert min(wanted.values()) <= 2


def test_files_that_change_while_they_are_read_are_not_indexed(parquet, monkeypatch):
    import kartosql.sources.indexing as indexing

    original = indexing.refresh

    def meanwhile(store, folder, files, *rest: Any) -> Any:
        path = parquet.write(6, begin=900)
        os.utime(path, ns=(path.stat().st_mtime_ns + 5 * 10**6,) * 2)
        return original(store, folder, files, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(indexing, "refresh", meanwhile)
        assert parquet.con.create_skipping_index("t", minmax="a")["unindexed"] == 1
    assert parquet.both(monkeypatch, "a = 905")
    assert parquet.con.refresh_skipping_index("t")["added"] == 1


def test_bytes_that_the_original_indexed_are_kept(parquet):
    (parquet.data / "p=0" / "0.parquet").unlink()
    for number in range(20):
        path = parquet.data / f"p={number // 5}" / f"{number}.parquet"
        pq.write_table(pa.table({"x": [bytes([number, 255]), bytes([number])], "a": [1, number]}), path)
    with pytest.raises(UsageError) as caught:
        parquet.con.create_skipping_index("t", minmax="x")
    assert caught.value.code == "unsupported-type"
    parquet.con.create_skipping_index("t", minmax="a")
    (part,) = parquet.metadata.glob("*.parquet")
    # As the original has it: bounds of bytes.
    table = pq.read_table(part)
    described = json.loads(pq.read_metadata(part).metadata[b"org.apache.spark.sql.parquet.row.metadata"])
    field = described["fields"][-1]
    field["name"], field["metadata"]["index"]["cols"] = "x_minmax_1", ["x"]
    for end in field["type"]["fields"]:
        end["type"] = "binary"
    bounds = pa.StructArray.from_arrays(
        [pa.array([bytes([n])] * 20) for n in (0, 200)], fields=[pa.field(n, pa.binary()) for n in ("min", "max")]
    )
    table = table.set_column(table.num_columns - 1, "x_minmax_1", bounds)
    with pq.ParquetWriter(part, table.schema, store_schema=False) as writer:
        about = {"org.apache.spark.sql.parquet.row.metadata": json.dumps(described)}
        writer.add_key_value_metadata({**about, "org.apache.spark.version": "4.0.0"})
        writer.write_table(table)
    shutil.copy(parquet.data / "p=1" / "7.parquet", parquet.data / "p=1" / "new.parquet")
    assert parquet.con.refresh_skipping_index("t") == {
        "indexes": 1,
        "added": 1,
        "removed": 0,
        "kept": 20,
        "unindexed": 0,
    }
    cells = cells_of(MetadataStore.open(parquet.metadata))
    (new,) = [c for name, c in cells.items() if "/new.parquet#" in name]
    assert new == {"minmax ('x',)": repr({"min": b"\x07", "max": b"\x07\xff"})}


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("CREATE SKIPPING INDEX ON plain (MINMAX(v))", "unknown-column"),
        ("REFRESH SKIPPING INDEX ON plain", "not-indexed"),
        ("DROP SKIPPING INDEX ON plain", "not-indexed"),
        ("REFRESH SKIPPING INDEX ON t", "not-indexed"),
        ("DROP SKIPPING INDEX ON t", "not-indexed"),
        ("CREATE SKIPPING INDEX ON t (MINMAX(nothing))", "unknown-column"),
        ("CREATE SKIPPING INDEX ON t (MINMAX(p))", "unknown-column"),
        ("CREATE SKIPPING INDEX ON t (MINMAX(v))", "unknown-column"),
        ("CREATE SKIPPING INDEX ON t (BLOOMFILTER(f))", "unsupported-type"),
        ("CREATE SKIPPING INDEX ON t (BLOOMFILTER(s) WITH (fpp = 0))", "invalid-argument"),
        ("CREATE SKIPPING INDEX ON root (MINMAX(a))", "invalid-argument"),
        ("CREATE SKIPPING INDEX ON nowhere (MINMAX(a))", "store-failed"),
        ("CREATE SKIPPING INDEX ON other.d (MINMAX(a))", "unknown-table"),
        ("CREATE SKIPPING INDEX ON bucket (MINMAX(a))", "invalid-argument"),
        ("CREATE SKIPPING INDEX ON t.x (MINMAX(a))", "unknown-table"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_written(parquet, sql, code):
    path = parquet.data / "p=0" / "0.parquet"
    odd = {"v": pa.array(range(10)), "V": pa.array(range(10))}
    pq.write_table(pa.table({**{n: rows(0)[n] for n in rows(0).column_names}, **odd}), path)
    con = parquet.con
    con.attach(parquet.data, "plain", type="parquet")
    con.create_dataset("d", rows(0))
    con.attach(parquet.folder / "store", "other", type="kartothek")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KartosqlWarning)
        parquet.attach("root", metadata="/", metadata_type="EXPLICIT_LOCATION")
        parquet.attach("bucket", metadata="memory://elsewhere/m")
        parquet.attach("nowhere", metadata="/proc/none/m")
        with pytest.raises(KartosqlError) as caught:
            con.sql(sql)
    assert caught.value.code == code
    assert not parquet.base.exists()
    assert caught.value.hint or code == "store-failed"


@pytest.mark.parametrize(
    "given", [{"fpp": "x"}, {"fpp": True}, {"fpp": float("nan")}, {"ndv": 1.5}, {"ndv": None}, {"x": 1}]
)
def test_parameters_of_filters_are_checked(parquet, given):
    with pytest.raises(UsageError) as caught:
        parquet.con.create_skipping_index("t", bloomfilter={"a": given})
    assert caught.value.code == "invalid-argument"
    assert not parquet.base.exists()


def test_a_connection_that_only_reads_writes_no_metadata(parquet):
    with kartosql.connect(parquet.folder / "store", read_only=True, attach=True) as con:
        con.attach(parquet.data, "plain", type="parquet")
        with pytest.warns(KartosqlWarning, match="there are no metadata"):
            con.attach(parquet.data, "t", type="parquet", metadata=str(parquet.base))
        for name in ("t", "plain"):
            for call in (con.create_skipping_index, con.refresh_skipping_index, con.drop_skipping_index):
                with pytest.raises(UsageError) as caught:
                    call(name, **({"minmax": "a"} if call == con.create_skipping_index else {}))
                assert caught.value.code == "read-only"
    assert not parquet.base.exists()
