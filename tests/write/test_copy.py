from __future__ import annotations

import contextlib
import json
import os
import random

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql import Cube
from kartosql.errors import FormatError, KartosqlError, StoreError, UsageError
from kartosql.formats.kartothek import naming
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from kartosql.write.copy import copy_cube, copy_dataset
from kartosql.write.operation import Operation
from write import rivals
from write.test_compact import CUBE, check_index, overlaid, rows_of


@pytest.fixture
def con(tmp_path):
    (tmp_path / "source").mkdir()
    with kartosql.connect(tmp_path / "source") as con:
        overlaid(con, random.Random(1), 4)
        yield con


@pytest.fixture
def target(tmp_path):
    (tmp_path / "target").mkdir()
    with kartosql.connect(tmp_path / "target") as con:
        yield con


def everything(store):
    found = {}
    for entry in store.list_root():
        keys = store.list_below(f"{entry.name}/") if entry.is_dir else [entry.name]
        found |= {key: store.read(key) for key in keys}
    return found


def own(document):
    return {k: v for k, v in document["metadata"].items() if not k.startswith("kartosql_")}


def test_a_copy_answers_the_same(con, target):
    before = everything(con.store)
    report = con.copy_cube(CUBE, target)
    assert set(report) == {"seed", "en"}
    document = builders.read_document(con.store, "c++seed")
    assert report["seed"]["files"] == len(document["partitions"])
    for query in ("c", "c.en", "c.seed"):
        assert rows_of(target, query) == rows_of(con, query)
    copied = builders.read_document(target.store, "c++seed")
    assert list(copied["partitions"]) == list(document["partitions"])
    assert own(copied) == own(document)
    assert set(copied["indices"]) == set(document["indices"])
    for column in ("x", "y", "i"):
        check_index(target, "c++seed", column)
    assert target.check("c", full=True) == [f for f in target.check("c") if f.severity == "info"]
    assert everything(con.store) == before
    target.append_to_cube("c", {"en": pa.table({"x": [0], "q": [1], "w": [9.5]})})


@pytest.mark.parametrize("form", [str, os.fspath, lambda p: Store(str(p)), lambda p: f"file://{p}"])
def test_the_target_is_a_path_a_url_or_a_store(con, tmp_path, form):
    (tmp_path / "other").mkdir()
    con.copy_cube("c", form(tmp_path / "other"))
    with kartosql.connect(tmp_path / "other") as other:
        assert rows_of(other) == rows_of(con)


def test_a_folder_is_made_and_other_kinds_of_stores_are_taken(con, tmp_path):
    con.copy_cube("c", tmp_path / "new")
    con.copy_cube("c", "memory://copied")
    with kartosql.connect(tmp_path / "new") as one, kartosql.connect("memory://copied") as other:
        assert rows_of(one) == rows_of(other) == rows_of(con)


def test_names_are_replaced_as_a_whole(con, target):
    con.extend_cube("c", {"en4": pa.table({"x": [0], "p": ["a"], "z": [1]})})
    con.copy_cube("c", target, name="other", datasets={"en": "enX", "en4": "en4", "seed": "base"})
    assert sorted(Snapshot(target.store).members["other"]) == ["base", "en4", "enX"]
    assert rows_of(target, "other") == rows_of(con)
    assert target.cubes()["other"].seed_dataset == "base"


def test_a_copy_within_the_store_and_of_some_datasets(con):
    con.copy_cube("c", con, name="d", datasets=["seed"])
    assert rows_of(con, "d.seed") == rows_of(con, "c.seed")
    assert Snapshot(con.store).members["d"] == ["seed"]


def test_files_of_one_write_stay_files_of_one_write(con, target):
    con.copy_cube("c", target)
    names = []
    for each in (con, target):
        document = builders.read_document(each.store, "c++seed")
        ids = naming.write_ids(e["files"]["table"] for e in document["partitions"].values())
        names.append([ids.index(one) for one in ids])
    assert names[0] == names[1]


