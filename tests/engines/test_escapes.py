"""Escape attempts: each is refused with the code that says why, and nothing on disk changes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import KartosqlError
from kartosql.store import Store
from written import write_dataset

# {0} is the folder of the store.
REFUSED = {
    "function-not-allowed": """
SELECT getvariable('kartosql_files_0') FROM d
SELECT "getvariable"('kartosql_files_0') FROM d
SELECT 'kartosql_files_0'.getvariable() FROM d
SELECT main.getvariable('kartosql_files_0') FROM d
SELECT system.main.getvariable('kartosql_files_0') FROM d
SELECT getvariable/**/('kartosql_files_0') FROM d
SELECT GETVARIABLE ('kartosql_opened') FROM d
SELECT list_transform(['kartosql_files_0'], lambda v: getvariable(v)) FROM d
SELECT list_transform(getvariable('kartosql_files_0'), lambda v: v) FROM d
SELECT current_setting('allowed_paths')
SELECT current_setting('temp_directory')
SELECT getenv('HOME')
INSERT INTO d SELECT 1 AS p, x FROM d WHERE getenv('HOME') = 'x'
INSERT OVERWRITE d SELECT * FROM read_parquet('{0}/d/table/*/*')
CREATE DATASET q AS SELECT * FROM read_text('/etc/passwd')
CREATE CUBE q DIMENSIONS (x) PARTITION BY (p) AS SELECT 1 AS x, getvariable('a') AS p
ALTER CUBE q ADD DATASET e AS FROM glob('*')
DELETE FROM d WHERE getenv('HOME') = 'x'
DELETE FROM d WHERE p = 1 AND sleep_ms(1) IS NULL
SELECT nextval('s')
SELECT currval('s')
SELECT setseed(0.1)
SELECT write_log('x')
SELECT write_log('x', level := 'WARN') FROM d
SELECT current_query() FROM d
SELECT current_query_id()
SELECT txid_current()
SELECT current_transaction_id()
SELECT current_connection_id()
SELECT in_search_path('memory','main')
SELECT sleep_ms(1)
SELECT pg_sleep(0.01)
SELECT stats(x) FROM d
SELECT vector_type(x) FROM d
SELECT json_serialize_plan('SELECT * FROM duckdb_settings()')
SELECT json_serialize_plan('SELECT * FROM read_text(''/etc/passwd'')')
SELECT json_serialize_plan('SELECT getvariable(''kartosql_opened'')', optimize := true)
SELECT pg_get_viewdef(1)
SELECT pg_get_viewdef(oid) FROM pg_class
SELECT get_block_size('memory')
SELECT __internal_decompress_string('x'::HUGEINT)
SELECT __internal_tablefilter_dynamic(1)
SELECT __internal_compress_string_ubigint('a')
SELECT __internal_compressed_materialization_cast(1,2)
SELECT __internal_barrier(x) FROM d
SELECT __cast(1)
SELECT index_key('memory.main.d', 'x', 1)
SELECT query('SELECT 1')
SELECT * FROM query('SELECT 1')
SELECT * FROM query_table('d')
SELECT * FROM query_table(['d'])
SELECT * FROM query_table('__kartosql_0.d')
SELECT * FROM d, query_table('__kartosql_0.d')
SELECT * FROM d, query('SELECT * FROM __kartosql_0.d')
SELECT * FROM d, query('DELETE FROM x')
SELECT * FROM duckdb_settings()
SELECT * FROM duckdb_variables()
SELECT * FROM d, duckdb_variables()
SELECT * FROM d, duckdb_views()
SELECT * FROM duckdb_tables()
SELECT * FROM duckdb_columns()
SELECT * FROM duckdb_databases()
SELECT * FROM duckdb_functions()
SELECT * FROM duckdb_extensions()
SELECT * FROM duckdb_memory()
SELECT * FROM duckdb_temporary_files()
SELECT * FROM duckdb_external_file_cache()
SELECT * FROM duckdb_logs()
SELECT * FROM duckdb_logs_parsed('QueryLog')
SELECT * FROM duckdb_secrets()
SELECT * FROM duckdb_prepared_statements()
SELECT * FROM duckdb_keywords()
SELECT * FROM duckdb_external_resources()
SELECT * FROM create_external_resource('a')
SELECT * FROM pragma_version()
SELECT * FROM pragma_database_size()
SELECT * FROM pragma_storage_info('d')
SELECT * FROM pragma_table_info('d')
SELECT * FROM pragma_show('d')
SELECT * FROM pragma_platform()
SELECT * FROM pragma_user_agent()
SELECT * FROM checkpoint()
SELECT * FROM force_checkpoint()
SELECT * FROM enable_logging()
SELECT * FROM disable_logging()
SELECT * FROM truncate_duckdb_logs()
SELECT * FROM enable_profiling()
SELECT * FROM disable_profiling()
SELECT * FROM seq_scan('d')
SELECT * FROM arrow_scan(1,2,3)
SELECT * FROM arrow_scan_dumb(1,2,3)
SELECT * FROM arrow_scan(140000000000::POINTER, 1::POINTER, 2::POINTER)
SELECT * FROM pandas_scan(1)
SELECT * FROM python_arrow_scan(1)
SELECT * FROM python_map_function(1)
SELECT * FROM test_all_types()
SELECT * FROM test_vector_types(NULL::INT)
SELECT * FROM summary((SELECT 1))
SELECT * FROM histogram(d, x)
SELECT * FROM histogram_values(d, x)
SELECT * FROM histogram('/etc/passwd', x)
SELECT * FROM read_duckdb('{0}/x.db')
SELECT * FROM read_xlsx('{0}/x.xlsx')
SELECT * FROM read_text('/etc/passwd')
SELECT * FROM "read_text"('/etc/passwd')
SELECT * FROM main.read_text('/etc/passwd')
SELECT * FROM system.main.read_text('/etc/passwd')
SELECT * FROM (FROM read_text('/etc/passwd'))
SELECT (FROM read_text('/etc/passwd'))
SELECT EXISTS(FROM read_text('/etc/passwd'))
SELECT ARRAY(SELECT content FROM read_text('/etc/passwd'))
SELECT 1 WHERE 1 IN (SELECT 1 FROM read_text('/etc/passwd'))
SELECT 1 ORDER BY (SELECT count(*) FROM read_text('/etc/passwd'))
SELECT * FROM d LIMIT (SELECT count(*) FROM read_text('/etc/passwd'))
SELECT * FROM d JOIN LATERAL (SELECT * FROM read_text('/etc/passwd')) ON true
SELECT * FROM d SEMI JOIN read_text('/etc/passwd') ON true
SELECT * FROM d POSITIONAL JOIN read_text('/etc/passwd')
SELECT * FROM d ASOF JOIN read_blob('/etc/passwd') t ON d.x >= t.size
VALUES ((SELECT content FROM read_text('/etc/passwd')))
SUMMARIZE (FROM read_text('/etc/passwd'))
DESCRIBE SELECT * FROM read_text('/etc/passwd')
DESCRIBE (FROM read_text('/etc/passwd'))
EXPLAIN SELECT * FROM read_text('/etc/passwd')
EXPLAIN ANALYZE SELECT * FROM read_text('/etc/passwd')
PIVOT read_csv('/etc/passwd') ON a
PIVOT (FROM read_text('/etc/passwd')) ON filename USING first(content)
UNPIVOT read_text('/etc/passwd') ON filename
SELECT * FROM (PIVOT read_text('/etc/passwd') ON filename USING first(content))
SELECT * FROM read_text('/etc/passwd') PIVOT (first(content) FOR filename IN ('a'))
TABLE read_text('/etc/passwd')
SELECT * FROM d, LATERAL duckdb_views()
SELECT x FROM d UNION ALL FROM duckdb_settings()
(FROM duckdb_settings()) INTERSECT (FROM duckdb_settings())
SELECT * FROM which_secret('x','s3')
SELECT x.getvariable() FROM d
SELECT macro.getvariable('a')
SELECT * FROM getvariable('kartosql_files_0')
SELECT * FROM parquet_bloom_probe('{0}','x',1)
SELECT * FROM parquet_file_metadata('{0}')
SELECT * FROM parquet_page_index('{0}')
SELECT * FROM add_grammar_extension('x')
SELECT * FROM remove_grammar_extension('x')
SELECT * FROM duckdb_live_query_metrics()
SELECT * FROM read_single_csv_file('{0}')
SELECT * FROM load_aws_credentials()
SELECT * FROM sqlite_scan('a','b')
SELECT * FROM postgres_query('a','b')
SELECT 1 FROM d GROUP BY getvariable('x')
SELECT sum(x) FILTER (WHERE getvariable('x') IS NULL) FROM d
SELECT sum(x) OVER (PARTITION BY getvariable('x')) FROM d
SELECT CASE WHEN getvariable('x') IS NULL THEN 1 END
SELECT * REPLACE (getvariable('kartosql_opened') AS x) FROM d
SELECT {'a': getvariable('kartosql_opened')}
SELECT [getvariable(v) FOR v IN ['kartosql_opened']] FROM d
SELECT x FROM d QUALIFY getvariable('x') IS NULL
SELECT try_cast(getvariable('x') AS INT)
SELECT x FROM d LIMIT getvariable('x')
SELECT coalesce(getvariable('kartosql_opened')) FROM d
""",
    "unknown-table": """
