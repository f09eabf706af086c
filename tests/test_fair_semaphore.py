"""Threads hold the semaphore in the order in which they asked for it."""

from __future__ import annotations

import threading
import time

import pytest

from kartosql import fair_semaphore
from kartosql.errors import KartosqlError
from kartosql.fair_semaphore import FairSemaphore


def test_who_waits_keeps_the_place_however_long_it_takes_and_who_gave_up_holds_up_no_one(monkeypatch):
    monkeypatch.setattr(fair_semaphore, "LOOK", 0.001)  # so that all look many times while they wait
    found, order, threads = FairSemaphore(1), [], []
    gave_up = threading.Event()

    def wait(number):
        try:
            with found.held(lambda: number == 3 and gave_up.is_set()):
                order.append(number)
        except KartosqlError as e:
            order.append(e.code)

    with found.held(lambda: False):
        for number in range(6):
            threads.append(threading.Thread(target=wait, args=(number,)))
            threads[-1].start()
            while len(found._waiting) <= number:
                time.sleep(0.001)
        gave_up.set()
        threads[3].join()
    for thread in threads:
        thread.join()
    assert order == ["interrupted", 0, 1, 2, 4, 5]
    with found.held(lambda: False):  # nothing is lost
        pass


def test_an_error_gives_the_turn_back():
    found = FairSemaphore(1)
    for _ in range(3):
        with pytest.raises(ValueError, match="x"), found.held(lambda: False):
            raise ValueError("x")
    with found.held(lambda: False):
        pass
