"""ODF datasets as tables: state, log, schemas, times, hashes."""

from __future__ import annotations

import datetime as dt
import os
import random
import shutil
import uuid
from collections import Counter
from decimal import Decimal
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
from odf_folder import SECOND, Dataset, state

import golden
import kartosql
from kartosql.errors import KartosqlError
from kartosql.sources import odf
from odf_data import TIME

UTC = dt.timezone.utc


@pytest.fixture
def con(tmp_path: Path):
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        yield con


def failure(con, sql: str) -> KartosqlError:
    with pytest.raises(KartosqlError) as e:
        con.sql(sql).rows()
    return e.value


def moment(nanoseconds: int) -> str:
    return str(dt.datetime.fromtimestamp(nanoseconds // SECOND, UTC))


def test_states_and_logs_of_golden_datasets(con):
    asked = 0
    for entry in golden.entries("odf/manifest.json", "datasets"):
        con.sql(f"ATTACH OR REPLACE '{golden.find('odf/' + entry['folder'])}' AS t (TYPE odf)")
        query = entry["expect"].get("query")
        if query is not None:
            asked += 1
            assert [list(r) for r in con.sql(query["state_sql"]).rows()] == query["state"]
            assert con.sql('SELECT count(*) FROM "t$log"').rows() == [(query["log_rows"],)]
    assert asked >= 3


def test_broken_golden_datasets_are_refused_with_fault_and_block(con):
    entries = golden.entries("odf/manifest.json", "broken")
    for entry in entries:
        error = failure(con, f"ATTACH '{golden.find('odf/' + entry['folder'])}' AS b (TYPE odf)")
        assert error.code.startswith("odf-"), entry
        assert entry["error"].split(":")[0] in error.message
        assert "block" in error.message
    assert len(entries) >= 5
    assert con.sql("SHOW ATTACHED").rows() == []


def test_the_vocabulary_names_the_columns(con, tmp_path):
    data = Dataset(tmp_path / "d", {"offset": "o", "op": "what", "system": "st", "event": "et"}, ["k"])
    data.schema(k=pa.int64(), offset=pa.string())
    types = {"k": pa.int64(), "offset": pa.string()}
    data.append([0, 0], types, [{"k": 1, "offset": "a"}, {"k": 2, "offset": "b"}])
    data.append([1], types, [{"k": 1, "offset": "a"}])
    con.attach(tmp_path / "d", "t", type="odf")
    assert con.sql("FROM t").columns == ["et", "k", "offset"]
    assert con.sql('SELECT k, "offset" FROM t').rows() == [(2, "b")]
    assert con.sql('FROM "t$log"').columns == ["o", "what", "st", "et", "k", "offset"]
    assert con.sql("SELECT o, what, k FROM t$log ORDER BY o").rows() == [(0, 0, 1), (1, 0, 2), (2, 1, 1)]


def test_files_of_several_schemas_are_read_as_one(con, tmp_path):
    data = Dataset(tmp_path / "d", key=["k"])
    item = pa.struct([("x", pa.int32())])
    data.schema(k=pa.int64(), n=pa.int32(), s=item, m=pa.list_(item), d=pa.decimal128(5, 2), z=pa.null())
    first = {"k": pa.int64(), "n": pa.int32(), "s": item, "m": pa.list_(item), "d": pa.decimal128(5, 2)}
    data.append([0], first, [{"k": 1, "n": 7, "s": {"x": 1}, "m": [{"x": 2}], "d": Decimal("1.25")}])
    wide = pa.struct([("x", pa.int64()), ("y", pa.string())])
    data.schema(k=pa.int64(), n=pa.int64(), s=wide, m=pa.list_(wide), d=pa.decimal128(9, 3), z=pa.string())
    second = {"k": pa.int64(), "n": pa.int64(), "s": wide, "m": pa.list_(wide), "d": pa.decimal128(9, 3)}
    second |= {"z": pa.string()}
    row = {"k": 2, "n": 2**40, "s": {"x": 2**40, "y": "q"}, "m": [], "d": Decimal("1234.125"), "z": "zet"}
    data.append([0], second, [row])
    con.attach(tmp_path / "d", "t", type="odf")
    rows = con.sql("SELECT k, n, s, m, d, z FROM t ORDER BY k").rows()
    assert rows[0] == (1, 7, {"x": 1, "y": None}, [{"x": 2, "y": None}], Decimal("1.250"), None)
    assert rows[1] == tuple(row[c] for c in "knsmdz")
    before = con.sql(f"SELECT * FROM t AT (TIMESTAMP => '{moment(data.now - SECOND)}')")
    assert before.columns == ["event_time", "k", "n", "s", "m", "d", "z"]
    assert str(con.sql(f"SELECT n FROM t AS OF '{moment(TIME + 3 * SECOND)}'").schema.field(0).type) == "int32"


def test_types_that_no_type_holds_are_refused(con, tmp_path):
    data = Dataset(tmp_path / "d")
    data.schema(n=pa.int64())
    data.append([0], {"n": pa.int64()}, [{"n": 1}])
    data.schema(n=pa.string())
    file = data.append([0], {"n": pa.string()}, [{"n": "x"}])
    error = failure(con, f"ATTACH '{tmp_path}/d' AS t (TYPE odf)")
    assert error.code == "schema-conflict"
    for part in ("'n'", "BIGINT", "VARCHAR", file):
        assert part in error.message
    con.sql(f"ATTACH '{tmp_path}/d' AS t (TYPE odf, AS_OF '{moment(data.now - 2 * SECOND)}')")
    assert con.sql("SELECT n FROM t").rows() == [(1,)]


def test_a_dataset_is_read_as_it_was(con, tmp_path):
    data = Dataset(tmp_path / "d", key=["k"])
    data.schema(k=pa.int64(), v=pa.string())
    types = {"k": pa.int64(), "v": pa.string()}
    times = []
    for ops, rows in [([0], [(1, "a")]), ([2, 3], [(1, "a"), (1, "b")]), ([1], [(1, "b")]), ([0], [(1, "c")])]:
        data.append(ops, types, [{"k": k, "v": v} for k, v in rows])
        times.append(moment(data.now))
    con.sql(f"ATTACH '{tmp_path}/d' AS t (TYPE odf)")
    seen = [con.sql(f"SELECT v FROM t AT (TIMESTAMP => TIMESTAMP '{at[:19]}')").rows() for at in times]
    assert seen == [[("a",)], [("b",)], [], [("c",)]]
    both = f"SELECT a.v, b.v FROM t a AT (TIMESTAMP => '{times[0]}') JOIN t b USING (k)"
    assert con.sql(both).rows() == [("a", "c")]
    assert con.sql(f"SELECT count(*) FROM t$log AS OF '{times[1]}'").rows() == [(3,)]
    assert con.sql(f"SELECT t.v FROM t FOR SYSTEM_TIME AS OF TIMESTAMP '{times[1]}'").rows() == [("b",)]
    for text, code in [
        ("t AS OF '1999-01-01'", "no-such-version"),
        ("t AS OF 'yesterday'", "invalid-value"),
        ("t AT (VERSION => 3)", "invalid-value"),
        ("t AT (VERSION => k)", "not-supported"),
        ("t AT (TIMESTAMP => now() - INTERVAL 9999999 DAYS)", "invalid-value"),
        ("t AT (TIMESTAMP => now() - INTERVAL 1 MONTH)", "not-supported"),
    ]:
        assert failure(con, f"SELECT * FROM {text}").code == code
    con.register("r", pa.table({"a": [1]}))
    assert failure(con, "SELECT * FROM r AS OF '2020-01-01'").code == "no-versions"


def test_a_new_head_is_seen_and_one_statement_sees_one(con, tmp_path):
    data = Dataset(tmp_path / "d")
    data.schema(n=pa.int64())
    con.attach(tmp_path / "d", "t", type="odf")
    assert con.sql("SELECT n FROM t").rows() == []
    for n in range(3):
        data.append([0], {"n": pa.int64()}, [{"n": n}])
        sql = "SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM t$log)"
        assert [con.sql(sql).rows() for _ in range(6)][-1] == [(n + 1, n + 1)]


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_states_follow_from_records_whatever_is_pruned(con, tmp_path, monkeypatch, keyed, seed):
    monkeypatch.setattr("kartosql.indexes.index.MIN_FOR_STATISTICS", 1)
    chance = random.Random(f"{keyed} {seed}")
    key = ["k", "s"] if keyed else None
    data = Dataset(tmp_path / "d", key=key)
    types = {"k": pa.int64(), "s": pa.string(), "v": pa.int64()}
    data.schema(**types)
    alive: list[dict] = []
    for _ in range(12):
        ops, rows = [], []
        low = chance.randint(0, 8)
        for _ in range(chance.randint(1, 5)):
            kind = chance.choice([0, 0, 1, 2])
            if kind == 0 or not alive:
                row = {
                    "k": chance.choice([None, low, low + 1]),
                    "s": chance.choice(["a", None]),
                    "v": chance.randint(0, 3),
                }
                ops.append(0)
                rows.append(row)
                alive.append(row)
                continue
            old = alive.pop(chance.randrange(len(alive)))
            ops.append(kind)
            rows.append(old)
            if kind == 2:
                new = {**old, "v": chance.randint(0, 3)}
                ops.append(3)
                rows.append(new)
                alive.append(new)
        data.append(ops, types, rows)
    con.attach(tmp_path / "d", "t", type="odf")
    holds = state(data.records, key)
    pruned = 0
    conditions = {
        "true": lambda r: True,
        "k = 3": lambda r: r.get("k") == 3,
        "k > 6": lambda r: r.get("k", -1) > 6,
        "k IS NULL": lambda r: "k" not in r,
        "k <= 2 AND s = 'a'": lambda r: r.get("k", 9) <= 2 and r.get("s") == "a",
        "v = 2": lambda r: r.get("v") == 2,
        "v > 2 OR k < 3": lambda r: r.get("v", 0) > 2 or r.get("k", 9) < 3,
    }
    for text, test in conditions.items():
        wanted = Counter({row: n for row, n in holds.items() if test(dict(eval(row)))})
        for _ in range(4):  # statistics are read once they were asked for repeatedly
            query = con.sql(f"SELECT k, s, v FROM t WHERE {text}")
            names = ("k", "s", "v")
            got = Counter(
                repr(sorted((n, v) for n, v in zip(names, r, strict=True) if v is not None)) for r in query.rows()
            )
            assert got == wanted, (text, str(query.report))
            assert con.sql(f"SELECT count(*) FROM t WHERE {text}").rows() == [(wanted.total(),)]
        pruned += query.report.files_selected < query.report.files_total
    assert pruned


def test_a_later_record_counts_though_a_condition_does_not_hold_for_it(con, tmp_path, monkeypatch):
    monkeypatch.setattr("kartosql.indexes.index.MIN_FOR_STATISTICS", 1)
    data = Dataset(tmp_path / "d", key=["k"])
    types = {"k": pa.int64(), "v": pa.int64()}
    data.schema(**types)
    for k, v in [(1, 2), (1, 3), (2, 5)]:
        data.append([0], types, [{"k": k, "v": v}])
    con.attach(tmp_path / "d", "t", type="odf")
    for _ in range(5):  # statistics are read once they were asked for repeatedly
        assert con.sql("SELECT k FROM t WHERE v = 2").rows() == []
        assert con.sql("SELECT k FROM t$log WHERE v = 2").rows() == [(1,)]
        query = con.sql("SELECT v FROM t WHERE k = 1")
        assert query.rows() == [(3,)]
    assert query.report.files_selected == 2


def test_equal_rows_count_as_often_as_they_were_added(con, tmp_path):
    data = Dataset(tmp_path / "d")
    types = {"s": pa.string(), "l": pa.list_(pa.int64())}
    data.schema(**types)
    row = {"s": "A", "l": [1, None]}
    data.append([0, 0, 0, 1, 0], types, [row, row, {**row, "s": "a"}, row, {**row, "event": 5}])
    con.attach(tmp_path / "d", "t", type="odf")
    assert con.sql("SELECT s, l FROM t ORDER BY s").rows() == [("A", [1, None])] * 2 + [("a", [1, None])]
    assert con.sql("SELECT count(*) FROM t").rows() == [(3,)]
    with kartosql.connect(tmp_path / "store", default_collation="nocase") as other:
        other.attach(tmp_path / "d", "t", type="odf")
        assert sorted(other.sql("SELECT s FROM t").rows()) == [("A",), ("A",), ("a",)]


def test_files_without_operations_only_add(con, tmp_path):
    for name, key in (("keyed", ["n"]), ("plain", None)):
        data = Dataset(tmp_path / name, key=key)
        data.schema(n=pa.int64())
        data.append([0, 0], {"n": pa.int64()}, [{"n": 1}, {"n": 2}], without="op")
        data.append([1], {"n": pa.int64()}, [{"n": 1}])
        con.attach(tmp_path / name, name, type="odf")
        assert con.sql(f"SELECT n FROM {name}").rows() == [(2,)]


def test_records_about_keys_need_offsets(con, tmp_path):
    for name, key in (("keyed", ["n"]), ("plain", None)):
        data = Dataset(tmp_path / name, key=key)
        data.schema(n=pa.int64())
        data.append([0, 1], {"n": pa.int64()}, [{"n": 1}, {"n": 1}], without="offset")
    con.attach(tmp_path / "plain", "plain", type="odf")
    assert con.sql("SELECT n FROM plain").rows() == []
    with pytest.raises(KartosqlError, match="has no column 'offset'") as caught:
        con.attach(tmp_path / "keyed", "keyed", type="odf")
    assert caught.value.code == "schema-conflict"


def test_operations_that_do_not_exist_are_errors(con, tmp_path):
    data = Dataset(tmp_path / "d", key=["n"])
    data.schema(n=pa.int64())
    data.append([7], {"n": pa.int64()}, [{"n": 1}])
    con.attach(tmp_path / "d", "t", type="odf")
    error = failure(con, "SELECT n FROM t")
    assert (error.code, "operation 7" in error.message) == ("invalid-value", True)
    assert con.sql("SELECT op FROM t$log").rows() == [(7,)]


def test_verify_tells_what_every_hash_tells(con, tmp_path):
    data = Dataset(tmp_path / "d")
    types = {"n": pa.int64(), "m": pa.map_(pa.string(), pa.int64())}
    data.schema(**types)
    good = data.append([0], {"n": pa.int64()}, [{"n": 1}])
    bad = data.append([0], {"n": pa.int64()}, [{"n": 2}])
    gone = data.append([0], {"n": pa.int64()}, [{"n": 3}])
    con.sql(f"ATTACH '{tmp_path}/d' AS t (TYPE odf, CHECK_HASHES false)")
    assert {r[4] for r in con.sql("VERIFY t").rows()} == {"ok"}
    stored = tmp_path / "d" / "data"
    shutil.copy(stored / good, stored / bad)
    os.remove(stored / gone)
    rows = {(name, check): result for _, _, name, check, result, _ in con.sql('VERIFY "t$log"').rows()}
    assert rows[f"data/{good}", "logical hash"] == "ok"
    assert [rows[f"data/{bad}", f"{c} hash"] for c in ("physical", "logical")] == ["mismatch", "mismatch"]
    assert [rows[f"data/{gone}", f"{c} hash"] for c in ("physical", "logical")] == ["missing", "not checkable"]
    con.register("r", pa.table({"a": [1]}))
    assert failure(con, "VERIFY r").code == "not-supported"
    assert failure(con, "VERIFY nothing").code == "unknown-table"


def test_data_are_checked_before_they_are_read(con, tmp_path, monkeypatch):
    monkeypatch.setattr(odf, "EAGER_BYTES", 0)
    data = Dataset(tmp_path / "d")
    data.schema(n=pa.int64())
    files = [data.append([0], {"n": pa.int64()}, [{"n": n}]) for n in (1, 2)]
    stored = tmp_path / "d" / "data"
    con.attach(tmp_path / "d", "t", type="odf")
    shutil.copy(stored / files[0], stored / files[1])
    error = failure(con, "SELECT n FROM t")
    assert error.code == "odf-hash-mismatch"
    assert files[1] in error.message
    os.remove(stored / files[1])
    assert failure(con, "SELECT n FROM t").code == "missing-file"
    assert failure(con, f"ATTACH '{tmp_path}/d' AS u (TYPE odf)").code == "missing-file"


def test_remote_datasets_are_read_by_hash_without_a_listing(con, tmp_path):
    data = Dataset(tmp_path / "d", key=["n"])
    data.schema(n=pa.int64())
    data.append([0, 0, 1], {"n": pa.int64()}, [{"n": 1}, {"n": 2}, {"n": 1}])
    files, root = fsspec.filesystem("memory"), f"/{uuid.uuid4().hex}"
    files.put(str(tmp_path / "d") + "/", root + "/", recursive=True)
    con.sql(f"ATTACH 'memory:/{root}' AS t (TYPE odf)")
    assert con.sql("SELECT n FROM t").rows() == [(2,)]
    assert {r[4] for r in con.sql("VERIFY t").rows()} == {"ok"}


def test_it_joins_a_cube_and_is_explained(con, tmp_path):
    data = Dataset(tmp_path / "d", key=["n"])
    data.schema(n=pa.int64())
    data.append([0, 0], {"n": pa.int64()}, [{"n": 1}, {"n": 2}])
    con.create_dataset("other", pa.table({"n": [2, 3]}))
    con.attach(tmp_path / "d", "t", type="odf")
    sql = "SELECT n FROM t JOIN other USING (n)"
    assert con.sql(sql).rows() == [(2,)]
    scans = con.explain(sql).to_dict()["scans"]
    assert [(s["table"], s["cube"], s["datasets"][0]["files_total"]) for s in scans] == [
        ("t", None, 1),
        ("other", None, 1),
    ]
    assert con.sql("SHOW TABLES").rows() == [
        ("other", "dataset"),
        ("t", "ODF dataset"),
        ('"t$log"', "log of an ODF dataset"),
    ]
    assert failure(con, "INSERT INTO t SELECT 1").code == "unknown-table"


@pytest.mark.parametrize("head", [b"", b"\xff\xfe", b"f1620", b"../../etc/passwd", b"f1620" + b"0" * 64, b"x" * 10_000])
def test_heads_that_name_no_block_are_refused(con, tmp_path, head):
    Dataset(tmp_path / "d")
    (tmp_path / "d" / "refs" / "head").write_bytes(head)
    assert failure(con, f"ATTACH '{tmp_path}/d' AS t (TYPE odf)").code.startswith("odf-")


def test_a_folder_that_is_no_dataset_is_refused(con, tmp_path):
    assert failure(con, f"ATTACH '{tmp_path}/store' AS t (TYPE odf)").code == "odf-no-dataset"
    assert failure(con, f"ATTACH '{tmp_path}/none' AS t (TYPE odf)").code == "store-not-found"
