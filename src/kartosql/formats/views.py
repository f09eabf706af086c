"""Documents of views: a query that a store holds under a name, beside the documents of its datasets."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from kartosql.errors import FormatError

FORMAT = "kartosql-view-1"
MAX_BYTES = 1_100_000  # a statement of a million characters, and what stands around it


@dataclass(frozen=True)
class View:
    """A query under a name; ``columns`` are the names of the first of its columns."""

    name: str
    sql: str
    columns: tuple[str, ...] = ()

    def document(self) -> bytes:
        """Return the view as it is stored."""
        return json.dumps({"format": FORMAT, **asdict(self)}, ensure_ascii=False, indent=1).encode()


def read_view(name: str, data: bytes) -> View:
    """Return the view that a document holds; raises ``corrupt-file`` and ``unsupported-version``."""
    try:
        found: Any = json.loads(data) if len(data) <= MAX_BYTES else None
        known, sql, columns = found["format"], found["sql"], found["columns"]
        is_view = isinstance(sql, str) and isinstance(columns, list) and all(isinstance(c, str) for c in columns)
    except (ValueError, TypeError, KeyError, RecursionError):
        known, is_view = None, False
    if isinstance(known, str) and known.startswith("kartosql-view-") and known != FORMAT:
        hint = "A newer version of kartosql wrote it."
        raise FormatError(f"The view {name!r} has the format {known!r}", code="unsupported-version", hint=hint)
    if known != FORMAT or not is_view:
        hint = "CREATE OR REPLACE VIEW writes it anew, DROP VIEW removes it."
        raise FormatError(f"The document of the view {name!r} is damaged", code="corrupt-file", hint=hint)
    return View(name, sql, tuple(columns))
