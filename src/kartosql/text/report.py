"""What a statement that inspects found out, in all its forms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


class Report:
    """A report, a data class: ``str()`` is plain text, and notebooks show the HTML."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-able dictionary."""
        found: dict[str, Any] = _plain(self)
        return found

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


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return {f.name: _plain(getattr(value, f.name)) for f in fields(value)} if is_dataclass(value) else value


def table_of(items: Iterable[Any], kind: type) -> pa.Table:
    """Return the fields of data classes of one ``kind`` as columns, whose types follow from their annotations."""
    import pyarrow as pa

    types = {
        "str": pa.string(),
        "int": pa.int64(),
        "float": pa.float64(),
        "bool": pa.bool_(),
        "tuple[str, ...]": pa.list_(pa.string()),
    }
    rows = list(items)
    columns = {
        f.name: ([getattr(row, f.name) for row in rows], types[str(f.type).removesuffix(" | None")])
        for f in fields(kind)
    }
    return pa.table({name: pa.array(*column) for name, column in columns.items()})
