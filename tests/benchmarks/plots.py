"""Draw cost against what grows: ``python -m tests.benchmarks.plots [--write] [--only files|rows|columns|datasets]``.

Each curve is CPU time, all threads together, as median of turns in which every way is asked once. ``--write`` draws
the curves into docs/images and puts the numbers below them into docs/performance.md; ``--draw`` measures nothing and
draws the numbers that stand there. Needs the extra ``benchmarks``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import kartosql
from tests.benchmarks.keyed_files import FOLDERS, ROWS, keyed_files, label
from tests.benchmarks.peers import PAGE, put_between
from tests.benchmarks.ratios import Way, in_turns

IMAGES = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "images")
MARKS = ("<!-- curves -->\n", "<!-- end of curves -->\n")
HELD = 12
SETTLED = 3.5  # seconds after which a file is taken for one that nobody writes any more
WARM = 30  # turns that do not count: within these the values of an index are collected, in portions
OPENED, ANEW, BARE = "kartosql", "kartosql, new connection", "DuckDB, given the file"


@dataclass(frozen=True)
class Curve:
    """What a question costs, in milliseconds of CPU time by way, for each of ``sizes``."""

    name: str
    title: str
    sizes: Sequence[int]
    costs: Mapping[str, Mapping[int, float]]


def measured(
    name: str, title: str, sizes: Sequence[int], ways: Callable[[int, ExitStack], dict[str, Way]], runs: int
) -> Curve:
    """Ask all ways in turns for each size."""
    costs: dict[str, dict[int, float]] = {}
    for size in sizes:
        with ExitStack() as stack:
            asked = ways(size, stack)
            answers = {way: _answer(ask(0)) for way, ask in asked.items()}
            first = next(iter(answers.values()))
            assert all(answer == first for answer in answers.values()), answers
            time.sleep(3.5)  # documents that were written in the last 3 seconds are read again for each statement
            for way, cost in in_turns(asked, runs, warm=WARM).items():
                costs.setdefault(way, {})[size] = median(cost.cpu) * 1000
        print(name, f"{size:,}", {way: round(found[size], 1) for way, found in costs.items() if size in found})
    return Curve(name, title, sizes, costs)


def _answer(rows: object) -> list[list[object]]:
    """Return rows as lists, with the digits that every order of adding gives."""
    plain = rows if isinstance(rows, list) else [row.values() for row in pa.table(rows).to_pylist()]
    return [[float(f"{value:.9g}") if isinstance(value, float) else value for value in row] for row in plain]


def by_files(runs: int, most: int) -> Curve:
    """Point queries by an index over 100 to 1,000,000 files of 1,000 rows; peers where they can read so many."""

    def ways(size: int, stack: ExitStack) -> dict[str, Way]:
        root = stack.enter_context(tempfile.TemporaryDirectory())
        keys = [size * (2 * at + 1) // (2 * HELD) for at in range(HELD)]
        files = keyed_files(root, size, keys)
        sql = "SELECT count(*) AS n, sum(v) AS v FROM {0} WHERE i = {1}"
        bare = stack.enter_context(duckdb.connect())
        found = _ours(stack, root, lambda turn: sql.format("t", keys[turn % HELD])) | {
            BARE: lambda turn: bare.sql(
                sql.format("read_parquet($1, hive_partitioning = false)", keys[turn % HELD]),
                params=[[files[turn % HELD]]],
            ).fetchall()
        }
        if size <= 10_000:
            glob = f"read_parquet('{root}/t/table/p=*/*.parquet', hive_partitioning = true)"
            found["DuckDB, glob"] = lambda turn: bare.sql(sql.format(glob, keys[turn % HELD])).fetchall()
        if size <= 100_000 and importlib.util.find_spec("deltalake") and importlib.util.find_spec("polars"):
            found |= _lakes(root, size, lambda table, turn: sql.format(table, keys[turn % HELD]))
        return found

    sizes = [size for size in (100, 1_000, 10_000, 100_000, 1_000_000) if size <= most]
    return measured("files", "Point query by an index, against the number of files", sizes, ways, runs)


def _ours(stack: ExitStack, root: str, text: Callable[[int], str]) -> dict[str, Way]:
    con = stack.enter_context(kartosql.connect(root, read_only=True, keep_answers=False))

    def anew(turn: int) -> object:
        with kartosql.connect(root, read_only=True, keep_answers=False) as other:
            return other.sql(text(turn)).rows()

    return {OPENED: lambda turn: con.sql(text(turn)).rows(), ANEW: anew}


def _lakes(root: str, size: int, text: Callable[[str, int], str]) -> dict[str, Way]:
    """Return delta-rs and Polars over a Delta table of the same files, with the least and greatest key of each."""
    import polars as pl
    from deltalake import DeltaTable, QueryBuilder, Schema

    folder = os.path.join(root, "t", "table")
    log = os.path.join(folder, "_delta_log")
    os.makedirs(log)
    schema = pa.schema({"i": pa.int64(), "v": pa.float64(), "p": pa.int64()})
    meta = {"id": "t", "format": {"provider": "parquet", "options": {}}, "schemaString": Schema.from_arrow(schema)}
    meta |= {"schemaString": Schema.from_arrow(schema).to_json(), "partitionColumns": ["p"], "configuration": {}}
    actions = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": meta | {"createdTime": 0}}]
    length = os.path.getsize(os.path.join(root, "other"))
    for key in range(size):
        name = f"{label(key)}.parquet"
        path = os.path.join(folder, name)
        stats = json.dumps({"numRecords": ROWS, "minValues": {"i": key}, "maxValues": {"i": key}})
        add = {"path": name, "partitionValues": {"p": str(key % FOLDERS)}, "modificationTime": 0, "dataChange": True}
        held = os.path.getsize(path) if os.path.exists(path) else length
        actions.append({"add": add | {"size": held, "stats": stats}})
    with open(os.path.join(log, f"{0:020}.json"), "w") as f:
        f.writelines(json.dumps(action) + "\n" for action in actions)
    DeltaTable(folder).create_checkpoint()
    kept = QueryBuilder().register("t", DeltaTable(folder))
    context = pl.SQLContext(t=pl.scan_delta(folder))
    return {
        "delta-rs": lambda turn: pa.table(kept.execute(text("t", turn)).read_all()),
        "delta-rs, new table": lambda turn: pa.table(
            QueryBuilder().register("t", DeltaTable(folder)).execute(text("t", turn)).read_all()
        ),
        "Polars": lambda turn: context.execute(text("t", turn), eager=True).to_arrow(),
    }


def by_rows(runs: int, most: int) -> Curve:
    """Point queries by an index over 100 files of more and more rows."""

    def ways(size: int, stack: ExitStack) -> dict[str, Way]:
        root = stack.enter_context(tempfile.TemporaryDirectory())
        keys = pa.array(range(size), pa.int64())
        rows = pa.table({"p": pc.divide(keys, size // 100), "i": keys, "v": pc.divide(pc.cast(keys, "double"), 7.0)})
        return _stored(stack, root, rows, "SELECT v FROM {0} WHERE i = {1}", size)

    sizes = [size for size in (10_000, 100_000, 1_000_000, 10_000_000) if size <= most]
    return measured("rows", "Point query by an index, against the number of rows in 100 files", sizes, ways, runs)


def by_columns(runs: int, most: int) -> Curve:
    """Point queries by an index over 100 files of more and more columns, of which two are used."""

    def ways(size: int, stack: ExitStack) -> dict[str, Way]:
        root = stack.enter_context(tempfile.TemporaryDirectory())
        keys = pa.array(range(10_000), pa.int64())
        values = pc.divide(pc.cast(keys, "double"), 7.0)
        columns = {f"c{at}": values for at in range(size - 3)}
        rows = pa.table({"p": pc.divide(keys, 100), "i": keys, "v": values} | columns)
        return _stored(stack, root, rows, "SELECT v FROM {0} WHERE i = {1}", 10_000)

    sizes = [size for size in (10, 30, 100, 300, 1_000) if size <= most]
    return measured("columns", "Point query by an index, against the number of columns", sizes, ways, runs)


def _stored(stack: ExitStack, root: str, rows: pa.Table, sql: str, size: int) -> dict[str, Way]:
    """Write rows as a dataset with the index ``i``, and return the ways to ask for one of them."""
    with kartosql.connect(root) as con:
        con.create_dataset("t", rows, partition_on=["p"], index_columns=["i"])
    files = {}
    for folder, _, names in os.walk(os.path.join(root, "t", "table")):
        for name in names:
            if "=" in folder:
                files[int(folder.rpartition("=")[2])] = os.path.join(folder, name)
    keys = [size * (2 * at + 1) // (2 * HELD) for at in range(HELD)]
    bare = stack.enter_context(duckdb.connect())
    glob = f"read_parquet('{root}/t/table/*/*.parquet', hive_partitioning = true)"
    return _ours(stack, root, lambda turn: sql.format("t", keys[turn % HELD])) | {
        BARE: lambda turn: bare.sql(
            sql.format("read_parquet($1, hive_partitioning = false)", keys[turn % HELD]),
            params=[[files[keys[turn % HELD] // (size // 100)]]],
        ).fetchall(),
        "DuckDB, glob": lambda turn: bare.sql(sql.format(glob, keys[turn % HELD])).fetchall(),
    }


def by_datasets(runs: int, most: int) -> Curve:
    """Sums over cubes of more and more datasets, 500,000 cells in 20 partitions, a payload of each dataset used."""

    def ways(size: int, stack: ExitStack) -> dict[str, Way]:
        root = stack.enter_context(tempfile.TemporaryDirectory())
        cells = pa.array(range(500_000), pa.int64())
        shared = {"p": pc.divide(cells, 25_000), "x": cells}
        names = ["seed", *(f"e{at}" for at in range(1, size))]
        payloads = {name: pc.divide(pc.cast(cells, "double"), 7.0 + at) for at, name in enumerate(names)}
        with kartosql.connect(root) as con:
            cube = kartosql.Cube("c", ["x"], ["p"])
            con.build_cube(cube, {n: pa.table(shared | {f"v_{n}": v}) for n, v in payloads.items()})
        wide = os.path.join(root, "wide")
        os.makedirs(wide)
        for month in range(20):
            part = pa.table(shared | {f"v_{n}": v for n, v in payloads.items()}).slice(month * 25_000, 25_000)
            pq.write_table(part.drop_columns(["p"]), os.path.join(wide, f"{month}.parquet"))
        sums = ", ".join(f"sum(v_{name}) AS s_{name}" for name in names)
        time.sleep(SETTLED)
        opened = stack.enter_context(kartosql.connect(root, read_only=True, keep_answers=False))
        bare = stack.enter_context(duckdb.connect())
        tables = [
            f"(FROM read_parquet('{root}/c++{n}/table/*/*.parquet', hive_partitioning = false)) {n}" for n in names
        ]
        joined = " ".join([tables[0], *(f"LEFT JOIN {table} USING (x)" for table in tables[1:])])
        return {
            OPENED: lambda _: opened.sql(f"SELECT {sums} FROM c").rows(),
            "DuckDB, LEFT JOIN by hand": lambda _: bare.sql(f"SELECT {sums} FROM {joined}").fetchall(),
            "DuckDB, one wide table": lambda _: bare.sql(f"SELECT {sums} FROM '{wide}/*.parquet'").fetchall(),
        }

    sizes = [size for size in (1, 2, 3, 4, 6, 8) if size <= most]
    return measured("datasets", "Sums over a cube, against the number of its datasets", sizes, ways, runs)


CURVES = {"files": by_files, "rows": by_rows, "columns": by_columns, "datasets": by_datasets}


def draw(curve: Curve, folder: str) -> None:
    """Draw a curve as ``cost-by-<name>.svg``."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": curve.name, "font.size": 10}
    figure, axes = plt.subplots(figsize=(7.2, 4.6))
    for at, (way, costs) in enumerate(sorted(curve.costs.items(), key=lambda item: not item[0].startswith("kartosql"))):
        ours = way.startswith("kartosql")
        axes.plot(
            list(costs), list(costs.values()), marker="o", markersize=4, label=way, color=f"C{at}",
            linewidth=2.5 if ours else 1.2, linestyle="-" if ours else "--",
        )  # fmt: skip
    if curve.name != "datasets":
        axes.set_xscale("log")
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(curve.name)
    axes.set_ylabel("CPU time, ms")
    axes.set_title(curve.title, fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=4)  # over no curve
    figure.tight_layout()
    figure.savefig(os.path.join(folder, f"cost-by-{curve.name}.svg"), metadata={"Date": None})
    plt.close(figure)


