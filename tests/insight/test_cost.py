from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kartosql
from kartosql.errors import FormatError, LimitError
from kartosql.insight.explain import sample


def _cost(con, sql, **flags):
    return con.sql(f"EXPLAIN COST {sql}").content


def _chunks(con, like, columns):
    """Return the bytes of columns in files, as pyarrow tells them."""
    total = 0
    for key in (r["key"] for r in con.sql("SHOW FILES FROM c").arrow().to_pylist()):
        if like in key:
            metadata = pq.ParquetFile(f"{con.store.local_path('')}{key}").metadata
            groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
            chunks = [g.column(i) for g in groups for i in range(g.num_columns)]
            total += sum(c.total_compressed_size for c in chunks if c.path_in_schema in columns)
    return total


def test_cost_is_that_of_the_columns_used_in_the_files_left(con):
    cost = _cost(con, "SELECT v1 FROM c WHERE p = 2")
    (item,) = cost.items
    assert (item.table, item.dataset, item.files, item.rows, item.columns) == ("c", "seed", 1, 10, ("v1",))
    assert item.column_bytes == cost.column_bytes == _chunks(con, "c++seed/table/p=2/", {"v1"}) > 0
    assert item.bytes == con.explain("SELECT v1 FROM c WHERE p = 2").bytes_selected


def test_joined_datasets_are_read_with_their_keys_but_partition_keys_are_in_no_file(con):
    cost = _cost(con, "SELECT v1, v2 FROM c WHERE p = 3")
    assert [(i.dataset, i.columns) for i in cost.items] == [("seed", ("v1", "x")), ("e", ("v2", "x"))]


def test_nothing_is_opened_for_what_metadata_tell(con):
    assert _cost(con, "SELECT count(*) FROM c").items == ()
    assert "0 files" in str(_cost(con, "SELECT count(*) FROM c"))
    assert con.sql("EXPLAIN COST (FORMAT TABLE) SELECT count(*) FROM c").rows() == []


def test_large_scans_are_measured_in_a_sample_and_say_so(con, monkeypatch):
    whole = _cost(con, "SELECT v1 FROM c")
    monkeypatch.setattr(sample, "__defaults__", (2,))
    cost = _cost(con, "SELECT v1 FROM c")
    (item,) = cost.items
    assert (item.files, item.footers, item.rows) == (4, 2, 40)
    assert cost.bytes == pytest.approx(whole.bytes, rel=0.05)
    assert "c, seed: scaled up from 2 of 4 files" in str(cost)


def test_planning_is_measured(con):
    cost = _cost(con, "SELECT v1 FROM c WHERE i1 = 3")
    assert cost.planning["lists"] >= 1
    assert cost.planning["bytes_read"] > 0


def test_max_bytes_refuses_before_anything_is_read_and_cost_says_so(con):
    size = con.explain("SELECT v1 FROM c").bytes_selected
    con.sql(f"SET max_bytes = {size - 1}")
    cost = _cost(con, "SELECT v1 FROM c")
    assert cost.is_refused
    assert "refused with byte-budget" in str(cost)
    with pytest.raises(LimitError) as e:
        con.sql("SELECT v1 FROM c").rows()
    assert e.value.code == "byte-budget"
    con.sql(f"SET max_bytes = {size}")
    assert "allowed" in str(_cost(con, "SELECT v1 FROM c"))
    assert len(con.sql("SELECT v1 FROM c").rows()) == 40


def test_cost_in_every_format(con):
    sql = "SELECT v1, v2 FROM c WHERE p = 3"
    found = json.loads(con.sql(f"EXPLAIN COST (FORMAT JSON) {sql}").rows()[0][0])
    table = con.sql(f"EXPLAIN (COST, FORMAT TABLE) {sql}").arrow()
    assert found["bytes"] == sum(table["bytes"].to_pylist())
    assert found["items"] == table.to_pylist()
    assert "<td>c, e</td>" in con.sql(f"EXPLAIN COST {sql}")._repr_html_()


def test_registered_data_cost_nothing(con):
    con.register("r", pa.table({"a": [1]}))
    assert _cost(con, "SELECT a FROM r").items == ()


def test_parameters_work(con):
    assert len(con.sql("EXPLAIN COST SELECT v1 FROM c WHERE p = ?", [1]).content.items) == 1


def test_a_file_with_encrypted_columns_is_told_as_damaged(tmp_path):
    pe = pytest.importorskip("pyarrow.parquet.encryption")
    from kartosql.formats.xskipper import segment

    with kartosql.connect(tmp_path) as con:
        con.create_dataset("t", pa.table({"a": [1, 2], "b": [3, 4]}))
        (path,) = tmp_path.glob("t/table/*.parquet")
        made, connection = segment.encryption_factory({"f": b"1" * 16, "c": b"2" * 16})
        wanted = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["b"]}, plaintext_footer=True)
        pq.write_table(
            pa.table({"a": [1, 2], "b": [3, 4]}),
            path,
            encryption_properties=made.file_encryption_properties(connection, wanted),
        )
    with kartosql.connect(tmp_path) as con:
        for report in ("EXPLAIN COST", "ADVISE"):
            with pytest.raises(FormatError, match="encrypted or damaged") as e:
                con.sql(f"{report} SELECT a FROM t WHERE a > 1").rows()
            assert e.value.code == "corrupt-file"
