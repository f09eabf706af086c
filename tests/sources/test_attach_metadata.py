"""Folders with data-skipping metadata: what is skipped, and what never is."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import golden
import kartosql
import skipping_data
from kartosql.errors import KartosqlError, KartosqlWarning
from kartosql.formats.xskipper.naming import folder_name
from kartosql.sources.folder_metadata import FolderMetadata

ALL = golden.samples(lambda s: s["data_format"] in ("csv", "parquet"))


@pytest.fixture
def con(tmp_path: Path):
    (tmp_path / "store").mkdir()
    with kartosql.connect(tmp_path / "store") as con:
        yield con


def scan_of(con, sql: str) -> dict[str, Any]:
    return con.explain(sql).to_dict()["scans"][0]["datasets"][0]


def attached(con, sample: dict[str, Any], folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(FolderMetadata, "identifiers", property(lambda self: [sample["object_prefix"]]))
    keys = {"metadata_keys": sample["encrypted"]["keys"]} if sample["encrypted"] else {}
    metadata = golden.find(f"xskipper/{sample['metadata_dir']}")
    con.attach(
        folder, "t", type=sample["data_format"], metadata=str(metadata), metadata_type="EXPLICIT_LOCATION", **keys
    )


@pytest.mark.parametrize("sample", ALL)
def test_files_with_a_match_are_read_and_provable_ones_are_not(con, tmp_path, monkeypatch, sample):
    folder = skipping_data.copied(sample, tmp_path / "data")
    attached(con, sample, folder, monkeypatch)
    con.attach(folder, "plain", type=sample["data_format"])
    skipped = 0
    for case in sample["cases"]:
        predicate = re.sub(r"\b(-?[\d.]+)D\b", r"\1::DOUBLE", case["predicate"])  # a literal of Spark's
        sql = f"SELECT * FROM t WHERE {predicate}"
        scan = scan_of(con, sql)
        assert set(case["must_keep"]) <= set(scan["files"]), case
        narrowed = [s for s in scan["steps"] if s["files_after"] < s["files_before"]]
        by = {s["by"] for s in narrowed} - {"partition key", "row groups"}
        assert by <= {"minmax", "valuelist", "bloomfilter", "regexvaluelist"}
        skipped += bool(by)
        # In CSV an empty text may be anything, and DuckDB has no literals such as X'00'.
        if "= ''" not in case["predicate"] and "X'" not in case["predicate"]:
            assert set(case["must_skip"]).isdisjoint(scan["files"]), case
        try:
            wanted = Counter(map(repr, con.sql(sql.replace("FROM t", "FROM plain")).rows()))
        except KartosqlError:
            continue  # files with a value that does not fit were left out
        assert Counter(map(repr, con.sql(sql).rows())) == wanted, case
    assert skipped or not any(c["must_skip"] for c in sample["cases"])


@pytest.fixture
def sample() -> dict[str, Any]:
    return golden.sample("built_types_minmax")


def test_changed_and_new_files_are_read(con, tmp_path, monkeypatch, sample):
    folder = skipping_data.copied(sample, tmp_path / "data")
    attached(con, sample, folder, monkeypatch)
    case = next(c for c in sample["cases"] if c["must_skip"] and "X'" not in c["predicate"])
    sql = f"SELECT * FROM t WHERE {case['predicate']}"
    victim = folder / sorted(case["must_skip"])[0]
    assert str(victim.relative_to(folder)) not in scan_of(con, sql)["files"]
    shutil.copy(victim, folder / "new.parquet")
    os.utime(victim, ns=(victim.stat().st_mtime_ns + 10**6,) * 2)
    files = scan_of(con, sql)["files"]
    assert {str(victim.relative_to(folder)), "new.parquet"} <= set(files)


def test_metadata_are_found_below_their_base(con, tmp_path, monkeypatch, sample):
    folder = skipping_data.copied(sample, tmp_path / "data")
    prefix = sample["object_prefix"]
    monkeypatch.setattr(FolderMetadata, "identifiers", property(lambda self: [prefix]))
    base = tmp_path / "base"
    shutil.copytree(golden.find(f"xskipper/{sample['metadata_dir']}"), base / folder_name(prefix))
    case = next(c for c in sample["cases"] if c["must_skip"] and "X'" not in c["predicate"])
    for number, more in enumerate(["", ", METADATA_TYPE EXPLICIT_BASE_PATH_LOCATION"]):
        con.sql(f"ATTACH '{folder}' AS t{number} (TYPE parquet, METADATA '{base}'{more})")
        scan = scan_of(con, f"SELECT * FROM t{number} WHERE {case['predicate']}")
        assert set(case["must_skip"]).isdisjoint(scan["files"])
        assert scan["steps"][0]["by"] == "minmax"
    with pytest.warns(KartosqlWarning, match="there are no metadata"):
        con.sql(f"ATTACH '{folder}' AS t9 (TYPE parquet, METADATA '{base}', METADATA_TYPE EXPLICIT_LOCATION)")


def test_metadata_of_another_table_are_not_used(con, tmp_path, sample):
    folder = skipping_data.copied(sample, tmp_path / "data")
    metadata = golden.find(f"xskipper/{sample['metadata_dir']}")
    with pytest.warns(KartosqlWarning, match="the metadata are about"):
        con.sql(f"ATTACH '{folder}' AS t (TYPE parquet, METADATA '{metadata}')")
    case = next(c for c in sample["cases"] if c["must_skip"])
    scan = scan_of(con, f"SELECT * FROM t WHERE {case['predicate']}")
    assert scan["files_selected"] == scan["files_total"]


def test_metadata_of_another_bucket_are_not_used(con, tmp_path):
    files, name = fsspec.filesystem("memory"), uuid.uuid4().hex
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
    files.pipe(f"/one{name}/t/x.parquet", (tmp_path / "x.parquet").read_bytes())
    files.pipe(f"/two{name}/m/x.parquet", b"whatever")
    with pytest.warns(KartosqlWarning, match="another bucket"):
        con.sql(f"ATTACH 'memory://one{name}/t' AS t (TYPE parquet, METADATA 'memory://two{name}/m')")
    assert con.sql("SELECT a FROM t WHERE a = 1").rows() == [(1,)]


@pytest.mark.parametrize("content", [b"", b"garbage", b"PAR1" + b"\xff" * 100 + b"PAR1"])
def test_broken_metadata_warn_once_and_skip_nothing(con, tmp_path, content):
    (tmp_path / "f").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "f" / "x.parquet")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "part-0.parquet").write_bytes(content)
    with pytest.warns(KartosqlWarning, match="Data skipping"):
        con.sql(f"ATTACH '{tmp_path}/f' AS t (TYPE parquet, METADATA '{tmp_path}/m')")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert con.sql("SELECT a FROM t WHERE a = 1").rows() == [(1,)]
    shutil.rmtree(tmp_path / "m")
    with pytest.warns(KartosqlWarning, match="no metadata"):
        assert con.sql("SELECT a FROM t WHERE a = 1").rows() == [(1,)]


@pytest.mark.parametrize(
    "options",
    ["METADATA_TYPE EXPLICIT_LOCATION", "METADATA 'm', METADATA_TYPE HIVE_TABLE_NAME", "METADATA 'm', METADATA_KEYS 5"],
)
def test_options_that_do_not_fit_are_refused(con, tmp_path, options):
    (tmp_path / "f").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "f" / "x.parquet")
    with pytest.raises(KartosqlError) as e:
        con.sql(f"ATTACH '{tmp_path}/f' AS t (TYPE parquet, {options})")
    assert e.value.code == "invalid-option"


@pytest.fixture
def lists(con, tmp_path, monkeypatch) -> dict[str, Any]:
    """A folder ``t`` with value lists of texts."""
    found = golden.sample("repo_v4_t1")
    attached(con, found, skipping_data.copied(found, tmp_path / "data"), monkeypatch)
    return found


def test_texts_under_a_collation_are_not_compared_with_metadata(con, lists, tmp_path, monkeypatch):
    case = lists["cases"][0]
    assert case["predicate"] == "address = 'Telaviv'"
    sql = "SELECT count(*) FROM t WHERE address = 'TELAVIV'"
    assert con.sql(sql).rows() == [(0,)]
    assert scan_of(con, sql)["files"] == []
    with kartosql.connect(tmp_path / "store", default_collation="nocase") as other:
        attached(other, lists, tmp_path / "data", monkeypatch)
        assert set(case["must_keep"]) <= set(scan_of(other, sql)["files"])
        assert (
            other.sql(sql).rows() == con.sql("SELECT count(*) FROM t WHERE lower(address) = 'telaviv'").rows() != [(0,)]
        )


def test_conditions_on_other_tables_say_nothing(con, lists):
    con.register("r", pa.table({"address": ["nowhere"]}))
    sql = "SELECT count(*) FROM t, r WHERE r.address = 'nowhere' OR t.address = 'none'"
    assert con.sql(sql).rows() == con.sql("SELECT count(*) FROM t").rows() != [(0,)]


def test_parameters_joins_and_members_of_structs_are_understood(con, tmp_path, monkeypatch):
    nested = golden.sample("built_nested_minmax")
    attached(con, nested, skipping_data.copied(nested, tmp_path / "data"), monkeypatch)
    case = next(c for c in nested["cases"] if c["predicate"] == "items.serial = 555")
    for sql, parameters in [
        ("SELECT * FROM t WHERE items.serial = 555", None),
        ("SELECT * FROM t WHERE t.items.serial = ?", [555]),
        ("SELECT * FROM t x, (SELECT 1 AS one) y WHERE NOT (x.items.serial <> :n)", {"n": 555}),
    ]:
        scan = con.explain(sql, parameters).to_dict()["scans"][0]["datasets"][0]
        assert set(case["must_keep"]) <= set(scan["files"])
        assert set(case["must_skip"]).isdisjoint(scan["files"]), sql
    # Rows of the side that an outer join keeps stay, whatever ON says of them.
    kept = scan_of(con, "SELECT * FROM t LEFT JOIN (SELECT 1 AS one) y ON items.serial = 555")
    assert kept["files_selected"] == kept["files_total"]
    assert json.dumps(kept)
