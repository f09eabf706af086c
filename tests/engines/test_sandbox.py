"""A statement reads nothing but the tables of the connection, and changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.errors import KartosqlError
from kartosql.store import Store
from written import write_dataset

SECRET = "do-not-tell"
CODES = {
    "not-allowed",
    "function-not-allowed",
    "not-supported",
    "unknown-table",
    "invalid-query",
    "syntax-error",
    "unknown-setting",
    "unknown-column",
    "several-statements",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store in ``store``, and secrets around it."""
    store = Store(str(tmp_path / "store"), create=True)
    write_dataset(store, "d", pa.table({"x": [1, 2], "p": [0, 1]}), partition_on="p")
    (tmp_path / "store" / "other.parquet").write_bytes(builders.parquet({"secret": [SECRET]}))
    (tmp_path / "secret.csv").write_text(f"a\n{SECRET}\n")
    (tmp_path / "secret.json").write_text(f'{{"a": "{SECRET}"}}')
    for folder in (".tmp", "store/.tmp"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "secret.txt").write_text(SECRET)
    monkeypatch.setenv("KARTOSQL_SECRET", SECRET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


READS = """
SELECT * FROM read_csv('{0}/secret.csv')
SELECT * FROM read_csv_auto('{0}/secret.csv')
SELECT * FROM sniff_csv('{0}/secret.csv')
SELECT * FROM read_json('{0}/secret.json')
SELECT * FROM read_text('{0}/secret.csv')
SELECT * FROM read_text('secret.csv')
SELECT * FROM read_text('.tmp/secret.txt')
SELECT * FROM read_text('{0}/.tmp/secret.txt')
SELECT * FROM read_text('{0}/store/.tmp/secret.txt')
SELECT * FROM read_blob('{0}/secret.csv')
SELECT * FROM read_text('/etc/passwd')
SELECT * FROM '/etc/passwd'
SELECT * FROM '{0}/secret.csv'
SELECT * FROM "{0}/secret.csv"
SELECT * FROM glob('{0}/*')
SELECT * FROM glob('/etc/*')
SELECT * FROM read_parquet('{0}/store/other.parquet')
SELECT * FROM parquet_scan('{0}/store/*.parquet')
SELECT * FROM read_parquet('{0}/store/d/table/../../other.parquet')
SELECT * FROM parquet_metadata('{0}/store/other.parquet')
SELECT * FROM parquet_schema('{0}/store/other.parquet')
SELECT x, (SELECT count(*) FROM read_parquet('{0}/store/other.parquet')) FROM d
SELECT * FROM d UNION ALL SELECT 1, 2 FROM read_csv('{0}/secret.csv')
WITH a AS (SELECT * FROM read_text('{0}/secret.csv')) SELECT * FROM a, d
SELECT * FROM query('SELECT * FROM read_text(''{0}/secret.csv'')')
SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM read_text(''{0}/secret.csv'')'))
SELECT * FROM read_csv('http://127.0.0.1:9/x.csv')
SELECT * FROM read_parquet('s3://bucket/x.parquet')
SELECT * FROM read_text('/proc/self/environ')
SELECT getenv('KARTOSQL_SECRET')
SELECT * FROM duckdb_secrets()
SELECT * FROM which_secret('x', 's3')
SELECT * FROM secret_frame
FROM python_list
""".strip().splitlines()

WRITES = """
COPY (SELECT 1) TO '{0}/out.csv'
COPY d TO '{0}/out.csv'
EXPLAIN COPY (SELECT 1) TO '{0}/out.csv'
EXPLAIN ANALYZE COPY (SELECT 1) TO '{0}/out.csv'
EXPLAIN (ANALYZE) COPY (SELECT 1) TO '{0}/out.csv'
ATTACH '{0}/out.db' AS q
ATTACH ':memory:' AS q
EXPORT DATABASE '{0}/out'
INSTALL httpfs
LOAD httpfs
LOAD '{0}/x.so'
CREATE TABLE q (a INT)
CREATE OR REPLACE TEMP VIEW d AS SELECT 1
CREATE MACRO q(a) AS a
CREATE SECRET (TYPE s3)
INSERT INTO d SELECT 1 AS x, 2 AS p FROM read_csv('{0}/secret.csv')
INSERT INTO d (x) COPY d TO '{0}/out.csv'
CREATE DATASET e AS SELECT * FROM read_text('{0}/secret.csv')
DELETE FROM d WHERE p = (SELECT 1 FROM read_csv('{0}/secret.csv'))
UPDATE d SET x = 1
DELETE FROM d
TRUNCATE d
MERGE INTO d USING d e ON d.x = e.x AND d.p > 0 WHEN MATCHED THEN DELETE
WITH q AS (INSERT INTO d VALUES (1, 2) RETURNING *) SELECT * FROM q
WITH q AS (DELETE FROM d RETURNING *) SELECT * FROM q
WITH q AS (UPDATE d SET x = 5 RETURNING *) FROM q
DROP TABLE d
ALTER TABLE d RENAME TO e
PRAGMA database_list
PRAGMA enable_external_access = true
SET enable_external_access = true
SET GLOBAL enable_external_access = true
SET allowed_directories = ['/']
SET lock_configuration = false
RESET lock_configuration
SET VARIABLE kartosql_files_0 = ['/etc/passwd']
CALL pragma_version()
USE memory
CHECKPOINT
BEGIN
PREPARE q AS SELECT 1
EXECUTE q
VACUUM
SELECT 1; COPY (SELECT 1) TO '{0}/out.csv'
""".strip().splitlines()


def _contents(place: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in place.rglob("*") if p.is_file()}


@pytest.mark.parametrize("remote", [False, True], ids=["local", "memory"])
@pytest.mark.parametrize("sql", [*READS, *WRITES])
def test_nothing_else_is_read_or_written(place, sql, remote):
    secret_frame = pa.table({"a": [SECRET]})
    python_list = [secret_frame]
    assert python_list
    before = _contents(place)
    url = str(place / "store")
    if remote:
        store = Store(f"memory://{place.name}")
        write_dataset(store, "d", pa.table({"x": [1, 2], "p": [0, 1]}), partition_on="p", overwrite=True)
        url = store.url
    with kartosql.connect(url) as connection:
        with pytest.raises(KartosqlError) as e:
            connection.sql(sql.replace("{0}", str(place))).rows()
        assert e.value.code in CODES, e.value
        assert SECRET not in str(e.value)
        assert connection.sql("SELECT sum(x) FROM d").rows() == [(3,)]
    assert _contents(place) == before


def _data_file(place: Path) -> str:
    return str(next((place / "store" / "d" / "table").rglob("*.parquet")))


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{0}' (use_tmp_file false)",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{0}' (use_tmp_file false)",
        "WITH a AS (COPY (SELECT 1) TO '{0}') FROM a, d",
        "SELECT * FROM query('COPY (SELECT 1) TO ''{0}'' (use_tmp_file false)'), d",
    ],
)
def test_a_data_file_of_the_scan_cannot_be_overwritten(place, sql):
    before = _contents(place)
    with kartosql.connect(str(place / "store")) as connection, pytest.raises(KartosqlError):
        connection.sql(sql.format(_data_file(place))).rows()
    assert _contents(place) == before


