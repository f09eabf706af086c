"""Statistics of row groups against the rows themselves: no file with a matching row may be left out."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import builders
from kartosql.engines.duckdb.evaluator import Planner
from kartosql.engines.duckdb.footers import Footers
from kartosql.engines.duckdb.runtime import Instance
from kartosql.engines.duckdb.statement import FileAccess
from kartosql.engines.duckdb.types import sql_type
from kartosql.formats.kartothek.snapshot import Snapshot
from kartosql.store import Store
from trees import tree_of

NAN, INF = float("nan"), float("inf")
DAY = dt.date(2020, 3, 27)
MOMENT = dt.datetime(2020, 3, 28, 22, 59, 59, 999999)
FILES = 40
ROUNDS = 150
TEXTS = ["", "a", "a\0", "a%", "aB", "ab", "abc", "b", "it", "it's", *[f"k{i:02}" for i in range(30)]]
TEXTS += ["z" * 100, "é", "日本", "\U0001f600"]


class Files:
    """A table of FILES files with one column ``x``, and what a planner learnt from their footers."""

    def __init__(self, store: Store, type_: pa.DataType, files: list[pa.Array], **options: Any) -> None:
        self.footers = Footers()
        self.planner = Planner(Instance(store, {}), FileAccess(store), self.footers)
        builders.write_dataset(
            store, "d", {"x": type_, "n": pa.int64()}, [f"n={n}" for n in range(len(files))], partition_keys=["n"]
        )
        self.table = Snapshot(store).dataset("d").tables["table"]
        for n, (key, values) in enumerate(zip(self.table.files, files, strict=True)):
            sink = pa.BufferOutputStream()
            kept = {**options, "write_statistics": options.get("write_statistics", n != 3)}
            pq.write_table(pa.table({"x": values}), sink, row_group_size=3, **kept)
            store.put(key, bytes(sink.getvalue()))
        self.declared = {"x": sql_type(self.table.types["x"])}
        owners = [n for n, values in enumerate(files) for _ in range(len(values))]
        rows = pa.chunked_array(files, type_).cast(self.table.types["x"])
        self.planner.register("all_rows", pa.table({"file": pa.array(owners, pa.int32()), "v": rows}))

    def kept(self, predicate: str, parameters: dict[str, Any]) -> frozenset[int] | None:
        evaluator = self.planner
        return evaluator.statistics(
            self.table, "x", tree_of(evaluator, predicate, parameters), parameters, self.table.all_files
        )

    def matching(self, predicate: str, parameters: dict[str, Any]) -> set[int]:
        rows = self.planner.rows(f"SELECT DISTINCT file FROM all_rows WHERE {predicate}", parameters)
        return {file for (file,) in rows}


@pytest.fixture
def make(local: Store) -> Iterator[Callable[..., Files]]:
    made: list[Files] = []

    def make(*args: Any, **options: Any) -> Files:
        made.append(Files(local, *args, **options))
        return made[-1]

    yield make
    for files in made:
        files.planner.close()


def _days(step: int) -> list[Any]:
    return [DAY + dt.timedelta(days=step * i) for i in range(-30, 30)]


def _moments() -> list[Any]:
    return [MOMENT + dt.timedelta(minutes=17 * i) for i in range(-30, 30)]


# Of each type: ascending values, and how constants to compare them with are written.
TYPES: dict[str, tuple[pa.DataType, list[Any], list[str]]] = {
    "int8": (pa.int8(), list(range(-128, 128, 4)), ["{}", "'{}'", "{}.5", "{}::BIGINT", "1e{}", "300"]),
    "int32": (pa.int32(), list(range(-90, 90, 3)), ["{}", "'{}'", "{}.5", "{}::DOUBLE", "{}::FLOAT", "2 + {}"]),
    "int64": (
        pa.int64(),
        sorted([2**53 + i for i in range(-9, 9)] + [-(2**63), 2**63 - 1, *range(-9, 9)]),
        ["{}", "'{}'", "{}::DOUBLE", "{}::FLOAT", "{}.0", "{}::HUGEINT"],
    ),
    "uint64": (pa.uint64(), [0, 1, *range(2**63 - 5, 2**63 + 5), 2**64 - 1], ["{}", "-1", "{}::DOUBLE", "'{}'"]),
    "bool": (pa.bool_(), [False, True], ["{}", "'{}'", "1"]),
    "float64": (
        pa.float64(),
        [-INF, -1e300, *[i / 10 for i in range(-20, 0)], -0.0, 0.0, *[i / 10 for i in range(1, 20)], 1e16, INF],
        ["'{}'", "'{}'::DOUBLE", "0.1", "0.1::DECIMAL(38,30)", "1", "'nan'", "0.3::FLOAT", "1.5::DECIMAL(9,3)"],
    ),
    "float32": (
        pa.float32(),
        [*[i / 10 for i in range(-20, 20)], INF],
        ["'{}'", "'{}'::FLOAT", "0.1", "0.1::DOUBLE", "'nan'", "1"],
    ),
    "decimal": (
        pa.decimal128(12, 2),
        [Decimal(i) / 4 for i in range(-40, 40)],
        ["{}", "'{}'", "{}::DOUBLE", "{}::DECIMAL(38,10)", "1", "0.125"],
    ),
    "date": (
        pa.date32(),
        _days(1),
        ["'{}'", "DATE '{}'", "TIMESTAMP '{} 00:00:01'", "TIMESTAMPTZ '{} 00:00:00+00'", "'{} 23:00:00'::TIMESTAMP_NS"],
    ),
    "timestamp": (
        pa.timestamp("us"),
        _moments(),
        ["'{}'", "TIMESTAMP '{}'", "DATE '2020-03-29'", "TIMESTAMPTZ '{}+00'", "TIMESTAMPTZ '{}'", "'{}'::TIMESTAMP_S"],
    ),
    "timestamp_ms": (pa.timestamp("ms"), [m.replace(microsecond=0) for m in _moments()], ["'{}'", "TIMESTAMP '{}'"]),
    "timestamptz": (
        pa.timestamp("us", "UTC"),
        _moments(),
        ["'{}+00'", "TIMESTAMPTZ '{}+00'", "TIMESTAMPTZ '{}'", "TIMESTAMP '{}'", "DATE '2020-03-29'", "'{}'"],
    ),
    "time": (pa.time64("us"), [dt.time(h, 30) for h in range(24)], ["'{}'", "TIME '{}'"]),
    "string": (pa.string(), TEXTS, ["'{}'", "'{}'::VARCHAR", "upper('{}')", "5"]),
}
OPERATORS = ["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]


def _clustered(random_: random.Random, name: str) -> list[pa.Array]:
    type_, pool, _ = TYPES[name]
    files = []
    for n in range(FILES):
        at = random_.randrange(len(pool))
        values: list[Any] = random_.choices(pool[at : at + 4], k=random_.randint(0, 8))
        if name.startswith("float") and n % 3 == 0:
            values += [NAN] * random_.randint(0, 2)
        if n % 4 == 0:
            values += [None] * random_.randint(0, 4)
        if n % 13 == 5:
            values = [None] * 5
        random_.shuffle(values)
        files.append(pa.array(values, type_, from_pandas=False))
    return files


def _predicate(random_: random.Random, name: str) -> tuple[str, dict[str, Any]]:
    _, pool, forms = TYPES[name]
    parameters: dict[str, Any] = {}

    def constant(form: str | None = None) -> str:
        value = random_.choice(pool)
        chance = random_.random()
        if chance < 0.05:
            return "NULL"
        if chance < 0.15:
            parameters[f"p{len(parameters)}"] = value
            return f"$p{len(parameters) - 1}"
        return (form or random_.choice(forms)).format(str(value).replace("'", "''"))

    same = random_.choice(forms) if random_.random() < 0.7 else None
    kind = random_.randrange(9)
    if kind == 8:
        sides = [f"v {random_.choice(OPERATORS)} {constant()}" for _ in range(2)]
        text = random_.choice([" AND ", " OR "]).join(sides)
    elif kind < 3:
        sides = ["v", constant()]
        if random_.random() < 0.3:
            sides.reverse()
        text = f"{sides[0]} {random_.choice(OPERATORS)} {sides[1]}"
    elif kind == 3:
        text = f"v {random_.choice(['', 'NOT '])}BETWEEN {constant(same)} AND {constant(same)}"
    elif kind == 4:
        if random_.random() < 0.3:  # one that is compared as a whole
            listed = ", ".join(forms[0].format(str(v).replace("'", "''")) for v in random_.choices(pool, k=40))
        else:
            listed = ", ".join(constant(same) for _ in range(random_.choice([1, 2, 5])))
        text = f"v {random_.choice(['', 'NOT '])}IN ({listed})"
    elif kind == 5:
        text = f"v IS {random_.choice(['', 'NOT '])}NULL"
    elif name == "string":
        prefix = str(random_.choice(pool))[: random_.choice([1, 2, 200])].replace("'", "''")
        forms = ["v LIKE '{}%'", "v LIKE '{}_%'", "starts_with(v, '{}')", "v NOT LIKE '{}%'", "v ILIKE '{}%'"]
        text = random_.choice(forms).format(prefix)
    else:
        text = "v" if name == "bool" else f"v::VARCHAR > {constant()}"
    return (f"(NOT ({text}))" if random_.random() < 0.2 else f"({text})"), parameters


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.parametrize("name", TYPES)
def test_files_with_a_matching_row_are_never_left_out(make, name, zone):
    random_ = random.Random(f"{name} {zone}")
    files = make(TYPES[name][0], _clustered(random_, name))
    files.planner.run(f"SET TimeZone = '{zone}'")
    pruned = compared = 0
    for _ in range(ROUNDS):
        predicate, parameters = _predicate(random_, name)
        kept = files.kept(predicate, parameters)
        try:
            matching = files.matching(predicate, parameters)
        except duckdb.Error:
            continue
        compared += 1
        if kept is not None:
            assert matching <= kept, (predicate, parameters, sorted(matching - kept))
            pruned += len(kept) < FILES
    assert compared > ROUNDS // 2
    assert pruned > ROUNDS // 6


def test_bounds_say_nothing_where_a_cast_changes_the_order(make):
    # Half past two was not there: it is half past three, after three o'clock.
    moments = pa.array([dt.datetime(2020, 3, 29, 2, 30), dt.datetime(2020, 3, 29, 3)], pa.timestamp("us"))
    files = make(moments.type, [moments] * FILES)
    files.planner.run("SET TimeZone = 'Europe/Berlin'")
    for predicate in ("(v = TIMESTAMPTZ '2020-03-29 01:30:00+00')", "(v = TIMESTAMPTZ '2020-03-29 03:30:00')"):
        assert files.matching(predicate, {}) == set(range(FILES))
        assert files.kept(predicate, {}) in (None, files.table.all_files)


@pytest.mark.parametrize("end", ["1e17", "1e17::DOUBLE", "1e17::DOUBLE + 1"])
def test_a_text_takes_the_type_that_several_constants_have_in_common(make, end):
    # Both numbers are one as DOUBLE, which the second constant makes of all.
    files = make(pa.int64(), [pa.array([2**53], pa.int64())] * FILES)
    predicate = f"(v BETWEEN '{2**53 + 1}' AND {end})"
    assert files.matching(predicate, {}) == set(range(FILES))
    assert files.kept(predicate, {}) in (None, files.table.all_files)
