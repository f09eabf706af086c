"""SHOW SCHEMA HISTORY, DESCRIBE of versions and times, RECORD SCHEMA, EXPORT."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import builders
import golden
import kartosql
from kartosql.errors import KartosqlError, KartosqlWarning
from kartosql.formats.kartothek.cube import Cube
from kartosql.formats.kartothek.metadata import HISTORY
from kartosql.formats.odf import hashes
from kartosql.formats.odf.blocks import Block
from kartosql.formats.odf.chain import check_data, read_chain
from kartosql.formats.odf.logical import logical_hash_of
from kartosql.formats.odf.manifest import parse_text
from kartosql.store import Store
from kartosql.text.types import in_sql_names
from odf_data import reader_of


@pytest.fixture
def con(tmp_path: Path) -> Any:
    """A dataset d whose column b got a type, and a cube c."""
    con = kartosql.connect(tmp_path)
    con.create_dataset("d", pa.table({"a": [1, 2], "b": pa.nulls(2), "p": ["x", "y"]}), partition_on="p")
    con.append_to_dataset("d", pa.table({"a": [3], "b": [1.5], "p": ["x"]}))
    cube = Cube("c", ["x"], ["p"])
    con.build_cube(cube, {"seed": pa.table({"x": [1], "p": [1]}), "e": pa.table({"x": [1], "p": [1], "w": ["w"]})})
    return con


def rows(con: Any, sql: str) -> list[dict[str, Any]]:
    return list(con.sql(sql).arrow().to_pylist())


def failure(con: Any, sql: str) -> KartosqlError:
    with pytest.raises(KartosqlError) as caught:
        con.sql(sql).rows()
    return caught.value


def test_show_lists_versions_with_their_blocks_and_changes(con):
    one, two = rows(con, "SHOW SCHEMA HISTORY FROM d")
    assert list(one) == ["version", "time", "block", "form", "change", "compatible"]
    assert (one["version"], one["change"], one["compatible"]) == (1, "the first, of 3 columns", True)
    assert (two["version"], two["change"], two["compatible"]) == (2, "b got a type (DOUBLE)", True)
    assert {one["form"], two["form"]} == {"rawArrowSchema"}
    assert one["block"].startswith("f1620")
    assert one["time"] <= two["time"] <= dt.datetime.now(dt.timezone.utc)
    assert con.schema_history("d").arrow().to_pylist() == [one, two]


def test_show_lists_every_dataset_of_a_cube(con):
    found = rows(con, "SHOW SCHEMA HISTORY FROM c")
    assert [(r["dataset"], r["version"]) for r in found] == [("seed", 1), ("e", 1)]
    assert [r["change"] for r in rows(con, "show schema history of c.e")] == ["the first, of 3 columns"]


def test_an_overwrite_goes_on_with_the_history(con):
    con.create_dataset("d", pa.table({"a": ["x"]}), overwrite=True)
    found = rows(con, "SHOW SCHEMA HISTORY FROM d")
    assert [r["version"] for r in found] == [1, 2, 3]
    assert found[2]["change"] == "p removed; b removed; type of a changed from BIGINT to VARCHAR"
    assert found[2]["compatible"] is False


def test_a_dataset_that_is_made_anew_begins_a_history(con):
    (first, _) = rows(con, "SHOW SCHEMA HISTORY FROM d")
    con.delete_dataset("d")
    con.create_dataset("d", pa.table({"a": [1]}))
    (one,) = rows(con, "SHOW SCHEMA HISTORY FROM d")
    assert one["version"] == 1
    assert one["block"] != first["block"]


def test_a_copy_keeps_the_history(con, tmp_path):
    before = rows(con, "SHOW SCHEMA HISTORY FROM c.e")
    con.copy_cube("c", tmp_path / "other", name="k")
    other = kartosql.connect(tmp_path / "other")
    assert rows(other, "SHOW SCHEMA HISTORY FROM k.e") == before


def test_commits_without_a_new_schema_record_none(con):
    con.append_to_dataset("d", pa.table({"a": [3], "b": [1.5], "p": ["z"]}))
    con.create_index("d", "a")
    con.sql("DELETE FROM d WHERE p = 'x'")
    con.compact("d")
    assert len(rows(con, "SHOW SCHEMA HISTORY FROM d")) == 2
    con.sql("DELETE FROM d WHERE true")
    assert len(rows(con, "SHOW SCHEMA HISTORY FROM d")) == 2
    assert con.sql("SELECT * FROM d").columns == ["p", "a", "b"]


def test_what_another_program_writes_is_unrecorded_until_it_is_recorded(con):
    builders.append(con.store, "d", pa.table({"a": [9], "b": [2.5], "p": ["x"]}))
    *_, last = rows(con, "SHOW SCHEMA HISTORY FROM d")
    assert (last["version"], last["block"], last["form"]) == (None, None, "unrecorded")
    assert (last["change"], last["compatible"]) == ("nothing", True)
    assert con.sql("SELECT sum(a) FROM d").rows() == [(15,)]
    with pytest.warns(KartosqlWarning, match="another program"):
        (done,) = rows(con, "RECORD SCHEMA FOR d")
    assert (done["dataset"], done["table"], done["version"], done["recorded"]) == ("d", "table", 2, False)
    assert [r["version"] for r in rows(con, "SHOW SCHEMA HISTORY FROM d")] == [1, 2]


def test_a_schema_that_another_program_changed_is_recorded(con):
    schema = pa.schema([("p", pa.string()), ("a", pa.int64()), ("b", pa.float64()), ("n", pa.int64())])
    con.store.put("d/table/_common_metadata", builders.schema_bytes(schema))
    builders.append(con.store, "d", pa.table({"a": [9], "b": [2.5], "p": ["x"]}))
    assert rows(con, "SHOW SCHEMA HISTORY FROM d")[-1]["change"] == "n added (BIGINT)"
    with pytest.warns(KartosqlWarning, match="another program"):
        assert con.record_schema("d")[0]["recorded"] is True
    assert [r["version"] for r in rows(con, "SHOW SCHEMA HISTORY FROM d")] == [1, 2, 3]
    assert con.record_schema("d")[0]["recorded"] is False


def test_a_dataset_without_history_gets_one(con):
    builders.forget_history(con.store, "d", "c++e", "c++seed")
    (one,) = rows(con, "SHOW SCHEMA HISTORY FROM d")
    assert (one["version"], one["form"], one["change"]) == (None, "unrecorded", "the first, of 3 columns")
    assert failure(con, "DESCRIBE d VERSION 1").code == "no-schema-history"
    assert [r["recorded"] for r in rows(con, "RECORD SCHEMA FOR c")] == [True, True]
    assert [r["version"] for r in rows(con, "SHOW SCHEMA HISTORY FROM c")] == [1, 1]


def test_a_broken_history_is_put_aside(con):
    document = builders.read_document(con.store, "d")
    document["metadata"][HISTORY] = "broken"
    builders.write_document(con.store, document)
    with pytest.warns(KartosqlWarning, match="broken"):
        assert failure(con, "SHOW SCHEMA HISTORY FROM d").code == "broken-schema-history"
    with pytest.warns(KartosqlWarning, match="broken"):
        assert "history" in {f.check for f in con.check("d")}
    assert con.record_schema("d")[0]["recorded"] is True
    assert builders.read_document(con.store, "d")["metadata"][f"{HISTORY}_damaged"] == "broken"
    assert [r["version"] for r in rows(con, "SHOW SCHEMA HISTORY FROM d")] == [1]


def test_describe_of_a_version_and_of_a_time(con):
    old = [("p", "VARCHAR"), ("a", "BIGINT"), ("b", "NULL")]
    new = [*old[:2], ("b", "DOUBLE")]
    one, two = rows(con, "SHOW SCHEMA HISTORY FROM d")
    assert con.sql("DESCRIBE d VERSION 1").rows() == old
    assert con.sql("DESCRIBE d VERSION 2").rows() == new
    assert con.sql(f"DESCRIBE d AS OF '{one['time'].isoformat()}'").rows() == old
    assert con.sql(f"DESCRIBE TABLE d AS OF TIMESTAMP '{two['time'].isoformat()}'").rows() == new
    east = two["time"].astimezone(dt.timezone(dt.timedelta(hours=9)))
    assert con.sql(f"DESCRIBE d AS OF '{east}'").rows() == new
    assert con.sql("DESCRIBE c.e VERSION 1").rows() == [("p", "BIGINT"), ("w", "VARCHAR"), ("x", "BIGINT")]


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("DESCRIBE d VERSION 3", "no-such-version"),
        ("DESCRIBE d VERSION 0", "no-such-version"),
        ("DESCRIBE d VERSION 99999999999999999999999", "no-such-version"),
        ("DESCRIBE d AS OF '2000-01-01'", "no-such-version"),
        ("DESCRIBE d AS OF 'yesterday'", "invalid-value"),
        ("DESCRIBE d AS OF '0001-01-01T00:00:00+23:00'", "invalid-value"),
        ("DESCRIBE c VERSION 1", "unknown-table"),
        ("DESCRIBE r VERSION 1", "no-schema-history"),
        ("DESCRIBE nope VERSION 1", "unknown-table"),
        ("DESCRIBE d VERSION", "syntax-error"),
        ("DESCRIBE d VERSION -1", "syntax-error"),
        ("DESCRIBE d VERSION x", "syntax-error"),
        ("DESCRIBE d AS '2000-01-01'", "syntax-error"),
        ("DESCRIBE d AS OF 2000", "syntax-error"),
        ("DESCRIBE d VERSION 1 2", "syntax-error"),
        ("SHOW SCHEMA", "syntax-error"),
        ("SHOW SCHEMA HISTORY", "syntax-error"),
        ("SHOW SCHEMA HISTORY FROM", "syntax-error"),
        ("SHOW SCHEMA HISTORY FROM r", "no-schema-history"),
        ("SHOW SCHEMA HISTORY FROM nope", "unknown-table"),
        ("RECORD SCHEMA", "syntax-error"),
        ("RECORD SCHEMA FOR", "syntax-error"),
        ("RECORD SCHEMA FOR nope", "unknown-table"),
        ("EXPORT", "syntax-error"),
        ("EXPORT SCHEMA HISTORY OF d", "syntax-error"),
        ("EXPORT SCHEMA HISTORY OF d TO d", "syntax-error"),
        ("EXPORT SCHEMA HISTORY OF nope TO 'x'", "unknown-table"),
        ("EXPORT SCHEMA HISTORY OF c TO 'x'", "unknown-table"),
        ("EXPORT d TO 'x' (TYPE odf)", "syntax-error"),
        ("EXPORT () TO 'x' (TYPE odf)", "syntax-error"),
        ("EXPORT (SELECT 1", "syntax-error"),
        ("EXPORT (SELECT 1) TO 'x'", "syntax-error"),
        ("EXPORT (SELECT 1) TO 'x' ()", "syntax-error"),
        ("EXPORT (SELECT 1) TO 'x' (TYPE csv)", "syntax-error"),
        ("EXPORT (SELECT 1) TO 'x' (TYPE odf, TYPE odf)", "syntax-error"),
        ("EXPORT (SELECT 1) TO 'x' (TYPE odf, COLOUR red)", "syntax-error"),
        ("EXPORT (SELECT nope FROM d) TO 'x' (TYPE odf)", "unknown-column"),
        ("EXPORT (SELECT a FROM d) TO 'x' (TYPE odf, PRIMARY_KEY z)", "unknown-column"),
        ("EXPORT (SELECT a FROM d) TO 'x' (TYPE odf, EVENT_TIME z)", "unknown-column"),
    ],
)
def test_what_cannot_be_is_refused(con, sql, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    con.register("r", pa.table({"a": [1]}))
    error = failure(con, sql)
    assert error.code == code, error
    assert not (tmp_path / "x").exists()


def test_folders_have_no_history(con, tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "f.parquet")
    con.attach(tmp_path / "f.parquet", "f", type="parquet")
    for sql in ("SHOW SCHEMA HISTORY FROM f", "DESCRIBE f VERSION 1", "EXPORT SCHEMA HISTORY OF f TO 'x'"):
        assert failure(con, sql).code == "no-schema-history"
    assert failure(con, "RECORD SCHEMA FOR f").code == "unknown-table"


def test_nothing_is_recorded_or_exported_over_a_read_only_connection(con, tmp_path):
    reader = kartosql.connect(tmp_path, read_only=True)
    for sql in ("RECORD SCHEMA FOR d", "EXPORT SCHEMA HISTORY OF d TO 'x'", "EXPORT (SELECT 1 AS a) TO 'x' (TYPE odf)"):
        assert failure(reader, sql).code == "read-only"
    for call in (lambda: reader.export_odf(pa.table({"a": [1]}), tmp_path / "x"), lambda: reader.record_schema("d")):
        with pytest.raises(KartosqlError) as caught:
            call()
        assert caught.value.code == "read-only"


# -- export --------------------------------------------------------------------------------------------


def test_an_exported_history_is_a_chain_of_the_same_blocks(con, tmp_path):
    target = tmp_path / "chain"
    (done,) = rows(con, f"EXPORT SCHEMA HISTORY OF d TO '{target}'")
    chain = read_chain(reader_of(target))
    shown = rows(con, "SHOW SCHEMA HISTORY FROM d")
    assert [s.link.hash for s in chain.schemas] == [r["block"] for r in shown]
    assert (done["head"], done["blocks"]) == (chain.head, 3)
    assert {p.name for p in target.iterdir()} == {"blocks", "refs", "yaml"}
    assert len(list((target / "blocks").iterdir())) == 3
    texts = sorted((target / "yaml").iterdir())
    assert [parse_text(p.read_text("utf-8")) for p in texts] == [link.block for link in chain.links]
    assert failure(con, f"EXPORT SCHEMA HISTORY OF d TO '{target}'").code == "dataset-exists"


def exported(con: Any, target: Path, query: str, options: str = "") -> tuple[Any, pa.Table]:
    con.sql(f"EXPORT ({query}) TO '{target}' (TYPE odf{options})").rows()
    read = reader_of(target)
    chain = read_chain(read)
    for one in chain.slices:
        check_data(read(one.key), one)
        table = pq.read_table(target / one.key)
        assert hashes.to_text(logical_hash_of(table.schema, table.to_batches())) == one.logical_hash
        assert table.num_rows == one.rows
    tables = [pq.read_table(target / one.key) for one in chain.slices]
    return chain, pa.concat_tables(tables) if tables else None


def test_rows_become_a_root_dataset(con, tmp_path):
    chain, table = exported(con, tmp_path / "o", "SELECT a, b, [a] AS l, {'x': b} AS s FROM d ORDER BY a DESC")
    assert (chain.kind, chain.primary_key, chain.watermark) == ("Root", None, None)
    assert [link.block.kind for link in chain.links] == ["Seed", "SetDataSchema", "AddData"]
    assert chain.schema.form == "schema"
    names = ["offset", "op", "system_time", "event_time", "a", "b", "l", "s"]
    assert chain.schema.arrow.names == table.column_names == names
    assert table["offset"].to_pylist() == [0, 1, 2]
    assert table["a"].to_pylist() == [3, 2, 1]
    assert table["op"].to_pylist() == [0, 0, 0]
    assert len(set(table["system_time"].to_pylist())) == 1


def test_key_and_event_time_are_named_in_the_chain(con, tmp_path):
    query = "SELECT a AS \"K 1\", p, DATE '2026-01-01' + a::INT AS day FROM d"
    chain, table = exported(con, tmp_path / "o", query, ', PRIMARY_KEY ("k 1", p), EVENT_TIME day')
    assert chain.primary_key == ("K 1", "p")
    assert chain.vocab.event_time_column == "day"
    assert table.column_names == ["offset", "op", "system_time", "day", "K 1", "p"]
    assert table.schema.field("day").type == pa.date32()


def test_timestamps_of_events_are_utc_in_milliseconds(con, tmp_path):
    query = "SELECT TIMESTAMP '2026-01-01 00:00:00.123456' AS t, TIMESTAMP '2026-01-01' AS naive"
    chain, table = exported(con, tmp_path / "o", query, ", EVENT_TIME t")
    assert table["t"].to_pylist() == [dt.datetime(2026, 1, 1, 0, 0, 0, 123_000, dt.timezone.utc)]
    assert chain.schema.arrow.field("naive").type.tz is None


def test_no_rows_are_a_dataset_without_slices(con, tmp_path):
    chain, table = exported(con, tmp_path / "o", "SELECT a FROM d WHERE a > 99")
    assert table is None
    assert chain.schema.arrow.names[-1] == "a"


def test_parameters_belong_to_the_query(con, tmp_path):
    con.sql(f"EXPORT (SELECT a FROM d WHERE a > ?) TO '{tmp_path / 'o'}' (TYPE odf)", [2]).rows()
    assert read_chain(reader_of(tmp_path / "o")).slices[0].rows == 1


@pytest.mark.parametrize(
    ("query", "options", "code"),
    [
        ("SELECT a AS offset FROM d", "", "invalid-argument"),
        ("SELECT a AS event_time FROM d", "", "invalid-argument"),
        ("SELECT a FROM d UNION ALL SELECT 1", ", PRIMARY_KEY a", "invalid-data"),
        ("SELECT NULL::INT AS a", ", PRIMARY_KEY a", "null-in-key"),
        ("SELECT a FROM d", ", EVENT_TIME a", "invalid-argument"),
        ("SELECT MAP {'a': 1} AS m", "", "odf-invalid-schema"),
        ("SELECT INTERVAL 1 DAY AS i", "", "odf-invalid-schema"),
        ("SELECT [{'a': 1}] AS m", "", "odf-invalid-schema"),
        ("SELECT [a] AS a FROM d", ", PRIMARY_KEY a", "invalid-argument"),
        ("SELECT unnest([0e0, -0e0]) AS a", ", PRIMARY_KEY a", "invalid-data"),
        ("FROM (VALUES (NULL), ({'m': 1}), ({'m': NULL})) t(s)", "", "invalid-data"),
    ],
)
def test_rows_that_the_format_cannot_hold_are_refused(con, tmp_path, query, options, code):
    error = failure(con, f"EXPORT ({query}) TO '{tmp_path / 'o'}' (TYPE odf{options})")
    assert error.code == code, error
    assert not (tmp_path / "o" / "refs").exists()


@pytest.mark.parametrize("event_time", [None, "t"])
def test_times_that_do_not_fit_are_refused(con, tmp_path, event_time):
    far = pa.table({"t": pa.array([1 << 62], pa.timestamp("s"))})
    with pytest.raises(KartosqlError) as caught:
        con.export_odf(far, tmp_path / "o", event_time=event_time)
    assert caught.value.code == "invalid-data"
    assert not (tmp_path / "o" / "refs").exists()


def test_a_query_that_fails_on_the_way_leaves_no_dataset(con, tmp_path):
    query = "SELECT CASE WHEN a > 2 THEN CAST(p || '!' AS INT) ELSE a END AS x FROM d"
    error = failure(con, f"EXPORT ({query}) TO '{tmp_path / 'o'}' (TYPE odf)")
    assert error.code == "invalid-value"
    assert not (tmp_path / "o" / "refs").exists()


@pytest.mark.parametrize("data", [5, "x", [1], None, {"a": [1]}], ids=str)
def test_what_is_no_arrow_data_is_refused(con, tmp_path, data):
    with pytest.raises(KartosqlError) as caught:
        con.export_odf(data, tmp_path / "o")
    assert caught.value.code == "invalid-data"


def test_exports_go_to_any_store(con):
    store = Store("memory://odf-export")
    done = con.export_odf(con.sql("SELECT a FROM d"), store, primary_key="a")
    assert done["rows"] == 3
    assert read_chain(store.read).head == done["head"]


def test_histories_of_attached_datasets_are_those_of_the_manifest(con):
    seen = 0
    for case in golden.entries("odf/manifest.json", "datasets"):
        wanted = case["expect"]["schema_history"]
        con.sql(f"ATTACH OR REPLACE '{golden.find('odf/' + case['folder'])}' AS o (TYPE odf)").rows()
        found = rows(con, "SHOW SCHEMA HISTORY FROM o")
        assert [(r["version"], r["block"], r["form"]) for r in found] == [
            (w["number"], w["block"], w["form"]) for w in wanted
        ]
        assert rows(con, 'SHOW SCHEMA HISTORY FROM "o$log"') == found
        for one in wanted:
            fields = [(f["name"], in_sql_names(ValueError(f"type {f['type']}"))[5:]) for f in one["arrow"]["fields"]]
            assert con.sql(f"DESCRIBE o VERSION {one['number']}").rows() == fields
            seen += 1
    assert seen


def test_tables_of_several_and_of_attached_stores_have_histories_of_their_own(con, tmp_path):
    con.create_dataset("m", {"one": pa.table({"a": [1]}), "two": pa.table({"b": ["x"], "c": [1]})})
    assert [r["change"] for r in rows(con, 'SHOW SCHEMA HISTORY FROM m."two"')] == ["the first, of 2 columns"]
    assert con.sql("DESCRIBE m.one VERSION 1").rows() == [("a", "BIGINT")]
    con.sql(f"EXPORT SCHEMA HISTORY OF m.two TO '{tmp_path / 'two'}'").rows()
    assert read_chain(reader_of(tmp_path / "two")).schemas[0].arrow.names == ["b", "c"]
    assert [r["table"] for r in rows(con, "RECORD SCHEMA FOR m")] == ["one", "two"]
    with kartosql.connect(tmp_path / "two") as other:
        other.attach(con.store.url, "k", type="kartothek")
        assert rows(other, "SHOW SCHEMA HISTORY FROM k.d") == rows(con, "SHOW SCHEMA HISTORY FROM d")


def test_datasets_of_cubes_are_recorded_and_exported_by_either_name(con, tmp_path):
    for number, name in enumerate(("c.e", '"c++e"', "C.E")):
        target = tmp_path / f"out-{number}"
        con.sql(f"EXPORT SCHEMA HISTORY OF {name} TO '{target}'").rows()
        assert read_chain(reader_of(target)).head == rows(con, "SHOW SCHEMA HISTORY FROM c.e")[0]["block"]
        assert [r["recorded"] for r in rows(con, f"RECORD SCHEMA FOR {name}")] == [False]


def test_an_export_is_the_same_rows_when_attached(con, tmp_path):
    con.sql(f"EXPORT (SELECT a, b, p FROM d) TO '{tmp_path / 'o'}' (TYPE odf, PRIMARY_KEY a)").rows()
    con.attach(tmp_path / "o", "o", type="odf")
    assert con.sql("SELECT a, b, p FROM o ORDER BY a").rows() == con.sql("SELECT a, b, p FROM d ORDER BY a").rows()
    con.export_schema_history("d", tmp_path / "chain")
    con.attach(tmp_path / "chain", "h", type="odf")
    versions = [r["version"] for r in rows(con, "SHOW SCHEMA HISTORY FROM h")]
    assert versions == [1, 2]


def test_blocks_of_a_history_are_real_ones(con, tmp_path):
    con.export_schema_history("d", tmp_path / "chain")
    for path in (tmp_path / "chain" / "yaml").iterdir():
        assert isinstance(parse_text(path.read_text("utf-8")), Block)
