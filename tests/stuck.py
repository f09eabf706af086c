"""Workers that come to no end in one phase of a statement with the word STUCK: ``test_deadlines`` starts them."""

from __future__ import annotations

import sys
from typing import Any

from kartosql import worker
from kartosql.plan.bind import PlanCache
from kartosql.query import Execution
from kartosql.sql.tree import ParsedTexts

PHASES = {
    "parse": (ParsedTexts, "parse"),
    "bind": (PlanCache, "bind"),
    "plan": (Execution, "plan"),
    "run": (worker, "_stream"),
    "answer": (worker, "_answer"),
}


def main() -> None:
    """Make workers that are stuck in the phase that the last argument names."""
    owner, name = PHASES[sys.argv[-1]]
    run, original = worker._run, getattr(owner, name)
    asked = [""]

    def noted(connection: Any, request: Any, limit: int) -> Any:
        asked[0] = request["sql"]
        return run(connection, request, limit)

    def stuck(*args: Any, **options: Any) -> Any:
        while "STUCK" in asked[0]:
            pass
        return original(*args, **options)

    worker._run = noted
    worker.CORES = 1
    setattr(owner, name, stuck)
    worker.main()
