"""The load of a server, for some seconds: only budgets refuse, and clients leave nothing behind."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("pyarrow.flight")
if sys.platform != "linux":
    pytest.skip("what a process holds is read from /proc", allow_module_level=True)
from tests.serve.load import BUDGET, run


@pytest.mark.parametrize("protocol", ["http", "flight"])
def test_many_clients_get_answers_or_errors_of_their_budgets(protocol):
    load = run(protocol, clients=20, seconds=5, every=0.5)
    assert load.errors == 0, load.codes
    assert load.codes["ok"] >= 18  # each within its budget has at least one answer
    assert load.codes.keys() <= {"ok", *BUDGET}