def test_what_stands_under_the_new_names_counts(con, target):
    con.copy_cube("c", target)
    before = everything(target.store)
    with pytest.raises(UsageError) as e:
        con.copy_cube("c", target)
    assert e.value.code == "dataset-exists"
    con.copy_cube("c", con, name="d")
    with pytest.raises(UsageError) as e:
        con.copy_cube("d", target, name="c", datasets={"seed": "seed", "en": "other"})
    assert e.value.code == "dataset-exists"
    with pytest.raises(UsageError) as e:
        con.copy_cube("c", target, datasets=["seed"], overwrite=True)
    assert e.value.code == "dataset-exists"
    assert everything(target.store) == before
    con.copy_cube("d", target, name="e")
    assert rows_of(target, "e") == rows_of(con)


def test_overwriting_replaces_all(con, target):
    con.copy_cube("c", target)
    con.append_to_cube("c", {"seed": pa.table({"x": [0], "y": [0], "p": ["a"], "i": ["n"], "v": [-7]})})
    con.copy_cube("c", target, overwrite=True)
    assert rows_of(target) == rows_of(con)
    check_index(target, "c++seed", "i")


def test_a_cube_is_not_copied_onto_itself(con, tmp_path):
    before = everything(con.store)
    (tmp_path / "link").symlink_to(tmp_path / "source")
    for again in (con, tmp_path / "source", f"file://{tmp_path}/source", tmp_path / "link"):
        with pytest.raises(UsageError) as e:
            con.copy_cube("c", again, overwrite=True)
        assert e.value.code == "invalid-argument"
    assert everything(con.store) == before


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"datasets": ["en"]}, "invalid-cube"),
        ({"datasets": ["seed", "nope"]}, "unknown-dataset"),
        ({"datasets": {"seed": "a", "en": "a"}}, "invalid-argument"),
        ({"datasets": {"seed": "a++b"}}, "invalid-argument"),
        ({"name": "a/../b"}, "invalid-argument"),
        ({"name": "a++b"}, "invalid-argument"),
    ],
)
def test_calls_that_make_no_sense_write_nothing(con, target, options, code):
    with pytest.raises(KartosqlError) as e:
        con.copy_cube("c", target, **options)
    assert e.value.code == code
    with pytest.raises(UsageError):
        con.copy_cube("nope", target)
    with pytest.raises(StoreError):
        con.copy_cube("c", "nope://x")
    assert everything(target.store) == {}


def test_a_target_that_may_not_be_written_is_refused(con, tmp_path):
    (tmp_path / "target").mkdir()
    with kartosql.connect(tmp_path / "target", read_only=True) as other, pytest.raises(UsageError) as e:
        con.copy_cube("c", other)
    assert e.value.code == "read-only"


def test_a_source_that_may_only_be_read_can_be_copied(con, target):
    with kartosql.connect(con.store.url, read_only=True) as source:
        source.copy_cube("c", target)
    assert rows_of(target) == rows_of(con)


def test_nothing_is_left_of_a_copy_that_fails(con, target):
    document = builders.read_document(con.store, "c++seed")
    key = list(document["partitions"].values())[-1]["files"]["table"]
    con.store.delete([key])
    with pytest.raises(FormatError) as e:
        con.copy_cube("c", target)
    assert (e.value.code, key in e.value.message) == ("missing-file", True)
    con.store.put(key, b"torn")
    with pytest.raises(FormatError) as e:
        con.copy_cube("c", target)
    assert e.value.code == "corrupt-file"
    assert [k for k in everything(target.store) if "/.commit/" not in k] == []


