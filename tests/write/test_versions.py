"""Versions of datasets against a model, with other programs, damage and clocks between."""

from __future__ import annotations

import datetime as dt
import functools
import json
import operator
import os
import random
import shutil
import uuid as uuids
from decimal import Decimal
from types import SimpleNamespace

import pyarrow as pa
import pytest
import zstandard

import builders
import kartosql
from kartosql.errors import KartosqlError
from kartosql.formats.kartothek import versions
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from kartosql.write import commit as commits
from kartosql.write import operation
from kartosql.write.change import GRACE, Change
from kartosql.write.check import check
from kartosql.write.commit import commit
from kartosql.write.history import Retention, pack, repack
from kartosql.write.recovery import read_head
from kartosql.write.removal import collect
from write.rivals import adding, in_partition

EXTRA = {"seed": {}, "e": {"w": [3]}}
IGNORED = "ignore::kartosql.errors.KartosqlWarning"


def history(store, uuid="d"):
    return versions.read(Snapshot(store), uuid)


def stands(store, uuid="d"):
    """Return what counts of a dataset as it stands: labels and files in order, schemas and indices."""
    return content(Snapshot(store).dataset(uuid))


def content(dataset):
    document = dataset.document
    return document.labels, dict(document.files), document.partition_keys, dict(document.indices), dict(dataset.schemas)


def at(table, version):
    """Return the query of all of a version."""
    kind = "VERSION" if isinstance(version, int) else "TIMESTAMP"
    return f"SELECT * FROM {table} AT ({kind} => {version!r})"


def beside_the_first_restore(con, monkeypatch, sql):
    """Let a statement commit before the first attempt of RESTORE; return the operations that commit from now on."""
    real, begun = operation.Operation.commit, []

    def late(self, *arguments, **options):
        begun.append(self.name)
        if begun == ["restore"]:
            con.sql(sql)
        return real(self, *arguments, **options)

    monkeypatch.setattr(operation.Operation, "commit", late)
    return begun


def code_of(call, *args):
    with pytest.raises(KartosqlError) as caught:
        call(*args)
    return caught.value.code


@pytest.mark.filterwarnings(IGNORED)
def test_any_version_of_any_history_is_what_it_was():
    store = Store(f"memory://{uuids.uuid4().hex}")
    for seed in range(int(os.environ.get("KARTOSQL_HISTORIES", "20"))):
        rng, uuid = random.Random(seed), f"d{seed}"
        builders.forget_memory_stores()  # each listing goes through all that is in memory
        commit(store, adding(store, uuid, {1: "a", 2: "b"}, "create", create=True))
        model = {history(store, uuid).last: stands(store, uuid)}
        for n in range(25):
            step(rng, store, uuid, n)
            found = history(store, uuid)
            # What other programs write one after the other is one version, until a commit of kartosql meets it.
            assert found.last == max(model) or found.last not in model
            model[found.last] = stands(store, uuid)
            if rng.random() < 0.1:
                repack(store, uuid)
        found = history(store, uuid)
        assert [v.version for v in found.entries] == sorted(model)
        for version in rng.sample(sorted(model), len(model)):
            assert content(found.at(version)) == model[version]


def step(rng, store, uuid, n):
    """Commit something of any kind, by kartosql or as another program does it."""
    kind = rng.choice(["append", "append", "replace", "delete", "in_place", "anew", "foreign", "foreign_removal"])
    head = read_head(store, uuid)
    labels = list(head.document.labels)
    if kind == "foreign":
        builders.append(store, uuid, pa.table({"p": [rng.randrange(3)], "i": [f"f{n}"], "x": [n]}))
    elif kind == "foreign_removal" and labels and not head.is_foreign:
        document = builders.read_document(store, uuid)
        del document["partitions"][rng.choice(labels)]
        document["indices"] = {}
        builders.write_document(store, document)
    elif kind == "delete":
        commit(store, adding(store, uuid, {}, "delete", removed=in_partition(rng.randrange(3))))
    elif kind == "replace":
        part = rng.randrange(3)
        commit(store, adding(store, uuid, {part: f"v{n}"}, "update", removed=in_partition(part)))
    elif kind == "in_place" and labels:
        change = adding(
            store, uuid, {rng.randrange(3): f"c{n}"}, "compact", removed=frozenset([old := rng.choice(labels)])
        )
        commit(store, type(change)(**{**vars(change), "positions": dict.fromkeys(change.added, old)}))
    elif kind == "anew":
        commit(store, adding(store, uuid, {1: f"n{n}"}, "overwrite", replace_all=True), base=head)
    else:
        commit(store, adding(store, uuid, {rng.randrange(3): f"a{n}"}))


