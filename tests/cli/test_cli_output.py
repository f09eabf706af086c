from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from kartosql.cli.output import interruptible


@pytest.mark.skipif(os.name == "nt", reason="signals of threads")
def test_ctrl_c_is_heard_although_it_does_not_wake_who_waits():
    told = threading.Event()
    heard = []

    def work() -> None:
        time.sleep(0.3)
        # The other thread is not woken, as when the signal comes to it just before it begins to wait.
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        heard.append(told.wait(60))

    with pytest.raises(KeyboardInterrupt):
        interruptible(work, told.set)
    assert heard == [True]
