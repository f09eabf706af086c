"""The original's writing calls, one by one: what they leave behind, and what they refuse."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

import golden
import kartosql
from kartosql.errors import KartosqlError, UsageError
from kartosql.formats.kartothek.cube import Cube

CASES = "kartothek/cases_write.json"

# What the original tells in words, as codes.
CODES = {
    "seed missing": "invalid-cube",
    "null dimension": "null-in-key",
    "null partition": "null-in-key",
    "null index": "null-in-key",
    "duplicate cell": "duplicate-cells",
    "missing dimension": "invalid-data",
    "missing partition": "invalid-data",
    "enrich without dimension": "invalid-data",
    "enrich without partition column": "invalid-data",
    "unspecified partition column": "invalid-data",
    "payload overlap on build": "invalid-data",
    "payload overlap on extend": "invalid-data",
    "dimension type mismatch": "invalid-data",
    "dimension signedness differs": "invalid-data",
    "empty seed": "invalid-data",
    "exists": "dataset-exists",
    "partial overwrite": "dataset-exists",
    "extend seed": "invalid-cube",
    "extend existing": "dataset-exists",
    "extend without cube": "unknown-table",
    "append unknown dataset": "unknown-dataset",
    "append wrong type": "incompatible-schema",
    "append int as float": "incompatible-schema",
    "append missing column": "incompatible-schema",
    "append extra column": "incompatible-schema",
    "remove on non-partition column": "invalid-condition",
    "remove unknown dataset": "unknown-dataset",
    "seed partition_on differs": "invalid-cube",
    "partition_on duplicates": "invalid-argument",
    "metadata for unknown dataset": "invalid-argument",
}


def _array(column: list[Any]) -> pa.Array:
    type_, values = column
    named = {"string": pa.string(), "double": pa.float64(), "null": pa.null()}
    return pa.array(golden.decode(values), named.get(type_) or getattr(pa, type_)())


def _frames(data: list[dict[str, Any]]) -> list[dict[str, pa.Table]]:
    return [{name: pa.table({c: _array(v) for c, v in f.items()}) for name, f in part.items()} for part in data]


def _conditions(given: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(c["column"], c["op"], golden.decode(c["value"])) for c in given]


def _run(con: kartosql.Connection, cube: Cube, step: dict[str, Any]) -> None:
    arguments = {k: v for k, v in step.items() if k not in ("op", "data")}
    for name in ("conditions", "remove_conditions"):
        if name in arguments:
            arguments[name] = _conditions(arguments[name])
    data = [_frames(step["data"])] if "data" in step else []
    getattr(con, step["op"])(cube, *data, **arguments)


def _everything(con: kartosql.Connection) -> dict[str, bytes]:
    return {
        key: con.store.read(key)
        for entry in con.store.list_root()
        for key in (con.store.list_below(f"{entry.name}/") if entry.is_dir else [entry.name])
    }


def _datasets(con: kartosql.Connection) -> dict[str, Any]:
    found = {}
    for uuid in con.datasets():
        document = json.loads(con.store.read(f"{uuid}.by-dataset-metadata.json"))
        found[uuid.partition("++")[2]] = {
            "partition_keys": document["partition_keys"],
            "n_partitions": len(document["partitions"]),
            "secondary_indices": sorted(document.get("indices", {})),
        }
    return found


def _check_answer(con: kartosql.Connection, cube: Cube, case: dict[str, Any]) -> None:
    result = con.query_cube(cube)
    assert isinstance(result, kartosql.Query)
    assert result.columns == case["expected"]["columns"]
    assert [str(f.type) for f in result.schema] == case["expected"]["types"]
    golden.check_rows(case["id"], case["name"], case["expected"]["rows"], result.rows())


def _is_of_the_cube_alone(case: dict[str, Any]) -> bool:
    return "error" in case and case["error"]["at_step"] == -1


@pytest.mark.parametrize("case", golden.params(CASES, lambda c: not _is_of_the_cube_alone(c)))
def test_writing_does_what_the_original_does(case, tmp_path):
    cube = Cube(**case["cube"])
    with kartosql.connect(tmp_path) as con:
        for at, step in enumerate(case["steps"]):
            if case.get("error", {}).get("at_step") != at:
                _run(con, cube, step)
                continue
            before = _everything(con)
            with pytest.raises(KartosqlError) as e:
                _run(con, cube, step)
            assert e.value.code == CODES[case["name"]]
            assert _everything(con) == before
        if "expected" in case:
            _check_answer(con, cube, case)
            assert _datasets(con) == case["datasets_after"]
        elif isinstance(case.get("rows_after_failure"), int):
            assert con.query_cube(cube).arrow().num_rows == case["rows_after_failure"]
        else:
            with pytest.raises(KartosqlError):
                con.query_cube(cube).arrow()


@pytest.mark.parametrize("case", golden.params(CASES, _is_of_the_cube_alone))
def test_a_cube_that_the_original_refuses_is_refused(case):
    with pytest.raises(UsageError) as e:
        Cube(**case["cube"])
    assert e.value.code == "invalid-cube"