def test_what_is_not_there_yet_or_never_was_is_told(local):
    commit(local, adding(local, "d", {1: "a"}, "create", create=True))
    commit(local, adding(local, "d", {2: "b"}))
    found = history(local)
    assert code_of(found.at, 0) == code_of(found.at, 3) == "no-such-version"
    snapshot = Snapshot(local)
    assert code_of(versions.read(snapshot, "d").at, "2000-01-01") == "no-such-version"
    assert code_of(versions.read(snapshot, "d").at, "yesterday") == "invalid-value"
    assert versions.read(snapshot, "d").at("2100-01-01") is snapshot.dataset("d")


def test_a_version_whose_file_is_gone_is_told_and_others_are_read(local):
    commit(local, adding(local, "d", {1: "a", 2: "b"}, "create", create=True))
    before = stands(local)
    commit(local, adding(local, "d", {}, "delete", removed=in_partition(1)))
    commit(local, adding(local, "d", {}, "delete", removed=in_partition(2)))
    assert content(history(local).at(1)) == before
    local.delete([key for key in before[1]["table"] if "p=1/" in key])
    with pytest.raises(KartosqlError, match="another program removed d/table/p=1/") as caught:
        history(local).at(1)
    assert caught.value.code == "version-gone"
    assert len(history(local).document(2).labels) == 1


def test_what_was_before_another_program_wrote_was_not_recorded(local):
    builders.write_dataset(local, "d", {"p": pa.int64(), "i": pa.string(), "x": pa.int64()}, partition_keys=["p"])
    builders.append(local, "d", pa.table({"p": [1], "i": ["f"], "x": [1]}))
    commit(local, adding(local, "d", {2: "b"}))
    with pytest.raises(KartosqlError, match="what was before was written by another program") as caught:
        history(local).at("2001-01-01")
    assert caught.value.code == "version-gone"


def test_an_index_whose_file_is_gone_is_not_used(local):
    commit(local, adding(local, "d", {1: "a"}, "create", create=True))
    (index,) = stands(local)[3].values()
    commit(local, adding(local, "d", {2: "b"}))
    local.delete([index])
    assert history(local).document(1).indices == {}


@pytest.mark.parametrize("number", range(1, 5))
def test_a_commit_without_an_entry_is_a_version_and_hides_no_other(local, number):
    commit(local, adding(local, "d", {1: "v1"}, "create", create=True))
    model = {1: stands(local)}
    for n in range(2, 6):
        commit(local, adding(local, "d", {n % 2: f"v{n}"}, "update", removed=in_partition(n % 2)))
        model[n] = stands(local)
    (key,) = [key for first, _, key in versions.listed(local, "d") if first == number]
    local.delete([key])
    found = history(local)
    assert [v.version for v in found.entries] == [1, 2, 3, 4, 5]
    assert [v.operation for v in found.entries] == ["create"] + ["update"] * 4
    assert {v: content(found.at(v)) for v in model if v >= number} == {v: model[v] for v in model if v >= number}
    if number > 1:
        assert content(found.at(1)) == model[1]
    else:
        with pytest.raises(KartosqlError, match="the first is 1 of"):
            found.at("2001-01-01")


def test_a_head_whose_writer_died_before_its_entry_is_a_version(local):
    commit(local, adding(local, "d", {1: "a"}, "create", create=True))
    before = stands(local)
    commit(local, adding(local, "d", {2: "b"}, "update", removed=in_partition(1)))
    local.delete([versions.listed(local, "d")[-1][2]])
    found = history(local)
    assert [(v.version, v.operation, v.entry) for v in found.entries][1] == (2, "update", None)
    assert content(found.at(1)) == before
    assert content(found.at(2)) == stands(local)


@pytest.mark.parametrize("data", [b"", b"x", None])
def test_a_torn_file_of_the_history_never_blocks_the_present(local, data):
    commit(local, adding(local, "d", {1: "a"}, "create", create=True))
    commit(local, adding(local, "d", {2: "b"}))
    key = versions.listed(local, "d")[0][2]
    local.put(key, local.read(key)[:-9] if data is None else data)
    found = history(local)
    assert content(found.at(2)) == stands(local)
    assert found.document(1).labels is not None  # undone from the present
    told = [(f.check, f.severity, f.key) for f in check(local, ["d"], None, GRACE, full=False)]
    assert ("versions", "warning", key) in told
    commit(local, adding(local, "d", {3: "c"}))
    assert history(local).last == 3


ODD = [
    None,
    -1,
    True,
    1.5,
    10**30,
    "",
    "x",
    "9999-12-31T23:59:59-14:00",
    "0001-01-01",
    "\ud800",
    [],
    {},
    [[]],
    [1],
    [None, None],
]
ODD += [{"a": 1}, {"a": {"table": "../x"}}, {"a": {"table": "d/table/p=1/x.parquet"}}, [["a", {"table": "d/x"}]]]


def places_in(value, *way):
    """Yield the way to each value in a JSON document."""
    for step in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*way, step)
        yield from places_in(value[step], *way, step)