SELECT * FROM duckdb_settings
SELECT * FROM duckdb_views
SELECT * FROM pg_catalog.pg_class
SELECT * FROM pg_class
SELECT * FROM sqlite_master
SELECT * FROM sqlite_schema
SELECT * FROM main.kartosql_files_0
SELECT * FROM temp.d
SELECT * FROM memory.main.d
SELECT * FROM system.main.duckdb_tables
SELECT * FROM system.information_schema.tables
SELECT * FROM memory.__kartosql_0.d
SELECT * FROM a.b.c.d
SELECT * FROM memory.main.d.x
SELECT * FROM __kartosql_0.d
SELECT * FROM "__kartosql_0"."d"
SELECT * FROM d, "__kartosql_0".d
SELECT * FROM kartosql_index_0
SELECT * FROM d, kartosql_files_0
SELECT * FROM kartosql_data_0
SELECT * FROM pragma_database_list
SUMMARIZE '/etc/passwd'
DESCRIBE SELECT * FROM '/etc/passwd'
PIVOT '/etc/passwd' ON a
TABLE '/etc/passwd'
FROM '/etc/passwd'
FROM "/etc/passwd"
FROM d, '/etc/passwd'
FROM d JOIN '/etc/passwd' ON true
FROM (VALUES (1)) t, '/etc/passwd'
FROM main.'/etc/passwd'
FROM main."/etc/passwd"
FROM 'file:///etc/passwd'
FROM 's3://b/x.parquet'
FROM 'http://127.0.0.1:9/x.csv'
SELECT * FROM duckdb_tables, (WITH duckdb_tables AS (SELECT 1) SELECT * FROM duckdb_tables)
WITH sqlite_master AS (SELECT * FROM sqlite_master) FROM sqlite_master
WITH a AS (SELECT * FROM duckdb_views), duckdb_views AS (SELECT 1) FROM a
SELECT * FROM (WITH duckdb_views AS (SELECT 1) SELECT 1) t, duckdb_views
WITH duckdb_views(a) AS NOT MATERIALIZED (FROM duckdb_views) FROM duckdb_views
SELECT * FROM d NATURAL JOIN duckdb_views
SELECT * FROM positional_join
""",
    "syntax-error": """