def test_metadata_in_msgpack_and_user_metadata_come_along(tmp_path, target):
    msgpack, zstandard = pytest.importorskip("msgpack"), pytest.importorskip("zstandard")
    with kartosql.connect(tmp_path) as con:
        con.build_cube(
            Cube("m", "x", "p"),
            {"seed": pa.table({"x": [1], "p": [1], "v": [2]})},
            metadata={"seed": {"k": [1, {"a": None}]}},
        )
        document = builders.read_document(con.store, "m++seed")
        packed = zstandard.ZstdCompressor().compress(msgpack.packb(document))
        con.store.put("m++seed.by-dataset-metadata.msgpack.zstd", packed)
        con.store.delete(["m++seed.by-dataset-metadata.json"])
        con.copy_cube("m", target)
        assert rows_of(target, "m") == rows_of(con, "m")
    data = target.store.read("m++seed.by-dataset-metadata.msgpack.zstd")
    copied = msgpack.unpackb(zstandard.ZstdDecompressor().decompress(data))
    assert own(copied) == own(document)
    assert json.dumps(copied["metadata"]["k"]) == '[1, {"a": null}]'


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("at", range(0, 60, 3))
def test_readers_of_the_target_see_all_or_nothing_whenever_the_copy_dies(con, tmp_path, at):
    (tmp_path / "target").mkdir()
    store = rivals.dies_at(Store(str(tmp_path / "target")), at, "after")
    done = False
    try:
        copy_cube(Snapshot(con.store), "c", Operation(store, "copy_cube"))
        done = True
    except rivals.Died:
        pass
    with kartosql.connect(tmp_path / "target") as other:
        if done or "c" in other.cubes():
            assert rows_of(other) == rows_of(con)
        else:
            con.copy_cube("c", other)
            assert rows_of(other) == rows_of(con)


class Copied(Store):
    """A store that tells which files are read as a whole, and dies at one of them."""

    def __init__(self, url, dies=-1):
        super().__init__(url)
        self.copied, self._dies = [], dies
        self.map = lambda function, items, workers=1: [function(item) for item in items]

    def read(self, key, *args, start=None, end=None, **kwargs):
        if key.endswith(".parquet") and start == 0:
            if len(self.copied) == self._dies:
                raise rivals.Died
            self.copied.append(key)
        return super().read(key, *args, start=start, end=end, **kwargs)


@pytest.fixture(params=["local", "memory"])
def there(request, tmp_path):
    if request.param == "local":
        (tmp_path / "there").mkdir()
        return str(tmp_path / "there")
    return f"memory://there-{tmp_path.name}-{random.random()}"


def kept(monkeypatch):
    """Let a copy that dies leave everything behind, as a kill does."""
    monkeypatch.setattr(Operation, "discard", lambda self, written: None)


def copying(con, url, call, dies=-1):
    """Copy until the source cannot be read any more; return how many files were read."""
    source = Copied(con.store.url, dies)
    with contextlib.suppress(rivals.Died):
        call(Snapshot(source), Operation(Store(url), "copy"))
    return len(source.copied)


CALLS = [
    pytest.param(lambda source, target: copy_cube(source, "c", target), "c", id="cube"),
    pytest.param(lambda source, target: copy_dataset(source, "c++seed", target, name="e"), "e", id="dataset"),
]


@pytest.mark.parametrize(("call", "table"), CALLS)
def test_a_copy_that_was_killed_goes_on_where_it_stopped(con, there, monkeypatch, call, table):
    uuids = ["c++seed", "c++en"] if table == "c" else ["c++seed"]
    everywhere = sum(len(Snapshot(con.store).dataset(uuid).tables["table"].files) for uuid in uuids)
    with monkeypatch.context() as patch:
        kept(patch)
        assert copying(con, there, call, 2) == 2
        assert copying(con, there, call, 1) == 1
    # A cleanup may take what was left behind.
    store = Store(there)
    folders = [f"{uuid}/" if table == "c" else "e/" for uuid in uuids]
    left = {key for folder in folders for key in store.list_below(folder) if key.endswith(".parquet")}
    assert copying(con, there, call) == everywhere - len({key[-25:] for key in left})
    store.delete(sorted(left))
    with kartosql.connect(there) as other:
        con.copy_dataset("c.seed", con, name="e")
        assert rows_of(other, table) == rows_of(con, table)
        assert not [f for f in other.check(table, full=True) if f.severity == "error"]