def test_a_file_that_the_scan_left_out_cannot_be_read_by_its_path(place):
    files = sorted((place / "store" / "d" / "table").rglob("*.parquet"))
    with kartosql.connect(str(place / "store")) as connection, pytest.raises(KartosqlError) as e:
        connection.sql(f"SELECT * FROM d, read_parquet('{files[1]}') WHERE d.p = 0").rows()
    assert e.value.code == "function-not-allowed"


def test_python_variables_are_no_tables(place):
    d2: Any = pa.table({"a": [1]})
    assert d2.num_rows
    with kartosql.connect(str(place / "store")) as connection, pytest.raises(KartosqlError) as e:
        connection.sql("SELECT * FROM d2")
    assert e.value.code == "unknown-table"


def test_internal_names_of_the_engine_are_no_names_of_the_user(place):
    with kartosql.connect(str(place / "store")) as connection:
        for names in ("__kartosql_0.d", "kartosql_files_0, d", "main.kartosql_files_0"):
            with pytest.raises(KartosqlError) as e:
                connection.sql(f"SELECT * FROM {names}").rows()
            assert e.value.code == "unknown-table"


def test_no_folder_is_left_behind(place):
    before = set(place.rglob("*"))
    with kartosql.connect(str(place / "store")) as connection:
        connection.sql("SELECT * FROM d ORDER BY x").rows()
    assert set(place.rglob("*")) == before
