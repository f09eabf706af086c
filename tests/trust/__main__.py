"""Run the programme that looks for what is wrong, as long as one likes.

    python -m tests.trust [--hours 1 | --runs 1000] [--seed 0] [--shrink] [SIMULATION]

Without a part all parts share the time. Each failure is printed with its seed, with which ``--seed SEED --runs 1``
shows it again. ``--shrink`` looks for the least program that fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path


def main() -> int:
    """Print what was run, and what failed; return 1 if something did."""
    parser = argparse.ArgumentParser(prog="python -m tests.trust", description=__doc__.partition("\n\n")[0])
    parser.add_argument("part", nargs="?", choices=("simulation",), default="simulation")
    parser.add_argument("--hours", type=float, help="for which to go on")
    parser.add_argument("--runs", type=int, help="after which to end")
    parser.add_argument("--seed", type=int, default=0, help="of the first run; those that follow have the next ones")
    parser.add_argument("--shrink", action="store_true", help="make programs that fail as short as they get")
    parser.add_argument("--failures", type=int, default=5, help="after which to end")
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # on which the order of sets of names depends
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from trust import simulation

    until = time.monotonic() + given.hours * 3600 if given.hours is not None else None
    runs = given.runs if given.runs is not None or until is not None else 1000
    counts: Counter[str] = Counter()
    failures, steps, seed, began = [], 0, given.seed, time.process_time()
    while len(failures) < given.failures and (until is None or time.monotonic() < until):
        if runs is not None and seed - given.seed >= runs:
            break
        made = simulation.program(seed)
        error = simulation.failure(made, counted := [])
        if error is not None:
            failures.append(seed)
            least = simulation.shrunk(made) if given.shrink else made
            print(f"seed {seed}:\n{error}\n{least}\nagain: python -m tests.trust --seed {seed} --runs 1\n", flush=True)
        for one in counted:
            counts.update(one.counts)
            steps += one.scheduler.steps
        seed += 1
    for name, count in sorted(counts.items()):
        print(f"{count:>9,}  {name}")
    print(
        f"{seed - given.seed:,} interleavings from seed {given.seed}, {sum(counts.values()):,} operations, {steps:,} "
        f"calls of the store, {time.process_time() - began:.0f} s of CPU time, {len(failures)} failures"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