@pytest.mark.parametrize(("call", "table"), CALLS[1:])
def test_what_a_killed_copy_left_is_found_by_a_cleanup(con, there, monkeypatch, call, table):
    with monkeypatch.context() as patch:
        kept(patch)
        copying(con, there, call, 3)
    copying(con, there, call)
    store = Store(there)
    document = builders.read_document(store, table)
    live = {
        *(key for e in document["partitions"].values() for key in e["files"].values()),
        *document["indices"].values(),
    }
    orphans = {k for k in store.list_below(f"{table}/") if k.endswith(".parquet")} - live
    assert len(orphans) == 3
    with kartosql.connect(there) as other:
        found = other.sql(f"CLEANUP {table} DRY RUN").arrow()
        assert orphans <= set(found["key"].to_pylist())


@pytest.mark.parametrize(
    "damage", ["other content", "torn", "a store that takes a copy for an empty object", "no links"]
)
def test_what_cannot_be_taken_over_is_copied_anew(con, there, monkeypatch, damage):
    call = CALLS[1].values[0]
    files = Snapshot(con.store).dataset("c++seed").tables["table"].files
    with monkeypatch.context() as patch:
        kept(patch)
        copying(con, there, call, 2)
    store = Store(there)
    left = sorted(key for key in store.list_below("e/") if key.endswith(".parquet"))
    if damage == "no links":

        def refuse(store, old, new):
            raise StoreError("no links here", code="store-failed")

        monkeypatch.setattr(Store, "duplicate", refuse)
    elif damage.startswith("a store"):
        monkeypatch.setattr(Store, "duplicate", lambda store, old, new: store.put(new, b""))
    elif damage == "torn":
        for key in left:
            data = store.read(key)
            store.delete([key])
            store.put(key, data[:-9])
    else:
        for key in files:
            os.utime(os.path.join(con.store.root, key), (1, 1))
    assert copying(con, there, call) == len(files)
    with kartosql.connect(there) as other:
        con.copy_dataset("c.seed", con, name="e")
        assert rows_of(other, "e") == rows_of(con, "e")


def test_a_copy_that_overwrites_another_one_reads_what_changed_alone(con, there):
    con.create_dataset("d", pa.table({"p": [1, 2, 3], "x": [1, 2, 3]}), partition_on="p")

    def call(source, target):
        copy_dataset(source, "d", target, overwrite=True)

    assert copying(con, there, call) == 3
    con.append_to_dataset("d", pa.table({"p": [1], "x": [4]}))
    assert copying(con, there, call) == 1
    with kartosql.connect(there) as other:
        assert rows_of(other, "d") == rows_of(con, "d")


# -- datasets without their seed, and plain ones -----------------------------------------------


def test_datasets_join_the_cube_that_the_target_has(con, target):
    con.copy_cube("c", target, datasets=["seed"])
    before = everything(target.store)
    report = con.copy_cube("c", target, datasets=["en"])
    assert list(report) == ["en"]
    assert rows_of(target) == rows_of(con)
    after = everything(target.store)
    assert {key: after[key] for key in before} == before
    assert [f for f in target.check("c", full=True) if f.severity != "info"] == []
    target.append_to_cube("c", {"en": pa.table({"x": [0], "q": [1], "w": [9.5]})})
    with pytest.raises(UsageError) as e:
        con.copy_cube("c", target, datasets=["en"])
    assert e.value.code == "dataset-exists"
    con.copy_cube("c", target, datasets=["en"], overwrite=True)
    assert rows_of(target) == rows_of(con)
    con.copy_cube("c", con, name="d", datasets={"seed": "base"})
    con.copy_cube("c", con, name="d", datasets={"en": "other"})
    assert rows_of(con, "d") == rows_of(con)