@pytest.mark.filterwarnings(IGNORED)
def test_whatever_an_entry_says_the_present_is_read_and_written_and_the_past_is_there_or_told():
    memory = Store(f"memory://{uuids.uuid4().hex}")
    with kartosql.connect(memory.url) as con:
        con.sql("CREATE DATASET d PARTITION BY (p) INDEX (x) AS SELECT i % 3 AS p, i AS x FROM range(9) r(i)")
        con.sql("DELETE FROM d WHERE p = 0")
        con.sql("ALTER DATASET d ADD COLUMN s VARCHAR")
        builders.append(memory, "d", pa.table({"p": [1], "x": [7], "s": ["f"]}))
        con.sql("INSERT INTO d SELECT 2 AS p, 7 AS x, 'b' AS s")
        rows = con.sql(present := "SELECT * FROM d ORDER BY ALL").rows()
    keys = ["d.by-dataset-metadata.json", *(key for *_, key in versions.listed(memory, "d"))]
    sound = {key: memory.read(key) for key in keys}
    told = set()
    for seed in range(int(os.environ.get("KARTOSQL_HISTORIES", "20"))):
        rng = random.Random(seed)
        memory.delete([key for *_, key in versions.listed(memory, "d")])
        for key, data in sound.items():
            memory.put(key, data)
        made = json.loads(zstandard.decompress(memory.read(key := rng.choice(keys[1:]))))
        *way, last = rng.choice(list(places_in(made)))
        functools.reduce(operator.getitem, way, made)[last] = rng.choice(ODD)
        memory.put(key, zstandard.compress(json.dumps(made).encode()))
        with kartosql.connect(memory.url) as con:
            numbers = [row[0] for row in con.history("d").rows()]
            calls = [(con.sql, at("d", version)) for version in [*numbers, 1, "2030-01-01"]]
            for call, *given in [*calls, (con.sql, present), (con.restore, "d", rng.choice(numbers))]:
                try:
                    found = call(*given).rows() if call == con.sql else None
                    assert given != [present] or found == rows
                except KartosqlError as e:
                    told.add(e.code)
            con.sql("CLEANUP d")
            con.sql("INSERT INTO d SELECT 0 AS p, 1 AS x, 'c' AS s")
            assert con.history("d").rows()[-1][2] == "append_to_dataset"
    assert told <= {"version-gone", "no-such-version", "incompatible-schema", "invalid-schema", "schema-mismatch"}
    assert "version-gone" in told


def test_a_small_file_of_the_history_cannot_fill_the_memory(local):
    for n in range(30):
        commit(local, adding(local, "d", {1: f"v{n}"}, "w", create=n == 0))
    found = versions.read_entries(local, "d")
    assert len(found) == 30
    key = versions.listed(local, "d")[-1][2]
    local.put(
        key, zstandard.compress(json.dumps([json.loads(zstandard.decompress(pack(found[-1:])))[0]] * 9999).encode())
    )
    assert versions.read_file(local, "d", key) == []
    local.put(key, zstandard.compress(b"[" * versions.FREE_BYTES))
    assert versions.read_file(local, "d", key) == []
    assert len(history(local).entries) == 30
    assert content(history(local).at(1))[0] == stands(local)[0][:1]


@pytest.mark.parametrize("sequence", [10**30, -5, True, "7", 1 << 56])
def test_a_number_of_a_commit_that_nobody_gave_blocks_nothing(local, sequence):
    commit(local, adding(local, "d", {1: "a"}, "create", create=True))
    document = builders.read_document(local, "d")
    document["metadata"]["kartosql_commit"]["sequence"] = sequence
    builders.write_document(local, document)
    with kartosql.connect(local.root) as con:
        assert len(con.history("d").rows()) <= 2
    commit(local, adding(local, "d", {2: "b"}))
    assert [v.operation for v in history(local).entries][-2:] == ["foreign", "append"]


@pytest.mark.filterwarnings(IGNORED)
def test_a_name_in_the_history_that_no_commit_gave_hides_none_that_come(local):
    commit(local, adding(local, "d", {1: "a"}, "create", create=True))
    for name in ("1-1-x.json.zst", f"{10**17}-{10**18 - 1}-x.json.zst", f"{10**30}-{10**30}-x.json.zst", "x", "a/b"):
        local.put(f"{versions.FOLDER}/d/{name}", b"x")
    for n in range(3):
        builders.append(local, "d", pa.table({"p": [3], "i": [f"f{n}"], "x": [1]}))
        before = stands(local)
        commit(local, adding(local, "d", {2: f"b{n}"}))
        commit(local, adding(local, "d", {2: f"c{n}"}))
        found = history(local)
        assert [v.operation for v in found.entries][-3:] == ["foreign", "append", "append"]
        assert content(found.at(found.entries[-3].version)) == before


