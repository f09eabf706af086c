from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

import kartosql
from kartosql.errors import SqlError

np = pytest.importorskip("numpy")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")


@pytest.fixture(scope="module")
def con(tmp_path_factory):
    with kartosql.connect(tmp_path_factory.mktemp("store")) as con:
        con.create_dataset("d", pa.table({"p": [0, 1, 2, 3], "x": [0, 1, 2, 3]}), partition_on=["p"])
        yield con


@pytest.mark.parametrize(
    "value",
    [
        [1, np.int64(2)],
        {1, 2},
        frozenset([1, 2]),
        range(1, 3),
        np.array([1, 2]),
        pd.Series([1, 2]),
        pd.Index([1, 2]),
        pd.Categorical([1, 2]),
        pl.Series([1, 2]),
        pa.array([1, 2]),
        pa.chunked_array([[1], [2]]),
    ],
    ids=lambda value: f"{type(value).__module__}.{type(value).__name__}",
)
def test_a_parameter_may_be_a_collection(con, value):
    assert con.sql("SELECT list_sort(?)", [value]).rows() == [([1, 2],)]
    query = con.sql("SELECT x FROM d WHERE p IN $few ORDER BY x", {"few": value})
    assert query.rows() == [(1,), (2,)]
    assert query.stats["files_read"] == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int8(-3), -3),
        (np.uint64(2**63), 2**63),
        (np.float32(1.5), 1.5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.datetime64("2024-01-02T03:04:05"), dt.datetime(2024, 1, 2, 3, 4, 5)),
        (pd.Timestamp("2024-01-02 03:04:05"), dt.datetime(2024, 1, 2, 3, 4, 5)),
        (pd.NA, None),
        (pd.NaT, None),
        (pa.scalar(7), 7),
        ({"a": np.int64(1)}, {"a": 1}),
    ],
)
def test_a_parameter_may_be_a_scalar_of_numpy_pandas_or_arrow(con, value, expected):
    assert con.sql("SELECT $v", {"v": value}).rows() == [(expected,)]


@pytest.mark.parametrize(
    ("sql", "parameters"),
    [("?", str), ("?", Path), ("$1", str), ("$place", "place"), (":place", "place")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_what_is_attached_may_be_a_parameter(con, tmp_path, sql, parameters):
    (tmp_path / "a.csv").write_text("a\n1\n")
    place = tmp_path / "a.csv"
    given = {parameters: str(place)} if isinstance(parameters, str) else [parameters(place)]
    con.sql(f"ATTACH OR REPLACE {sql} AS given (TYPE csv)", given)
    assert con.sql("SELECT a FROM given").rows() == [(1,)]
    assert con.sql("SHOW ATTACHED").arrow()["url"].to_pylist() == [str(place)]


@pytest.mark.parametrize(
    ("sql", "given"), [("?", None), ("?", [1]), ("?", ["a", "b"]), ("$a", {"b": "a"}), ("'a.csv'", ["a.csv"])]
)
def test_attach_takes_the_parameters_it_has(con, sql, given):
    with pytest.raises(SqlError) as e:
        con.sql(f"ATTACH {sql} AS wrong (TYPE csv)", given)
    assert e.value.code == "invalid-parameters"