SEED = pa.table({"x": [0], "y": [0], "p": ["a"], "i": ["n"], "v": [-7]})


@pytest.mark.parametrize(
    ("cube", "seed", "datasets", "code", "message"),
    [
        (("x", "p"), SEED, ["en"], "invalid-cube", "dimension columns x, not x, y"),
        ((["x", "y"], ["p", "i"]), SEED, ["en"], "invalid-cube", "partition columns p, i, not p"),
        ((["x", "y"], "p"), SEED.append_column("w", SEED["v"]), ["en"], "invalid-data", "payload column 'w'"),
        ((["x", "y"], "p"), SEED.set_column(0, "x", pa.array(["t"])), ["en"], "invalid-data", "'x' is"),
        ((["x", "y"], "p", "en"), SEED, ["en"], "invalid-cube", "seed 'en' cannot be replaced"),
        ((["x", "y"], "p"), SEED, [], "invalid-argument", "at least one"),
    ],
)
def test_datasets_that_do_not_fit_the_cube_of_the_target_are_refused(con, target, cube, seed, datasets, code, message):
    target.build_cube(Cube("c", *cube), seed)
    before = everything(target.store)
    with pytest.raises(KartosqlError, match=message) as e:
        con.copy_cube("c", target, datasets=datasets, overwrite=True)
    assert e.value.code == code
    if datasets:
        with pytest.raises(KartosqlError, match=message):
            con.copy_dataset("c.en", target, overwrite=True)
    assert everything(target.store) == before


def test_a_dataset_of_a_cube_can_be_kept_alone_and_brought_back(con, target):
    expected = rows_of(con)
    con.copy_dataset("c.en", target)
    # Alone it has all rows that were ever written, as only a cube knows which of them a later one replaced.
    assert set(rows_of(target, '"c++en"')) > set(rows_of(con, "c.en"))
    con.delete_dataset("c.en")
    target.copy_dataset("c++en", con)
    assert rows_of(con) == expected
    con.copy_dataset("c.en", target, name="en")
    assert rows_of(target, "en") == rows_of(target, '"c++en"')