def test_time_follows_the_order_of_commits_where_clocks_run_backwards(local, monkeypatch):
    start = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
    for n, minute in enumerate([10, 5, 20, 15, 30]):
        monkeypatch.setattr("kartosql.write.commit.utc_now", lambda at=minute: start + dt.timedelta(minutes=at))
        commit(local, adding(local, "d", {1: f"v{n}"}, "w", create=n == 0))
    found = history(local)
    assert [(v.time - start).seconds // 60 for v in found.entries] == [10, 10, 20, 20, 30]
    for minute, version in [(10, 2), (19, 2), (20, 4), (29, 4), (30, 5)]:
        assert found.at(f"2026-01-01 00:{minute}") is found.at(version)
    assert code_of(found.at, "2026-01-01 00:09") == "no-such-version"


def test_versions_that_are_not_kept_go_and_others_stay(local, monkeypatch):
    commit(local, adding(local, "d", {1: "v0", 2: "x"}, "create", create=True))
    model = {1: stands(local)}
    for n in range(2, 10):
        commit(local, adding(local, "d", {1: f"v{n}"}, "update", removed=in_partition(1)))
        model[n] = stands(local)
    grace, real = dt.timedelta(hours=1), Store.now
    kept = Retention(3)
    collect(local, ["d"], grace, kept=kept)
    monkeypatch.setattr(Store, "now", lambda self: real(self) + 2 * grace)
    removed = [g.key for g in collect(local, ["d"], grace, kept=kept) if g.removed]
    assert len([key for key in removed if "/table/" in key]) == 5  # those of versions 1 to 5
    found = history(local)
    assert [v.version for v in found.entries] == [6, 7, 8, 9]
    assert {v: content(found.at(v)) for v in (6, 7, 8, 9)} == {v: model[v] for v in (6, 7, 8, 9)}
    assert code_of(found.at, 5) == "version-gone"
    with pytest.raises(KartosqlError, match="see the settings history_versions and history_days") as caught:
        history(local).at("2001-01-01")
    assert caught.value.code == "version-gone"
    assert stands(local) == model[9]
    # What another program does next does not cut off what is kept.
    builders.append(local, "d", pa.table({"p": [3], "i": ["f"], "x": [1]}))
    assert content(history(local).at(8)) == model[8]


def test_the_history_goes_with_the_dataset(local, monkeypatch):
    commit(local, adding(local, "d", {1: "a"}, "create", create=True))
    commit(local, adding(local, "e", {1: "a"}, "create", create=True))
    commit(local, Change("d", "drop", drop=True))
    collect(local, ["d"], dt.timedelta(hours=1))
    assert (versions.listed(local, "d"), len(versions.listed(local, "e"))) == ([], 1)


# -- statements ----------------------------------------------------------------------------------------


@pytest.fixture
def con(tmp_path):
    with kartosql.connect(tmp_path) as made:
        made.sql("CREATE DATASET d PARTITION BY (p) INDEX (x) AS SELECT i % 3 AS p, i AS x FROM range(9) r(i)")
        made.sql("INSERT INTO d SELECT 1 AS p, 100 AS x")
        made.sql("DELETE FROM d WHERE p = 0")
        made.sql("ALTER DATASET d ADD COLUMN s VARCHAR")
        made.sql("INSERT INTO d SELECT 0 AS p, 0 AS x, 'a' AS s")
        yield made


def numbers(con, table="d"):
    return [row[0] for row in con.history(table).rows()]


def test_conditions_on_a_version_read_less_and_give_the_same_rows(con):
    for version in numbers(con):
        everything = con.sql(f"SELECT * FROM d AT (VERSION => {version})").rows()
        names = con.sql(f"SELECT * FROM d AT (VERSION => {version})").columns
        for condition, test in [
            ("x = 4", lambda row: row["x"] == 4),
            ("p = 0", lambda row: row["p"] == 0),
            ("x IN (0, 100)", lambda row: row["x"] in (0, 100)),
            ("p > 0 AND x < 5", lambda row: row["p"] > 0 and row["x"] < 5),
        ]:
            query = con.sql(f"SELECT * FROM d AT (VERSION => {version}) WHERE {condition}")
            wanted = [row for row in everything if test(dict(zip(names, row, strict=True)))]
            assert sorted(query.rows(), key=repr) == sorted(wanted, key=repr)
            assert query.report is not None
            assert query.report.files_selected < query.report.files_total
        assert con.sql(f"SELECT count(*), max(x) FROM d AT (VERSION => {version})").rows() == [
            (len(everything), max(row[names.index("x")] for row in everything))
        ]


def test_a_version_beside_the_present_in_one_statement(con):
    gone = con.sql("SELECT x FROM d AT (VERSION => 2) EXCEPT SELECT x FROM d ORDER BY x").rows()
    assert gone == [(3,), (6,)]
    joined = con.sql("SELECT count(*) FROM d AT (VERSION => 1) a JOIN d b USING (p, x)").rows()
    assert joined == [(7,)]
    con.sql("ATTACH '" + con.store.url + "' AS other (TYPE kartothek)")
    assert con.sql("SELECT count(*) FROM other.d AT (VERSION => 1)").rows() == [(9,)]
    assert con.sql("SHOW HISTORY FROM other.d").rows() == con.sql("SHOW HISTORY FROM d").rows()


@pytest.mark.parametrize(
    ("told", "length"),
    [
        ("now()", {}),
        ("current_timestamp - INTERVAL 3 DAYS", {"days": 3}),
        ("(now() - INTERVAL '2' WEEK) - INTERVAL '30 minutes'", {"weeks": 2, "minutes": 30}),
        ("now() + INTERVAL -90 SECOND", {"seconds": 90}),
    ],
)
def test_a_time_before_now_moves_with_the_clock(con, monkeypatch, told, length):
    rows = con.history("d").arrow().to_pylist() * 2
    asked = rows[0]["time"]

    class Clock(dt.datetime):
        @classmethod
        def now(cls, tz=None):
            return asked + dt.timedelta(**length)

    monkeypatch.setattr("kartosql.tables.names.dt", SimpleNamespace(datetime=Clock, timedelta=dt.timedelta, UTC=dt.UTC))
    for row in rows:
        asked = row["time"]
        for _ in range(5):  # plans of what is asked for often are kept
            seen = con.sql(f"SELECT count(*), sum(x) FROM d AT (TIMESTAMP => {told}) WHERE x > 0").rows()
            assert seen == con.sql(f"SELECT count(*), sum(x) FROM ({at('d', row['version'])}) WHERE x > 0").rows()
    told = con.explain(f"SELECT x FROM d AT (TIMESTAMP => {told})").to_dict()["scans"][0]["at"]
    assert told == f"now() - {dt.timedelta(**length)}"


@pytest.mark.parametrize(
    "told",
    [
        "now() - INTERVAL 1 MONTH",
        "CAST(now() AS DATE)",
        "today()",
        "now(1)",
        "now() - INTERVAL (-1) DAY",
        "random()",
        "x - now()",
    ],
)
def test_other_times_are_refused(con, told):
    assert code_of(con.sql, f"SELECT * FROM d AT (TIMESTAMP => {told})") == "not-supported"


def test_explain_names_the_version_or_the_time_that_is_asked_for(con):
    text = f"{at('d', 2)} UNION ALL {at('d', '2100-01-01')} UNION ALL SELECT * FROM d"
    report = con.explain(text.replace("*", "x"))
    assert [scan["at"] for scan in report.to_dict()["scans"]] == [2, "2100-01-01", None]
    for told in (str(report), report.html()):
        assert "d AT (VERSION =" in told
        assert "d AT (TIMESTAMP =" in told


def test_versions_are_read_and_explained_on_spark_as_on_duckdb(con, spark):
    con.build_cube(kartosql.Cube("c", "x", "p"), {"seed": pa.table({"x": [1], "p": [0]})})
    then = con.history("c").rows()[-1][1].isoformat()
    con.append_to_cube("c", {"seed": pa.table({"x": [2], "p": [0]})})
    for text in (at("d", 2), at("d", 4), at("c", then), at("c.seed", then), f"{at('d', 1)} WHERE x = 4"):
        wanted = sorted(con.sql(text).rows(), key=repr)
        assert sorted(con.sql(text, engine="spark").rows(), key=repr) == wanted
        assert sorted(map(repr, map(tuple, kartosql.spark.sql(spark, con.store.url, text).collect()))) == [
            repr(row) for row in wanted
        ]
        plan = con.explain(text, engine="spark").to_dict()
        assert plan["scans"][0]["datasets"][0]["files"]
    assert code_of(lambda: con.sql(at("d", 99), engine="spark").rows()) == "no-such-version"


def now_and_then(con, version):
    """Return the files of a dataset as it is, and as it was."""
    found = history(con.store)
    return [{*found.at(v).tables["table"].files} for v in (found.last, version)]


@pytest.mark.parametrize("text", ["FROM d AT (VERSION => 2)", "FROM a.d AT (VERSION => 2)", "FROM changes('d', 2)"])
def test_a_version_that_a_cleanup_takes_from_a_statement_is_gone(con, text):
    con.attach(con.store.url, "a", type="kartothek")
    query = con.sql(text)
    now, then = now_and_then(con, 2)
    con.store.delete(sorted(then - now))
    for statement in (query, con.sql(text)):
        with pytest.raises(KartosqlError, match=r"'d': there is no version 2: .*'d/table/p=0/\w+.parquet'") as caught:
            statement.rows()
        assert caught.value.code == "version-gone"


def test_a_version_of_which_a_cleanup_takes_an_index_from_a_statement_is_gone(con):
    found = history(con.store)
    then = found.at(2)
    key = then.tables["table"].indices["x"].key
    assert key not in [index.key for index in found.at(found.last).tables["table"].indices.values()]
    con.sql("SELECT * FROM d AT (VERSION => 2)").rows()  # which knows the version from here on
    con.store.delete([key])
    assert code_of(lambda: con.sql("SELECT * FROM d AT (VERSION => 2) WHERE x = 4").rows()) == "version-gone"


def test_a_file_that_is_missing_now_is_no_version_that_is_gone(con):
    now, then = now_and_then(con, 2)
    con.store.delete(sorted(now - then))
    assert code_of(con.sql("FROM d, d AT (VERSION => 2) b").rows) == "missing-file"


def test_show_history_tells_what_each_commit_did(con):
    found = con.sql("SHOW HISTORY FROM d").arrow().to_pylist()
    assert [(f["operation"], f["rows"], f["files_added"], f["files_removed"]) for f in found] == [
        ("create_dataset", 9, 3, 0),
        ("append_to_dataset", 1, 1, 0),
        ("delete_from_dataset", None, 0, 1),
        ("add_column", None, 0, 0),
        ("append_to_dataset", 1, 1, 0),
    ]
    assert found == con.history("d").arrow().to_pylist()
    con.register("r", pa.table({"a": [1]}))
    for text in ("SHOW HISTORY FROM r", "SELECT * FROM r AT (VERSION => 1)"):
        assert code_of(con.sql, text) == "no-versions"


def test_restore_makes_a_dataset_what_it_was_and_the_past_stays(con):
    then = {v: sorted(con.sql(f"SELECT p, x FROM d AT (VERSION => {v})").rows()) for v in numbers(con)}
    for version in [1, 3, 2, *reversed(then)]:
        con.sql(f"RESTORE d TO VERSION {version}")
        assert sorted(con.sql("SELECT p, x FROM d").rows()) == then[version]
        for x in (0, 4, 100):
            assert con.sql(f"SELECT x FROM d WHERE x = {x}").rows() == [(x,)] * (x in [r[1] for r in then[version]])
        assert con.check("d", full=True) == []
    for version, rows in then.items():
        assert sorted(con.sql(f"SELECT p, x FROM d AT (VERSION => {version})").rows()) == rows
    time = con.history("d").rows()[1][1].isoformat()
    con.sql(f"RESTORE d TO TIMESTAMP '{time}'")
    assert sorted(con.sql("SELECT p, x FROM d").rows()) == then[2]
    assert con.restore("d", time)["sequence"] is None  # it is that already
    con.create_dataset("d", pa.table({"other": [1]}), overwrite=True)
    assert code_of(con.restore, "d", 1) == "incompatible-schema"


@pytest.mark.parametrize("text", ["DELETE FROM r WHERE p = 0", "INSERT INTO r VALUES (2, 9)"])
def test_restore_begins_again_if_others_commit_meanwhile(con, monkeypatch, text):
    con.create_dataset("r", pa.table({"p": [0, 1], "v": [1, 2]}), partition_on=["p"])
    con.sql("INSERT INTO r VALUES (1, 3)")
    begun = beside_the_first_restore(con, monkeypatch, text)
    con.restore("r", 1)
    assert begun.count("restore") == 2
    assert sorted(con.sql("SELECT p, v FROM r").rows()) == [(0, 1), (1, 2)]
    assert len(con.sql("SHOW HISTORY FROM r").rows()) == 4


@pytest.mark.parametrize(("other", "sequence"), [(1, None), (2, 5)])
def test_a_restore_is_not_taken_for_another_one_that_brings_back_the_same_files(con, monkeypatch, other, sequence):
    con.create_dataset("r", pa.table({"p": [0, 1], "v": [1, 2]}), partition_on=["p"])
    con.sql("INSERT INTO r VALUES (2, 3)")
    con.sql("DELETE FROM r WHERE p < 2")
    real, rivals = commits.swap, [other]

    def late(*arguments):
        if rivals:
            con.restore("r", rivals.pop())
        return real(*arguments)

    monkeypatch.setattr(commits, "swap", late)
    assert con.restore("r", 1)["sequence"] == sequence
    assert sorted(con.sql("SELECT p, v FROM r").rows()) == [(0, 1), (1, 2)]
    assert [row[0] for row in con.history("r").rows()] == [1, 2, 3, 4, 5][: sequence or 4]


def test_restore_that_others_are_always_faster_than_ends_with_their_commit(con, monkeypatch):
    con.create_dataset("r", pa.table({"p": [0, 1], "v": [1, 2]}), partition_on=["p"])
    con.sql("INSERT INTO r VALUES (1, 3)")
    real = operation.Operation.commit

    def late(self, *arguments, **options):
        if self.name == "restore":
            con.sql("INSERT INTO r VALUES (2, 9)")
        return real(self, *arguments, **options)

    monkeypatch.setattr(operation.Operation, "commit", late)
    with pytest.raises(KartosqlError) as caught:
        con.restore("r", 1)
    assert caught.value.code == "concurrent-commit"
    assert con.sql("SELECT count(*) FROM r").rows() == [(3 + operation.ATTEMPTS,)]


def test_restore_takes_files_from_before_columns_were_added_and_decimals_widened(con):
    narrow, wide = pa.array([100], pa.decimal128(5, 2)), pa.array([123456], pa.decimal128(12, 4))
    con.create_dataset("n", pa.table({"p": [1], "m": narrow, "i": [7]}), partition_on="p", index_columns="i")
    con.append_to_dataset("n", pa.table({"p": [1], "m": wide, "more": ["x"]}), evolve=True)
    con.sql("RESTORE n TO VERSION 1")
    assert con.sql("SELECT p, m, i, more FROM n WHERE i = 7").rows() == [(1, Decimal("100.0000"), 7, None)]
    con.append_to_dataset("n", pa.table({"p": [1], "m": wide, "i": [8], "more": ["y"]}))
    assert con.sql("SELECT i FROM n ORDER BY m").rows() == [(7,), (8,)]
    assert con.check("n", full=True) == []


def test_a_cube_goes_back_to_any_time_at_once(tmp_path):
    with kartosql.connect(tmp_path) as con:
        con.build_cube(kartosql.Cube("c", "x", "p"), {"seed": pa.table({"x": [1, 2], "p": [0, 1]})})
        con.extend_cube("c", {"e": pa.table({"x": [1], "p": [0], "w": [1]})})
        for act in (
            lambda: con.append_to_cube("c", {n: pa.table({"x": [3], "p": [0], **w}) for n, w in EXTRA.items()}),
            lambda: con.sql("UPDATE c SET w = 9 WHERE x = 1"),
            lambda: con.remove_partitions("c", "p == 0"),
            lambda: con.append_to_cube("c", {"e": pa.table({"x": [2], "p": [1], "w": [5]})}),
        ):
            act()
        times = sorted({row["time"].isoformat() for row in con.history("c").arrow().to_pylist()})
        then = {time: sorted(con.sql(at("c", time)).rows(), key=repr) for time in times}
        shown = {time: con.sql(at("c", time)).columns for time in times}
        for time in random.Random(3).choices(times, k=12):
            before = len(con.history("c").rows())
            was, done = sorted(con.sql("FROM c").rows(), key=repr), con.restore("c", time)
            assert set(done) == {"seed", "e"}
            # Columns that came later stay, and are NULL then.
            names = ", ".join(shown[time])
            assert sorted(con.sql(f"SELECT {names} FROM c").rows(), key=repr) == then[time]
            made = any(one["sequence"] for one in done.values())
            assert len(con.history("c").rows()) == before + 2 * made
            assert made or sorted(con.sql("FROM c").rows(), key=repr) == was
            assert len({one["id"] for one in done.values()}) == 1
        assert con.check("c", full=True) == []
        assert con.sql(f"RESTORE c TO TIMESTAMP '{times[-1]}'").columns == con.sql("RESTORE c.e TO VERSION 1").columns
        assert code_of(con.sql, "RESTORE c TO VERSION 1") == "no-versions"
        assert code_of(con.restore, "c", "2000-01-01") == "no-such-version"


@pytest.mark.parametrize("more", [0, 1])
def test_what_is_new_is_known_as_new_without_an_entry(tmp_path, more):
    with kartosql.connect(tmp_path) as con:
        con.build_cube(kartosql.Cube("c", "x", "p"), {"seed": pa.table({"x": [1, 2], "p": [0, 1]})})
        time = con.history("c").arrow()["time"][0].as_py().isoformat()
        con.extend_cube("c", {"e": pa.table({"x": [1], "p": [0], "w": [1]})})
        for n in range(more):
            con.append_to_cube("c", {"e": pa.table({"x": [2], "p": [1], "w": [n]})})
        shutil.rmtree(tmp_path / ".kartosql" / "history" / "c++e")
        if more:  # nobody knows what the dataset was before
            assert code_of(con.sql, at("c", time)) == code_of(con.restore, "c", time) == "version-gone"
        else:
            assert sorted(con.sql(at("c", time)).rows()) == [(0, 1), (1, 2)]
            assert code_of(con.sql, f"SELECT * FROM c.e AT (TIMESTAMP => '{time}')") == "no-such-version"
            assert con.restore("c", time)["e"]["removed"] == 1


@pytest.mark.parametrize("late", ["INSERT INTO c.e VALUES (1, 2, 7)", "DELETE FROM c.seed WHERE p = 1"])
def test_a_cube_that_others_change_while_it_goes_back_is_as_it_was(tmp_path, monkeypatch, late):
    with kartosql.connect(tmp_path) as con:
        con.build_cube(
            kartosql.Cube("c", "x", "p"),
            {"seed": pa.table({"x": [1, 2], "p": [0, 1]}), "e": pa.table({"x": [1], "p": [0], "w": [1]})},
        )
        time = max(row["time"] for row in con.history("c").arrow().to_pylist()).isoformat()
        con.append_to_cube("c", {"seed": pa.table({"x": [3], "p": [0]})})
        begun = beside_the_first_restore(con, monkeypatch, late)
        con.restore("c", time)
        assert begun.count("restore") == 2
        assert sorted(con.sql("SELECT p, x, w FROM c").rows()) == [(0, 1, 1), (1, 2, None)]


def test_restore_takes_up_files_that_a_cleanup_has_marked(con, monkeypatch):
    con.sql("SET history_versions = 0")
    con.sql("CLEANUP d")
    con.sql("RESTORE d TO VERSION 1")
    real = Store.now
    monkeypatch.setattr(Store, "now", lambda self: real(self) + dt.timedelta(days=8))
    con.sql("CLEANUP d")
    assert con.sql("SELECT count(*), sum(x) FROM d").rows() == [(9, 36)]


def test_a_cube_is_read_as_it_was_at_a_time(tmp_path):
    with kartosql.connect(tmp_path) as con:
        made = {"seed": pa.table({"x": [1], "p": [0]}), "e": pa.table({"x": [1], "p": [0], "w": [1]})}
        con.build_cube(kartosql.Cube("c", "x", "p"), made)
        for n in (2, 3):
            made = {"seed": pa.table({"x": [n], "p": [0]}), "e": pa.table({"x": [n], "p": [0], "w": [n]})}
            con.append_to_cube("c", made)
        con.append_to_cube("c", {"e": pa.table({"x": [1], "p": [0], "w": [9]})})
        rows = con.history("c").arrow().to_pylist()
        times = sorted({row["time"] for row in rows})
        seen = [con.sql(f"SELECT x, w FROM c AT (TIMESTAMP => '{t.isoformat()}')").rows() for t in times[1:]]
        # Each change of several datasets is in both or in none, whatever lies between their times.
        whole = [[(1, 1)], [(1, 1), (2, 2)], [(1, 1), (2, 2), (3, 3)], [(1, 9), (2, 2), (3, 3)]]
        assert all(sorted(one) in whole for one in seen)
        assert sorted(seen[-1]) == whole[-1]
        assert code_of(con.sql, "SELECT * FROM c AT (VERSION => 1)") == "no-versions"
        assert code_of(con.sql, at("c", "2001-01-01")) == "no-such-version"
        con.sql("ATTACH '" + con.store.url + "' AS other (TYPE kartothek)")
        assert sorted(con.sql(at("other.c", times[-1].isoformat())).rows()) == sorted(con.sql("SELECT * FROM c").rows())
        assert con.sql("SHOW HISTORY FROM other.c").rows() == con.sql("SHOW HISTORY FROM c").rows()
        last = [row["version"] for row in rows if row["dataset"] == "e"]
        assert sorted(con.sql(f"SELECT x, w FROM c.e AT (VERSION => {last[-2]})").rows()) == whole[2]
        con.restore("c.e", last[-2])
        assert sorted(con.sql("SELECT x, w FROM c").rows()) == whole[2]


def test_a_cube_at_a_time_of_which_a_dataset_is_not_kept_any_more_is_gone_and_one_that_came_later_is_left_out(tmp_path):
    with kartosql.connect(tmp_path) as con:
        made = {"seed": pa.table({"x": [1], "p": [0]}), "e": pa.table({"x": [1], "p": [0], "w": [1]})}
        con.build_cube(kartosql.Cube("c", "x", "p"), made)
        then = max(row[2] for row in con.history("c").rows()).isoformat()
        con.extend_cube("c", {"late": pa.table({"x": [1], "p": [0], "z": [1]})})
        assert con.sql(at("c", then)).columns == ["p", "w", "x"]
        for n in range(3):
            con.append_to_cube("c", {"e": pa.table({"x": [2], "p": [0], "w": [n]})})
        keys = [key for *_, key in versions.listed(con.store, "c++e")]
        con.store.delete(keys[:2])
        # The dataset was there, so an answer without its columns would be wrong.
        assert code_of(con.sql, at("c", then)) == "version-gone"
        assert con.sql(at("c.seed", then)).rows() == [(0, 1)]
        assert code_of(con.sql, at("c", "2001-01-01")) == "version-gone"


@pytest.mark.parametrize(
    "text", ["RESTORE d", "RESTORE d TO", "RESTORE d TO VERSION 'x'", "RESTORE d TO TIMESTAMP 7", "RESTORE d TO 7"]
)
def test_a_statement_that_is_wrong_says_what_was_expected(con, text):
    assert code_of(con.sql, text) == "syntax-error"