def text(curves: Sequence[Curve]) -> Iterator[str]:
    """Yield the pictures with their numbers as Markdown."""
    for curve in curves:
        yield f"![{curve.title}](images/cost-by-{curve.name}.svg)\n\n"
        yield f"| {curve.name}, CPU ms | {' | '.join(f'{size:,}' for size in curve.sizes)} |\n"
        yield "|---|" + "--:|" * len(curve.sizes) + "\n"
        for way, costs in curve.costs.items():
            cells = (f"{costs[size]:,.1f}" if size in costs else "" for size in curve.sizes)
            yield f"| {way} | {' | '.join(cells)} |\n"
        yield "\n"


def told(page: str) -> list[Curve]:
    """Return the curves whose numbers stand in a page."""
    found = []
    for title, name, rest in re.findall(r"!\[(.*)\]\(images/cost-by-(\w+)\.svg\)\n\n((?:\|.*\n)+)", page):
        head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in rest.splitlines())
        sizes = [int(size.replace(",", "")) for size in head[1:]]
        costs = {
            way: {size: float(cell.replace(",", "")) for size, cell in zip(sizes, cells, strict=True) if cell}
            for way, *cells in rows
        }
        found.append(Curve(name, title, sizes, costs))
    return found


def main() -> int:
    """Measure and print the curves, and draw them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CURVES, help="measure one of the curves")
    parser.add_argument("--runs", type=int, default=7, help="turns of which the median counts")
    parser.add_argument("--most", type=int, default=10**9, help="leave out sizes beyond this one")
    parser.add_argument("--write", action="store_true", help="draw into docs/images and write docs/performance.md")
    parser.add_argument("--draw", action="store_true", help="draw the numbers of docs/performance.md anew")
    given = parser.parse_args()
    if given.draw:
        with open(PAGE, encoding="utf-8") as f:
            for curve in told(f.read()):
                draw(curve, IMAGES)
        return 0
    curves = [CURVES[name](given.runs, given.most) for name in ([given.only] if given.only else CURVES)]
    page = "".join(text(curves))
    print(f"\n{page}")
    if given.write:
        for curve in curves:
            draw(curve, IMAGES)
        if not given.only:
            put_between(MARKS, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
