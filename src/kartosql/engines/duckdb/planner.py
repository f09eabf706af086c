"""The instance in which the planner's conditions are evaluated, over many statements."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from kartosql.engines.duckdb.evaluator import DuckEvaluator
from kartosql.engines.duckdb.files import FileAccess
from kartosql.engines.duckdb.instance import LATE, Instance
from kartosql.engines.duckdb.session import Session

SCHEMA = "kartosql_planner"


class Planner(Session):
    """A session that is never locked: only our own statements and pure predicates run in it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.run(f"CREATE SCHEMA {SCHEMA}")
        self.run(f"USE {SCHEMA}")
        self.instance.change("disabled_optimizers", f"'{LATE}'")
        self.evaluator = DuckEvaluator(self)
        self._held: list[str] = []

    def begin(self, files: FileAccess, timeout: int) -> None:
        """Start on the files of another statement, whose conditions may take ``timeout`` ms (0 is no limit)."""
        self.files = files
        if self.instance.filesystem is not None:
            self.instance.filesystem.forget()
        self.instance.change("max_execution_time", timeout)

    def hold(self, query: str, parameters: Mapping[str, Any]) -> str:
        """Keep the rows of a query until the end of the statement; returns the name of their table."""
        # No text can guess it: predicates may read these tables, and no other.
        name = f"kartosql_values_{uuid.uuid4().hex}"
        self.rows(f"CREATE TABLE {name} AS {query}", parameters)
        self._held.append(name)
        return name

    def end(self) -> None:
        """Forget what was made for one statement."""
        for name in self._held:
            self.run(f"DROP TABLE {name}")
        self._held.clear()
        self.relations.forget()
        self._data_keys.clear()

    def end_for_good(self) -> Instance:
        """Free the planner and return its instance, in which nothing of it is left."""
        super().close()
        self.instance.drop_schema(SCHEMA)
        return self.instance

    def close(self) -> None:
        """Free the planner with its instance."""
        super().close()
        self.instance.close()