UPDATE EXTENSIONS
MERGE INTO d USING d e ON true WHEN MATCHED THEN DELETE
SELECT * FROM read_text/* a /* b */ ('/etc/passwd')
DESCRIBE '/etc/passwd'
FROM $$/etc/passwd$$
FROM E'/etc/passwd'
FROM U&'/etc/passwd'
FROM ['/etc/passwd']
SHOW ALL TABLES
SHOW VARIABLES
SHOW ALL
SHOW d
SELECT 1 XOR 2 FROM duckdb_tables, (WITH duckdb_tables AS (SELECT 1) SELECT * FROM duckdb_tables)
FROM E'x', duckdb_tables, (WITH duckdb_tables AS (SELECT 1) SELECT * FROM duckdb_tables)
EXPLAIN ANALYZE COPY d TO '{0}/x'
EXPLAIN ANALYZE DELETE FROM d
EXPLAIN ANALYZE (FORMAT JSON) COPY d TO '{0}/x'
EXPLAIN (ANALYZE, FORMAT JSON) INSERT INTO d VALUES (1,2)
EXPLAIN EXPLAIN ANALYZE SELECT 1
EXPLAIN (CODEGEN) SELECT 1
DESCRIBE DELETE FROM d
SET VARIABLE kartosql_files_0 = ['/etc/passwd']
SET allowed_paths = ['/etc/passwd']
SELECT 1 INTO OUTFILE '{0}/x'
SELECT * FROM d AS glob(a, b)
""",
    "not-allowed": """
