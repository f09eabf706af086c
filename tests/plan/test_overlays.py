"""Files that hold cells of earlier files: the last one wins, whatever is pruned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import builders
import kartosql
from kartosql.formats.kartothek.cube import Cube
from kartosql.store import Store
from written import build_cube

CUBE = Cube("c", ["x"], ["p"], index_columns=["i1", "j1"])


def _seed(**columns: list[Any]) -> pa.Table:
    size = len(columns["x"])
    base = {"p": [0] * size, "i1": [0] * size, "v": [""] * size}
    return pa.table({**{k: v for k, v in base.items() if k not in columns}, **columns})


@pytest.fixture
def make(local: Store) -> Callable[..., Any]:
    """Build a cube with the enrichment ``e``, append writes, and return its connection."""

    def make(*writes: tuple[str, pa.Table, str | None], own_keys: bool = False) -> Any:
        seed = _seed(x=[0, 1, 2, 3], p=[0, 0, 1, 1], i1=[10, 11, 12, 13], v=["a", "b", "c", "d"])
        key = {"q": ["u", "u", "w", "w"]} if own_keys else {"p": [0, 0, 1, 1]}
        e = pa.table({"x": [0, 1, 2, 3], **key, "j1": [20, 21, 22, 23], "w": ["A", "B", "C", "D"]})
        build_cube(local, CUBE, {"seed": seed, "e": e}, partition_on={"e": ["q"]} if own_keys else None)
        for name, rows, tail in writes:
            builders.append(local, f"c++{name}", rows, tail)
        return kartosql.connect(local.url)

    return make


def _files(connection: Any, sql: str) -> dict[str, int]:
    (scan,) = connection.explain(sql).to_dict()["scans"]
    return {part["dataset"]: len(part["files"]) for part in scan["datasets"]}


NEW = _seed(x=[0], i1=[99], v=["new"])


@pytest.mark.parametrize("tail", [None, "part-0"])
@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("i1 = 10", []),
        ("i1 = 99", [(0, "new")]),
        ("v = 'a'", []),
        ("v = 'new'", [(0, "new")]),
        ("i1 < 12", [(1, "b")]),
        ("p = 0 AND i1 = 10", []),
        ("x = 0 AND i1 = 10", []),
        ("x = 0", [(0, "new")]),
        ("i1 + p = 10", []),
        ("i1 IN (10, 12)", [(2, "c")]),
        ("i1 = 10 OR i1 = 11", [(1, "b")]),
        ("NOT i1 > 10", []),
    ],
)
def test_a_condition_never_brings_an_overwritten_row_back(make, where, rows, tail):
    connection = make(("seed", NEW, tail))
    for table in ("c", "c.seed", '"c++seed"'):
        assert connection.sql(f"SELECT x, v FROM {table} WHERE {where} ORDER BY x").rows() == rows


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("j1 = 20", []),
        ("j1 = 77", [(0, "Z")]),
        ("w = 'A'", []),
        ("j1 <= 21", [(1, "B")]),
        ("j1 IN (20, 22)", [(2, "C")]),
    ],
)
@pytest.mark.parametrize("own_keys", [False, True])
def test_an_enrichments_overwritten_rows_stay_overwritten(make, own_keys, where, rows):
    # With partition keys of its own the later row may stand in another folder.
    key = {"q": ["w"]} if own_keys else {"p": [0]}
    connection = make(("e", pa.table({"x": [0], **key, "j1": [77], "w": ["Z"]}), None), own_keys=own_keys)
    for table in ("c", "c.e"):
        assert connection.sql(f"SELECT x, w FROM {table} WHERE {where} ORDER BY x").rows() == rows


def test_a_condition_on_an_enrichments_own_key_sees_only_the_last_row(make):
    connection = make(("e", pa.table({"x": [0], "q": ["w"], "j1": [77], "w": ["Z"]}), None), own_keys=True)
    for table in ("c", "c.e"):
        assert connection.sql(f"SELECT x, w FROM {table} WHERE q = 'u'").rows() == [(1, "B")]
        assert connection.sql(f"SELECT x, w FROM {table} WHERE q = 'w' ORDER BY x").rows() == [
            (0, "Z"), (2, "C"), (3, "D"),
        ]  # fmt: skip


def test_a_later_file_without_a_matching_cell_is_left_out_where_no_index_tells(make):
    # The enrichment has no index of its dimension: the key columns of both files decide.
    connection = make(("e", pa.table({"x": [1], "p": [0], "j1": [77], "w": ["Z"]}), None))
    assert _files(connection, "SELECT x, w FROM c.e WHERE j1 = 20") == {"e": 1}
    assert _files(connection, "SELECT x, w FROM c.e WHERE j1 = 21") == {"e": 2}
    assert connection.sql("SELECT x, w FROM c.e WHERE j1 IN (20, 21)").rows() == [(0, "A")]


def test_a_probe_tells_columns_apart_that_differ_only_in_case(local):
    cube = Cube("k", ["x"], ["p"], index_columns=["i"])
    rows = {"x": [0, 1], "p": [0, 0], "i": [1, 1], "v": ["a", "b"], "V": ["c", "d"]}
    build_cube(local, cube, pa.table(rows))
    later = {"x": [0], "p": [0], "i": [2], "v": ["e"], "V": ["f"]}
    builders.append(local, "k++seed", pa.table(later), None)
    connection = kartosql.connect(local.url)
    assert connection.sql("SELECT x FROM k WHERE i = 1 AND \"V\" = 'c'").rows() == []
    assert connection.sql("SELECT x FROM k WHERE i = 1 AND \"V\" = 'd'").rows() == [(1,)]
    assert connection.sql("SELECT x FROM k WHERE i = 1 AND \"V\" IN ('c', 'd')").rows() == [(1,)]


def test_an_overwritten_partner_is_not_joined(make):
    connection = make(("e", pa.table({"x": [0], "p": [0], "j1": [77], "w": ["Z"]}), None))
    assert connection.sql("SELECT x, w FROM c WHERE w IS NULL OR j1 = 20").rows() == []
    assert connection.sql("SELECT count(*) FROM c").rows() == [(4,)]


def test_of_several_writes_the_last_one_counts(make):
    writes = [("seed", _seed(x=[0, 1], i1=[i, i + 1], v=[f"n{i}", f"m{i}"]), None) for i in (50, 40, 60)]
    connection = make(*writes, ("seed", _seed(x=[1], i1=[5], v=["last"]), None))
    assert connection.sql("SELECT x, v FROM c WHERE p = 0 ORDER BY x").rows() == [(0, "n60"), (1, "last")]
    for gone in (40, 41, 50, 51, 61):
        assert connection.sql(f"SELECT x FROM c WHERE i1 = {gone}").rows() == []
    assert connection.sql("SELECT x, v FROM c WHERE i1 IN (60, 5) ORDER BY x").rows() == [(0, "n60"), (1, "last")]


def test_the_order_of_the_document_decides_not_that_of_names(make, local):
    connection = make(("seed", NEW, None))
    document = builders.read_document(local, "c++seed")
    document["partitions"] = dict(reversed(document["partitions"].items()))
    builders.write_document(local, document)
    assert connection.sql("SELECT x, v FROM c WHERE x = 0").rows() == [(0, "a")]
    assert connection.sql("SELECT x, v FROM c WHERE i1 = 99").rows() == []
    assert connection.sql("SELECT x, v FROM c WHERE i1 = 10").rows() == [(0, "a")]


def test_the_last_of_equal_cells_in_one_file_counts(make, local):
    connection = make()
    key = builders.read_document(local, "c++seed")["partitions"]
    first = next(iter(key.values()))["files"]["table"]
    rows = builders.read_parquet(local, first)
    document = builders.read_document(local, "c++seed")
    label = "p=0/part-7"
    document["partitions"][label] = {"files": {"table": f"c++seed/table/{label}.parquet"}}
    twice = pa.concat_tables([rows, rows.set_column(rows.column_names.index("v"), "v", pa.array(["y", "z"]))])
    local.put(f"c++seed/table/{label}.parquet", builders.parquet(twice))
    document["indices"] = {}  # which would have to tell of the new file
    builders.write_document(local, document)
    assert connection.sql("SELECT x, v FROM c WHERE p = 0 ORDER BY x").rows() == [(0, "y"), (1, "z")]


def test_the_same_cell_in_two_partitions_is_two_rows(make):
    connection = make(("seed", _seed(x=[0], p=[1], i1=[1], v=["other"]), None))
    assert connection.sql("SELECT p, v FROM c WHERE x = 0 ORDER BY p").rows() == [(0, "a"), (1, "other")]


# -- what is still left out ----------------------------------------------------------------------


def test_files_of_one_write_are_known_to_be_disjoint(make):
    connection = make()
    assert _files(connection, "SELECT x FROM c WHERE i1 = 10") == {"seed": 1}
    assert "overlay" not in str(connection.explain("SELECT x FROM c WHERE i1 = 10"))


def test_a_later_file_is_kept_only_if_it_may_hide_a_row(make):
    connection = make(("seed", NEW, None))
    # The later file hides x = 0, which stands in the file with i1 = 10 and 11.
    assert _files(connection, "SELECT x FROM c WHERE i1 = 10") == {"seed": 2}
    assert _files(connection, "SELECT x FROM c WHERE i1 = 11") == {"seed": 1}
    assert _files(connection, "SELECT x FROM c WHERE i1 = 12") == {"seed": 1}
    assert _files(connection, "SELECT x FROM c WHERE i1 = 99") == {"seed": 1}


def test_a_later_file_without_a_common_cell_is_left_out(make):
    connection = make(("seed", _seed(x=[7], i1=[99], v=["new"]), None))
    assert _files(connection, "SELECT x FROM c WHERE i1 = 10") == {"seed": 1}


def test_key_conditions_leave_out_later_files_too(make):
    connection = make(("seed", NEW, None))
    assert _files(connection, "SELECT x FROM c WHERE p = 1") == {"seed": 1}
    assert _files(connection, "SELECT x FROM c WHERE x = 1") == {"seed": 1}
    assert _files(connection, "SELECT x FROM c WHERE x = 0") == {"seed": 2}


def test_a_plain_dataset_has_no_overlays(local):
    from written import write_dataset

    rows = pa.table({"x": [0, 0], "p": [0, 0], "i": [1, 1]})
    write_dataset(local, "d", rows, partition_on="p", index_columns=["i"])
    builders.append(local, "d", rows)
    connection = kartosql.connect(local.url)
    assert connection.sql("SELECT count(*) FROM d WHERE i = 1").rows() == [(4,)]


def test_a_later_file_that_cannot_be_read_is_not_left_out(make, local):
    connection = make(("e", pa.table({"x": [0], "p": [0], "j1": [77], "w": ["Z"]}), None))
    later = list(builders.read_document(local, "c++e")["partitions"].values())[-1]["files"]["table"]
    whole = local.read(later)
    local.put(later, whole[:4] + b"\xff" * 60 + whole[64:])  # its footer can be read
    with pytest.raises(kartosql.KartosqlError):
        connection.sql("SELECT x, w FROM c.e WHERE j1 = 20").rows()
