"""How a dataset is laid out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kartosql.errors import UsageError


@dataclass(frozen=True)
class Layout:
    """How the rows of one dataset are checked, sorted, split and indexed.

    ``cell`` names the columns whose combination occurs once (empty: rows may repeat), and
    ``not_null`` the columns without NULLs.
    """

    uuid: str
    name: str
    partition_on: tuple[str, ...] = ()
    cell: tuple[str, ...] = ()
    index_columns: tuple[str, ...] = ()
    not_null: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def order(self) -> tuple[str, ...]:
        """The columns that rows are sorted by: partition columns, then the others of the cell."""
        return tuple(dict.fromkeys(self.partition_on + self.cell))

    @property
    def cells_stay_together(self) -> bool:
        """Whether rows of the same cell always have the same partition."""
        return set(self.partition_on) <= set(self.cell)

    def role(self, column: str) -> str:
        """Return what ``column`` is in this dataset, for messages."""
        if column in self.partition_on:
            return "partition column"
        return "dimension column" if column in self.cell else "index column"


def columns_of(value: str | Iterable[str], what: str) -> tuple[str, ...]:
    """Return column names given as one text or a list; raises ``invalid-argument``."""
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (None,)
    if not all(isinstance(n, str) for n in names) or len(set(names)) != len(names):
        raise UsageError(f"{what}: {value!r} is no list of different column names.")
    return tuple(str(n) for n in names)


def checked_metadata(metadata: Any, name: str) -> dict[str, Any]:
    """Return user metadata as a new dictionary; raises ``invalid-argument`` if JSON cannot hold it."""
    try:
        if isinstance(metadata, Mapping) and all(isinstance(k, str) for k in metadata):
            json.dumps(dict(metadata), allow_nan=False)
            return dict(metadata)
    except (TypeError, ValueError, RecursionError) as e:
        raise UsageError(f"The metadata of {name!r} cannot be written as JSON: {e}") from None
    raise UsageError(f"The metadata of {name!r} is no dictionary with text keys.")
