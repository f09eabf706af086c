"""Measure beside peers: ``python -m tests.benchmarks.peers --data FOLDER [--runs N] [--only TEXT] [--write]``.

Each question is asked in turns of kartosql, of the ideal, and of each peer that is installed (the extra ``peers``):
DuckDB over a glob, delta-rs, Polars, DataFusion, and PyIceberg with DuckDB over what it read. All read the same Parquet
files and have to give the same rows. The figures are medians of the ratios of CPU time, all threads together, to that
of the ideal in the same turn: a warm DuckDB that was handed exactly the right files. ``--write`` puts the table into
docs/performance.md.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

import duckdb
import pyarrow as pa

import kartosql
from tests.benchmarks import other_engines
from tests.benchmarks.__main__ import child_cpu
from tests.benchmarks.comparisons import JOINED, POINT, Q1, THREE, values_of
from tests.benchmarks.ideal import Ideal
from tests.benchmarks.keyed_files import keyed_files
from tests.benchmarks.lineitem import MONTH, Data, month_of, prepare
from tests.benchmarks.ratios import in_turns

PAGE = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "performance.md")
SLOW = 1.0  # CPU seconds of a peer that is asked only once, if it takes three times as long as the ideal
ANEW = 8  # connections of a process before those that count: they start engines and read indices
MARKS = ("<!-- peers -->\n", "<!-- end of peers -->\n")
Q6 = (
    "SELECT sum(l_extendedprice * l_discount) AS revenue FROM {0} WHERE l_shipdate >= DATE '1994-01-01' "
    "AND l_shipdate < DATE '1995-01-01' AND l_discount >= 0.05 AND l_discount <= 0.07 AND l_quantity < 24"
)
TOP = "SELECT l_orderkey, l_extendedprice FROM {0} ORDER BY l_extendedprice DESC, l_orderkey LIMIT 10"
EXTREMES = "SELECT count(*) AS n, min(l_shipdate) AS first, max(l_shipdate) AS last FROM {0}"
SEED = "SELECT count(*) AS n, sum(l_quantity) AS quantity, sum(l_extendedprice) AS price FROM {0}"


@dataclass(frozen=True)
class Question:
    """A statement over ``dataset`` with ``{0}`` for the table, asked once a turn.

    ``texts`` take turns; ``files`` are those that the ideal is given, for each text, one list for each ``{n}`` of
    ``by_hand``. ``goal`` is the ratio to the ideal that is aimed at.
    """

    name: str
    goal: float
    dataset: str
    texts: Sequence[str]
    files: Sequence[Sequence[Sequence[str]]]
    by_hand: str = ""  # what the ideal runs, where that differs
    opened: bool = True  # on an open connection; else a new one each time
    is_kept: bool = False  # whether the connection may keep the answer; all others are read each time
    peers: bool = True
    root: str = ""  # the store, where it is another one

    def text(self, turn: int) -> str:
        """Return the statement of a turn."""
        return self.texts[turn % len(self.texts)]


@dataclass
class Row:
    """The ratios of one question by way, with what kept a peer from answering."""

    question: Question
    seconds: float
    ratios: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)


def questions(data: Data, ideal: Ideal, turns: int) -> Iterator[Question]:
    """Yield what is asked; statements with fresh keys have one for each of the ``turns``."""
    few, many = data.files["lineitem_few"], data.files["lineitem_many"]
    yield from _keyed(data, ideal, turns)
    of_month = [f for f in many if month_of(f) == month_of(many[len(many) // 2])]
    month = month_of(of_month[0])
    monthly = "SELECT l_shipmode, count(*) AS n, sum(l_extendedprice * (1 - l_discount)) AS revenue FROM {0}"
    yield Question(
        f"one month, {len(of_month)} of {len(many):,} files",
        1.15,
        "lineitem_many",
        [f"{monthly} WHERE {MONTH} = '{month}' GROUP BY l_shipmode"],
        [[of_month]],
        f"{monthly} GROUP BY l_shipmode",
    )
    for name, files in (("lineitem_many", many), ("lineitem_few", few)):
        size = f"{len(files):,} files"
        yield Question(f"count, min and max, {size}, open connection", 0.005, name, [EXTREMES], [[files]], is_kept=True)
        yield Question(
            f"count, min and max, {size}, new connection", 0.02, name, [EXTREMES], [[files]], opened=False, is_kept=True
        )
        yield Question(f"three ranges (TPC-H Q6), {size}", 0.3, name, [Q6], [[files]])
        yield Question(f"top 10 by a column, {size}", 0.1, name, [TOP], [[files]])
        yield Question(f"full scan (TPC-H Q1), {size}", 1.0, name, [Q1], [[files]])
    yield from _cube(data)


def at_scale(folder: str, size: int, turns: int) -> Iterator[Question]:
    """Yield point queries over ``size`` files of one key each, which are made in ``folder`` unless they are there."""
    root = os.path.join(folder, f"keyed-{size}")
    keys = [size * (2 * at + 1) // (2 * turns) for at in range(turns)]
    made = os.path.join(root, f"{turns}.txt")
    if not os.path.exists(made):
        shutil.rmtree(root, ignore_errors=True)
        files = keyed_files(root, size, keys)
        with open(made, "w") as f:
            f.write("\n".join(files))
    with open(made) as f:
        exact = [[[file]] for file in f.read().split()]
    texts = [f"SELECT count(*) AS n, sum(v) AS v FROM {{0}} WHERE i = {key}" for key in keys]
    ask = partial(Question, dataset="t", texts=texts, files=exact, peers=False, root=root)
    yield ask(f"point query, fresh keys, count and sum, {size:,} files", 1.5)
    rows = [f"SELECT i, v FROM {{0}} WHERE i = {key}" for key in keys]
    yield ask(f"point query, fresh keys, {size:,} files", 1.5, texts=rows)
    yield ask(f"point query, new connection each time, {size:,} files", 6, opened=False)


def _keyed(data: Data, ideal: Ideal, turns: int) -> Iterator[Question]:
    for name in ("lineitem_many", "lineitem_few"):
        files = data.files[name]
        size = f"{len(files):,} files"
        keys = values_of(files, "l_orderkey", turns)
        held = ideal.holding(files, "l_orderkey", keys)
        texts = [f"{POINT}l_orderkey = {key}" for key in keys]
        exact = [[held[key]] for key in keys]
        yield Question(f"point query, new connection each time, {size}", 6, name, texts, exact, opened=False)
        yield Question(f"point query, repeated, {size}", 1.1, name, texts[:1], exact[:1], is_kept=True)
        yield Question(f"point query, fresh keys, {size}", 1.3, name, texts, exact)
    files = data.files["lineitem_many"]
    keys = values_of(files, "l_partkey", 50 * turns)
    held = ideal.holding(files, "l_partkey", keys)
    size = f"{len(held[keys[0]])} of {len(files):,} files"
    texts = [f"{POINT}l_partkey = {key}" for key in keys[:turns]]
    yield Question(f"an unclustered key, {size}", 1.15, "lineitem_many", texts, [[held[key]] for key in keys[:turns]])
    lists = [keys[at : at + 50] for at in range(0, len(keys), 50)]
    yield Question(
        f"50 fresh keys, {len(files):,} files",
        1.15,
        "lineitem_many",
        [f"{POINT}l_partkey IN ({', '.join(map(str, some))})" for some in lists],
        [[sorted({f for key in some for f in held[key]})] for some in lists],
    )


def _cube(data: Data) -> Iterator[Question]:
    members = [data.files[f"lines++{name}"] for name in ("seed", "shipping", "state")]
    month = month_of(members[0][len(members[0]) // 2])
    of_month = [[f for f in files if month_of(f) == month] for files in members]
    joined = JOINED.replace("{0}", THREE)
    narrowed = JOINED.replace("{0}", f"{{0}} WHERE {MONTH} = '{month}'")
    yield Question("cube of three datasets", 0.2, "lines", [JOINED], [members], joined, peers=False)
    yield Question("cube of three datasets, one month", 0.4, "lines", [narrowed], [of_month], joined, peers=False)
    yield Question(
        "cube of three datasets, against denormalised files",
        1.6,
        "lines",
        [JOINED],
        [[data.files["lineitem_few"]]],
        peers=False,
    )
    yield Question("seed alone", 1.05, "lines", [SEED], [members[:1]], peers=False)
    seed = f"{SEED} WHERE {MONTH} = '{month}'"
    yield Question("seed alone, one month", 1.05, "lines", [seed], [of_month[:1]], SEED, peers=False)


def same(one: pa.Table, other: pa.Table) -> bool:
    """Return whether two answers have the same rows in any order.

    Means of decimals end after six digits in some engines.
    """
    rows, others = _rows(one), _rows(other)
    return len(rows) == len(others) and all(map(_close, rows, others))


def _rows(table: pa.Table) -> list[tuple[object, ...]]:
    table = table.select(sorted(table.column_names))
    return sorted(zip(*[[_plain(v) for v in c.to_pylist()] for c in table.columns], strict=True), key=repr)


def _plain(value: object) -> object:
    if isinstance(value, str | bytes) or value is None or hasattr(value, "isoformat"):
        return str(value)[:10] if hasattr(value, "isoformat") else value
    return float(f"{float(value):.9g}")  # type: ignore[arg-type]


def _close(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    return all(
        abs(a - b) <= 2e-5 * max(abs(a), abs(b)) if isinstance(a, float) and isinstance(b, float) else a == b
        for a, b in zip(one, other, strict=True)
    )


def measure(question: Question, data: Data, ideal: Ideal, peers: Mapping[str, other_engines.Peer], runs: int) -> Row:
    """Ask a question of all and return the ratios; a peer without that answer is left out with the reason."""
    with ExitStack() as stack:
        ways: dict[str, Callable[[int], pa.Table]] = {
            "ideal": lambda turn: ideal.arrow(
                question.by_hand or question.text(turn), *question.files[turn % len(question.files)]
            )
        }
        if question.opened:
            con = stack.enter_context(_connection(question, data.root))
            ways["kartosql"] = lambda turn: con.sql(question.text(turn).format(question.dataset)).arrow()
        else:
            ways["kartosql"] = partial(_connected, data.root, question)
        started = time.process_time()
        expected = ways["ideal"](0)
        least = time.process_time() - started
        assert same(expected, ways["kartosql"](0)), question.name
        reasons, once = {}, {}
        for name, peer in peers.items() if question.peers else ():
            ask = stack.enter_context(peer(question.dataset, keep=question.opened))
            way = partial(_asked, ask, question)
            try:
                started = time.process_time()
                answer = way(0)
                spent = time.process_time() - started
                if not same(expected, answer):
                    raise ValueError("another answer")
                if spent > max(SLOW, 3 * least):
                    once[name] = spent
                else:
                    ways[name] = way
            except BaseException as e:
                if isinstance(e, KeyboardInterrupt | SystemExit):
                    raise
                reasons[name] = f"{type(e).__name__}: {e}".splitlines()[0][:100]
        gc.collect()
        gc.disable()
        try:
            costs = in_turns(ways, runs, warm=4 if question.opened else ANEW, settle=True)
        finally:
            gc.enable()
    row = Row(question, median(costs["ideal"].cpu), reasons=reasons)
    for name, cost in costs.items():
        row.ratios[name] = median(a / b for a, b in zip(cost.cpu, costs["ideal"].cpu, strict=True))
    row.ratios |= {name: spent / row.seconds for name, spent in once.items()}
    return row


def _connection(question: Question, root: str) -> kartosql.Connection:
    return kartosql.connect(question.root or root, read_only=True, keep_answers=question.is_kept)


def _connected(root: str, question: Question, turn: int) -> pa.Table:
    with _connection(question, root) as con:
        return con.sql(question.text(turn).format(question.dataset)).arrow()


def _asked(ask: Callable[[str], pa.Table], question: Question, turn: int) -> pa.Table:
    return ask(question.text(turn))


def processes(data: Data, ideal: Ideal, large: Question, runs: int) -> Iterator[Row]:
    """Measure whole processes that ask for one key, beside one that imports duckdb and knows the file."""
    for name in ("lineitem_few", "lineitem_many"):
        files = data.files[name]
        key = values_of(files, "l_orderkey", 1)[0]
        held = ideal.holding(files, "l_orderkey", [key])[key]
        yield _process(data, data.root, len(files), name, f"{POINT}l_orderkey = {key}", held, runs)
    yield _process(None, large.root, 100_000, "t", large.texts[0], large.files[0][0], runs)


def _process(data: Data | None, root: str, size: int, name: str, sql: str, held: Sequence[str], runs: int) -> Row:
    bare = f"import duckdb; print(duckdb.connect().execute({sql.format('read_parquet(?)')!r}, [{held!r}]).fetchall())"
    ours = f"import kartosql; print(kartosql.connect({root!r}).sql({sql.format(name)!r}).rows())"
    commands = {
        "ideal": [sys.executable, "-c", bare],
        "kartosql": [sys.executable, "-m", "kartosql", root, "-c", sql.format(name)],
        "from Python": [sys.executable, "-c", ours],
        **(other_engines.commands(data, name, sql) if data else {}),
    }
    spent: dict[str, list[float]] = {way: [] for way in commands}
    for turn in range(runs + 1):
        for way, command in commands.items():
            seconds = child_cpu(command)
            if turn:
                spent[way].append(seconds)
    goal = 1.0 if size <= 10_005 else 1.1
    row = Row(
        Question(f"whole process, point query, {size:,} files", goal, name, [sql], [[held]]), median(spent["ideal"])
    )
    row.ratios = {way: median(a / b for a, b in zip(s, spent["ideal"], strict=True)) for way, s in spent.items()}
    return row


def table(rows: Sequence[Row], peers: Sequence[str]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        f"| CPU time / that of the ideal | ideal | goal | kartosql | {' | '.join(peers)} |",
        "|---|--:|--:|--:|" + "--:|" * len(peers),
    ]
    for row in rows:
        ours = row.ratios["kartosql"]
        mark = "" if ours <= row.question.goal else " (missed)"
        cells = [
            row.question.name,
            f"{row.seconds * 1000:,.1f} ms",
            f"{row.question.goal:g}",
            f"**{_figure(ours)}**{mark}",
        ]
        cells += [_figure(row.ratios[peer]) if peer in row.ratios else "" for peer in peers]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _figure(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}" if ratio < 1 else f"{ratio:.2f}"


def put_between(marks: tuple[str, str], text: str) -> None:
    """Put a text between two marks of docs/performance.md."""
    with open(PAGE) as f:
        page = f.read()
    first, last = marks
    with open(PAGE, "w") as f:
        f.write(re.sub(f"{first}.*{last}", lambda _: f"{first}\n{text}\n{last}", page, flags=re.DOTALL))


def main() -> int:
    """Print the table; return 1 if a goal is missed or a peer is faster."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder that keeps the data for the next run (default: a temporary one)")
    parser.add_argument("--scale", type=float, default=1, help="scale factor of TPC-H")
    parser.add_argument("--runs", type=int, default=7, help="turns of which the median counts")
    parser.add_argument("--only", default="", metavar="TEXT", help="measure only what has this text in its name")
    parser.add_argument("--read-again", action="store_true", help="read repeated statements again, too")
    parser.add_argument("--no-peers", action="store_true", help="measure beside the ideal alone")
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Ideal() as ideal:
        data = prepare(given.data or folder, given.scale)
        peers = {} if given.no_peers else other_engines.installed(data)
        machine = f"Python {platform.python_version()}, {os.cpu_count()} cores"
        print(f"{machine}; kartosql, DuckDB {duckdb.__version__}, {', '.join(peers)}")
        rows = []
        more = at_scale(given.data or folder, 100_000, given.runs + ANEW)
        for question in (*questions(data, ideal, given.runs + ANEW), *more):
            if given.only in question.name:
                question = replace(question, is_kept=question.is_kept and not given.read_again)
                rows.append(measure(question, data, ideal, peers, given.runs))
                told(rows[-1])
        if given.only in "whole process":
            large = next(at_scale(given.data or folder, 100_000, given.runs + ANEW))
            for row in processes(data, ideal, large, given.runs):
                rows.append(row)
                told(row)
    text = table(rows, [*peers, "from Python"] if any("from Python" in row.ratios for row in rows) else list(peers))
    print(f"\n{text}")
    if given.write:
        put_between(MARKS, text)
    beaten = [r for r in rows if any(r.ratios[p] < r.ratios["kartosql"] for p in peers if p in r.ratios)]
    missed = [r for r in rows if r.ratios["kartosql"] > r.question.goal]
    print(f"{len(missed)} of {len(rows)} goals are missed; a peer is faster in {len(beaten)}")
    return 1 if missed or beaten else 0


def told(row: Row) -> None:
    """Print a row as soon as it is known."""
    ratios = ", ".join(f"{name} {_figure(ratio)}" for name, ratio in row.ratios.items() if name != "ideal")
    reasons = "".join(f"\n    {name}: {reason}" for name, reason in row.reasons.items())
    print(f"{row.question.name}: {row.seconds * 1000:.1f} ms; {ratios}{reasons}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
