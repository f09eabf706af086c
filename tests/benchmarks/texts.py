"""Measure NGRAM: searches in 1,000 files of text of which 5 hold a match, with it and without.

python -m tests.benchmarks.texts [--files 1000] [--rows 1000] [--runs 9]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow as pa

import kartosql
from tests.benchmarks.ratios import in_turns

WORDS, NEEDLE = 20_000, "quaxolotl-7731"
SEARCHES = {
    "LIKE '%...%'": f"s LIKE '%{NEEDLE}%'",
    "ILIKE '%...%'": f"s ILIKE '%{NEEDLE.upper()}%'",
    "a regular expression": rf"regexp_matches(s, 'user [a-z]+ {NEEDLE[:9]}.*\d')",
}


def texts(files: int, rows: int) -> pa.Table:
    """Return lines of words, of each file those of a part of all words; in 5 files one line holds the needle."""
    choose = random.Random(1)
    words = ["".join(choose.choices("etaoinshrdlcumwfgypbvk", k=choose.randrange(3, 11))) for _ in range(WORDS)]
    found = []
    for file in range(files):
        own = choose.sample(words, WORDS // 10)
        found += [" ".join(["user", *choose.choices(own, k=11)]) for _ in range(rows - 1)]
        is_match = file % (files // 5) == 7
        found.append(f"needle at user {words[0]} {NEEDLE}" if is_match else f"user {' '.join(own[:10])}")
    return pa.table({"p": [n // rows for n in range(files * rows)], "s": found})


def main() -> None:
    """Measure, and print the figures: medians of the CPU time of all threads."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.texts", description=__doc__)
    parser.add_argument("--files", type=int, default=1_000)
    parser.add_argument("--rows", type=int, default=1_000, help="of a file")
    parser.add_argument("--runs", type=int, default=9, help="turns of which the median counts (default 9)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, kartosql.connect(folder, keep_answers=False) as con:
        for name in ("plain", "indexed"):
            con.create_dataset(name, texts(options.files, options.rows), partition_on=["p"])
        data = sum(path.stat().st_size for path in Path(folder, "indexed").rglob("*.parquet"))
        started = time.process_time()
        rows = sum(batch.num_rows for batch in con.sql("SELECT s FROM indexed").reader())
        scanned = time.process_time() - started
        started = time.process_time()
        con.create_skipping_index("indexed", ngram="s")
        built = time.process_time() - started
        size = sum(path.stat().st_size for path in Path(folder, ".kartosql").rglob("*.parquet"))
        print(f"{rows:,} rows, {data:,} bytes; the index takes {size / data:.1%}")
        print(f"built in {built:.1f} s of CPU time, read by DuckDB in {scanned:.1f}")
        print("| search | files | CPU time | faster than without |\n|---|---|---|---|")
        for shown, where in SEARCHES.items():

            def asked(table: str, where: str = where) -> object:
                return con.sql(f"SELECT count(*) FROM {table} WHERE {where}").rows()

            assert asked("indexed") == asked("plain") == [(5,)]
            found = in_turns({t: lambda _, t=t: asked(t) for t in ("plain", "indexed")}, options.runs)
            files = con.explain(f"SELECT count(*) FROM indexed WHERE {where}").files_selected
            plain, indexed = (statistics.median(found[table].cpu) for table in ("plain", "indexed"))
            print(f"| {shown} | {files} of {options.files:,} | {1_000 * indexed:.1f} ms | {plain / indexed:.0f} x |")


if __name__ == "__main__":
    main()
