"""What a statement that inspects found out, in all its forms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


class Report:
    """A report: ``str()`` is plain text, and notebooks show the HTML."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able dictionary."""
        raise NotImplementedError

    def table(self) -> pa.Table:
        """Return it as a table with a column per fact."""
        raise NotImplementedError

    def html(self) -> str:
        """Return it as a piece of HTML, everything escaped and without anything from elsewhere."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.html()


def dict_of(item: Any) -> dict[str, Any]:
    """Return the fields of a data class as a JSON-able dictionary."""
    found = {f.name: getattr(item, f.name) for f in fields(item)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def table_of(items: Iterable[Any], kind: type, types: dict[str, pa.DataType], default: pa.DataType) -> pa.Table:
    """Return the fields of data classes of one ``kind`` as columns, each of its type or else of the ``default``."""
    import pyarrow as pa

    rows = list(items)
    columns = {f.name: [getattr(row, f.name) for row in rows] for f in fields(kind)}
    return pa.table({name: pa.array(values, types.get(name, default)) for name, values in columns.items()})