SELECT * FROM (SHOW TABLES)
SELECT * FROM (SHOW ALL TABLES)
FROM (SHOW ALL TABLES)
SELECT * FROM (SHOW DATABASES)
SELECT * FROM (PRAGMA version)
SELECT * FROM (CALL pragma_version())
SELECT * FROM (COPY d TO '{0}/x')
SELECT * FROM (DELETE FROM d RETURNING *)
SELECT * FROM (INSERT INTO d VALUES (1,2) RETURNING *)
WITH q AS (DELETE FROM d RETURNING *) SELECT 1
WITH q AS MATERIALIZED (UPDATE d SET x=1 RETURNING *) SELECT 1
WITH q AS (MERGE INTO d USING d e ON true WHEN MATCHED THEN DELETE RETURNING *) FROM q
WITH q AS (COPY d TO '{0}/x') FROM q
WITH q AS (CREATE TABLE x AS SELECT 1) FROM q
WITH q AS (ATTACH ':memory:' AS y) FROM q
(COPY d TO '{0}/x')
EXPLAIN ANALYZE WITH q AS (DELETE FROM d RETURNING *) FROM q
DESCRIBE WITH q AS (DELETE FROM d RETURNING *) FROM q
SELECT * INTO q FROM d
FROM d INSERT INTO q SELECT *
""",
    "invalid-parameters": """
SELECT $kartosql_files_0
""",
    "several-statements": """
SELECT 1; SELECT 2
SELECT 1 /* ; */ ; COPY (SELECT 1) TO '{0}/x'
SELECT '1'';' ; DROP TABLE d
SELECT $$a;$$; DROP TABLE d
SELECT '\\'; DROP TABLE d; --'
SELECT 1　;　DROP TABLE d
SELECT * FROM d WHERE x = 1 ; COPY d TO '{0}/x' --
BEGIN; SELECT 1
;SELECT 1;COMMIT
""",
    "not-attached": "DETACH memory",
    "not-supported": """
COPY d TO '{0}/x'
COPY (SELECT 1) TO '{0}/x' (FORMAT parquet)
COPY d FROM '/etc/passwd'
ATTACH ':memory:' AS q
ATTACH '{0}/x.db'
CREATE TABLE q AS SELECT 1
CREATE TEMP MACRO q(a) AS a
CREATE TYPE q AS ENUM ('a')
CREATE SEQUENCE s
PRAGMA add_parquet_key('a','b')
PRAGMA version
PRAGMA enable_external_access
CALL checkpoint()
CHECKPOINT
FORCE CHECKPOINT
EXECUTE q
PREPARE q AS SELECT 1
DEALLOCATE q
USE memory
LOAD json
INSTALL json
FORCE INSTALL json
EXPORT DATABASE '{0}/x'
IMPORT DATABASE '{0}/x'
VACUUM
ANALYZE
COMMENT ON TABLE d IS 'x'
ALTER TABLE d ADD COLUMN y INT
TRUNCATE d
GRANT ALL ON d TO x
KILL 1
LISTEN x
DO $$x$$
DECLARE c CURSOR FOR SELECT 1
FETCH 1
LOCK TABLE d
REFRESH x
""",
    "unknown-setting": """
SET kartosql_files_0 = 1
SET enable_external_access = true
RESET allowed_paths
""",
    "invalid-query": """
SELECT list_aggr(['a'], 'getvariable')
""",
    "unknown-column": """