def test_plain_datasets_are_copied_with_all_of_their_tables(con, target):
    one = pa.table({"p": ["a", "b"], "x": [1, 2], "v": [None, 20]})
    two = pa.table({"p": ["b", ".."], "x": [2, 3], "w": ["k", "l"]})
    con.create_dataset("d", {"one": one, "two": two}, partition_on="p", index_columns=["x", "w"], metadata={"k": [1]})
    con.append_to_dataset("d", {"one": one, "two": two})
    con.create_dataset("packed", one, format="msgpack")
    con.create_dataset("empty", one.slice(0, 0), partition_on="p")
    for name, files in (("d", 12), ("packed", 1), ("empty", 0)):
        assert con.copy_dataset(name, target)["files"] == files
        assert con.copy_dataset(name, con, name=f"{name}-2")["files"] == files
        for copy in (target.sql, lambda sql, name=name: con.sql(sql.replace(f'"{name}"', f'"{name}-2"'))):
            for table in (".one", ".two") if name == "d" else ("",):
                query = f'SELECT * FROM "{name}"{table} ORDER BY ALL'
                assert copy(query).rows() == con.sql(query).rows()
        assert [f for f in target.check(name, full=True) if f.severity != "info"] == []
    assert target.metadata("d")["k"] == [1]
    assert target.sql("SELECT w FROM d.two WHERE x = 3").rows() == [("l",), ("l",)]
    target.append_to_dataset("d", {"one": one, "two": two})
    with pytest.raises(UsageError) as e:
        con.copy_dataset("d", target)
    assert e.value.code == "dataset-exists"
    con.copy_dataset("d", target, overwrite=True)
    assert target.sql("SELECT count(*) FROM d.one").rows() == [(4,)]


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("nope", {}, "unknown-table"),
        ("c", {}, "unknown-table"),
        ("plain", {"name": "a/b"}, "invalid-argument"),
        ("plain", {"name": "c++more"}, "invalid-cube"),
        ("plain", {"name": "c++en", "overwrite": True}, "invalid-cube"),
    ],
)
def test_copies_of_datasets_that_make_no_sense_write_nothing(con, target, name, options, code):
    con.create_dataset("plain", pa.table({"x": [1]}))
    con.copy_cube("c", target)
    before = everything(target.store)
    with pytest.raises(KartosqlError) as e:
        con.copy_dataset(name, target, **options)
    assert e.value.code == code
    with pytest.raises(UsageError) as e:
        con.copy_dataset("plain", con, overwrite=True)
    assert e.value.code == "invalid-argument"
    assert everything(target.store) == before


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("at", range(0, 40, 4))
def test_a_copy_of_datasets_that_dies_can_be_made_again(con, tmp_path, at):
    con.extend_cube("c", {"more": pa.table({"x": [0], "p": ["a"], "z": [1]})})
    con.create_dataset("d", pa.table({"x": [1, 2]}), partition_on=())
    (tmp_path / "target").mkdir()
    with kartosql.connect(tmp_path / "target") as other:
        con.copy_cube("c", other, datasets=["seed"])
        seed_alone = rows_of(other)
        store = rivals.dies_at(Store(str(tmp_path / "target")), at, "after")
        for call in (
            lambda: copy_cube(Snapshot(con.store), "c", Operation(store, "copy_cube"), datasets=["en", "more"]),
            lambda: copy_dataset(Snapshot(con.store), "d", Operation(store, "copy_dataset")),
        ):
            with contextlib.suppress(rivals.Died):
                call()
        assert rows_of(other) in (seed_alone, rows_of(con))
        con.copy_cube("c", other, datasets=["en", "more"], overwrite=True)
        con.copy_dataset("d", other, overwrite=True)
        assert rows_of(other) == rows_of(con)
        assert rows_of(other, "d") == rows_of(con, "d")


def test_statements_copy_datasets(con, target):
    con.create_dataset("d", pa.table({"x": [1]}))
    url = target.store.url
    con.sql(f"COPY CUBE c DATASETS (SEED) TO '{url}'")
    done = con.sql(f"COPY CUBE c DATASETS (en) TO '{url}'").arrow().to_pylist()
    assert [row["dataset"] for row in done] == ["en"]
    assert rows_of(target) == rows_of(con)
    assert con.sql(f"COPY DATASET d TO '{url}'").arrow()["dataset"].to_pylist() == ["d"]
    assert con.sql(f"COPY DATASET D TO '{url}' AS e").arrow()["dataset"].to_pylist() == ["e"]
    assert rows_of(target, "e") == [(1,)]
    for sql, code in {
        "COPY CUBE c DATASETS (nope) TO 'x'": "unknown-dataset",
        "COPY CUBE c DATASETS () TO 'x'": "syntax-error",
        "COPY CUBE c DATASETS (en, EN) TO 'x'": "syntax-error",
        "COPY DATASET nope TO 'x'": "unknown-table",
        "COPY DATASET c TO 'x'": "unknown-table",
        "COPY DATASET d": "syntax-error",
        f"COPY DATASET d TO '{url}'": "dataset-exists",
        f"COPY CUBE c DATASETS (en) TO '{url}'": "dataset-exists",
    }.items():
        with pytest.raises(KartosqlError) as e:
            con.sql(sql)
        assert e.value.code == code, sql


def test_the_statement_copies(con, tmp_path):
    (tmp_path / "sql").mkdir()
    con.sql(f"COPY CUBE c TO '{tmp_path}/sql' AS d")
    with kartosql.connect(tmp_path / "sql") as other:
        assert rows_of(other, "d") == rows_of(con)
