"""Runs over many stores, on all cores."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor

from differential.answers import Checker, Mismatch
from differential.regimes import regime
from differential.stores import make_world
from differential.tally import Tally

MAX_FAILURES = 3  # that are described for one store


def run_store(seed: int, numbers: range) -> Tally:
    """Check statements over one store."""
    with tempfile.TemporaryDirectory() as folder, regime(seed):
        # Every sixth store stands in memory, where the engine reads through the library.
        return checked(Checker(make_world(seed, None if seed % 6 == 5 else folder)), numbers)


def checked(checker: Checker, numbers: range) -> Tally:
    """Check statements, every fourth also unpruned, every fifth again, and end the checker."""
    tally = Tally()
    try:
        for number in numbers:
            try:
                tally.add(checker.check(number, cold=number % 25 == 7, unpruned=number % 4 == 0, again=number % 5 == 1))
            except Exception as e:  # noqa: BLE001 - a crash is a finding as well
                shown = str(e) if isinstance(e, Mismatch) else f"{traceback.format_exc()}\n{checker.again(number)}"
                tally.failures.append(shown)
                tally.statuses["failed"] += 1
                if len(tally.failures) == MAX_FAILURES:
                    break
    finally:
        checker.end()
    return tally


class Runs:
    """Stores that are checked side by side, in processes of their own."""

    def __init__(self, seeds: Iterable[int], statements: int, run: Callable[[int, range], Tally] = run_store) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(os.cpu_count() or 1, mp_context=context)
        self.futures: dict[int, Future[Tally]] = {
            seed: self._pool.submit(run, seed, range(statements)) for seed in seeds
        }

    def total(self) -> Tally:
        """Return the sum of all stores, when the last one is done."""
        total = Tally()
        for future in self.futures.values():
            total.merge(future.result())
        return total

    def end(self) -> None:
        self._pool.shutdown(cancel_futures=True)