SELECT * FROM d WHERE x IN duckdb_tables
SELECT current_setting
SELECT getvariable
""",
}
ATTEMPTS = [(code, sql) for code, lines in REFUSED.items() for sql in lines.strip().splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store")
    write_dataset(Store(str(path)), "d", pa.table({"x": [1, 2], "p": [0, 1]}), partition_on="p")
    return path


@pytest.fixture(scope="module")
def connection(folder: Path):
    with kartosql.connect(str(folder), timeout=20) as connection:
        yield connection


def _hashes(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.mark.parametrize(("code", "sql"), ATTEMPTS)
def test_an_attempt_is_refused_with_its_code_and_changes_nothing(folder, connection, code, sql):
    before = _hashes(folder)
    sql = sql.replace("{0}", str(folder))
    with pytest.raises(KartosqlError) as e:
        connection.sql(sql).rows()
    assert e.value.code == code, e.value
    if code == "function-not-allowed":
        assert e.value.span is not None
        # The message names the function, and the place is that of its name.
        assert sql[slice(*e.value.span)].strip('"') in e.value.message
    assert _hashes(folder) == before
    assert connection.sql("SELECT sum(x) FROM d").rows() == [(3,)]


def test_there_are_many_attempts():
    assert len({sql for _, sql in ATTEMPTS}) >= 250


CONTEXTS = """
{}
WITH q AS ({}) SELECT count(*) FROM q
SELECT (SELECT count(*) FROM ({}) AS q)
SELECT * FROM d WHERE EXISTS ({})
SELECT x FROM d ORDER BY (SELECT count(*) FROM ({}) AS q)
({}) UNION ALL ({})
DESCRIBE {}
VERIFY {}
""".strip().splitlines()
_QUERIES = [sql for _, sql in ATTEMPTS if sql.startswith(("SELECT", "FROM", "WITH"))]
IN_PLACES = [context.replace("{}", sql) for sql in _QUERIES for context in CONTEXTS]
EVERY = 1 if os.environ.get("KARTOSQL_ABUSE") == "all" else 7  # one of so many, in turn of all places


@pytest.mark.process
def test_no_attempt_succeeds_in_a_worker_in_any_place_of_a_statement(folder):
    before = _hashes(folder)
    chosen = [sql.replace("{0}", str(folder)) for sql in IN_PLACES[::EVERY]]
    with kartosql.connect(str(folder), untrusted=True, timeout=20) as connection:
        done = []
        for sql in chosen:
            try:
                done.append((sql, connection.sql(sql).rows()))
            except KartosqlError:
                continue
        assert done == []
        assert connection.sql("SELECT sum(x) FROM d").rows() == [(3,)]
    assert len(IN_PLACES) > 1500
    assert _hashes(folder) == before


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT getvariable\u200b('kartosql_opened') FROM d",
        "SELECT getvariable\ufeff('kartosql_opened') FROM d",
        "SELECT getvariable\u00a0('kartosql_opened') FROM d",
        "SELECT getvariable\u3000('kartosql_opened') FROM d",
        "SELECT getvariable -- ;\n ('kartosql_opened') FROM d",
        "SELECT * FROM read_text\u2060('/etc/passwd')",
        "SELECT 'it''s', $1, getvariable('kartosql_opened')",
    ],
)
def test_odd_spaces_and_comments_hide_no_name(connection, sql):
    with pytest.raises(KartosqlError) as e:
        connection.sql(sql).rows()
    assert e.value.code == "function-not-allowed"


@pytest.mark.parametrize("method", ["explain", "describe"])
def test_a_refused_query_is_neither_explained_nor_described(connection, method):
    sql = "SELECT * FROM read_text('/etc/passwd')"
    with pytest.raises(KartosqlError) as e:
        connection.explain(sql) if method == "explain" else connection.sql(f"DESCRIBE {sql}")
    assert e.value.code == "function-not-allowed"


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT 1 /* /* */, getvariable('kartosql_opened') --*/\n, 2", [(1, 2)]),
        ("SELECT x /* getvariable('a') */ FROM d -- read_text('b')\nWHERE x = 1", [(1,)]),
        ("SELECT 'getvariable(''a'')', $$read_text('x')$$", [("getvariable('a')", "read_text('x')")]),
        ("WITH query(a) AS (SELECT 1) SELECT * FROM query", [(1,)]),
        ("WITH RECURSIVE duckdb_views AS (SELECT 1 AS a) FROM duckdb_views", [(1,)]),
        ("WITH d AS (SELECT 5 AS x) SELECT x FROM d", [(5,)]),
        ('WITH "__kartosql_0" AS (SELECT 7 AS y) SELECT x, y FROM d, "__kartosql_0" WHERE x = 1', [(1, 7)]),
        ("SELECT (copy) FROM (SELECT 1 AS copy)", [(1,)]),
        ("SELECT * FROM range(2) r(i), unnest([3]) u(j), generate_series(1, 1) g(k)", [(0, 3, 1), (1, 3, 1)]),
        ("SELECT list_transform([1], lambda v: v + 1), [v + 1 FOR v IN [1]], range(2)", [([2], [2], [0, 1])]),
        ("SELECT count(*) FROM json_each('[1,2]')", [(2,)]),
        ("SELECT count(*) FROM (DESCRIBE d)", [(2,)]),
        ("SELECT current_user IS NOT NULL, now() IS NOT NULL, version() IS NOT NULL", [(True, True, True)]),
    ],
)
def test_what_only_looks_like_an_attempt_runs(connection, sql, rows):
    assert connection.sql(sql).rows() == rows
