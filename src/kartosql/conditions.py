"""Conditions of ``query_cube``: objects, tuples and the original's text form.

``C("a") == 1`` makes a condition, ``&`` joins them; there is no OR and no NOT, as in the
original. Source: kartothek 5.3, ``core/cube/conditions.py``.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from kartosql.errors import UsageError, quoted, text_of
from kartosql.text.types import type_name

_SQL_OPS = {"==": "=", "=": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_TEXT = re.compile(r"\s*\(?\s*([^\s!<>=()]+)\s*(==|!=|<=|>=|=|<|>)\s*([^)=]+?)\s*\)?\s*")
_TRUTH = dict.fromkeys(("1", "t", "y", "true", "yes"), True) | dict.fromkeys(("0", "f", "n", "false", "no"), False)


def _fail(message: str, hint: str | None = None) -> UsageError:
    return UsageError(message, code="invalid-condition", hint=hint)


def is_null(value: Any) -> bool:
    """Return whether ``value`` is one of the spellings of NULL: None, NaN, NaT, pandas.NA."""
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )


@dataclass(frozen=True)
class Condition:
    """One comparison of a column: ``op`` is ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in`` or ``interval``.

    The value of ``in`` is a tuple, of ``interval`` a pair (start inclusive, stop exclusive)
    in which None stands for no bound.
    """

    column: str
    op: str
    value: Any

    def __and__(self, other: Condition | Conjunction) -> Conjunction:
        return Conjunction((self,)) & other

    def __bool__(self) -> bool:
        raise TypeError("A condition has no truth value; join conditions with &.")

    def __str__(self) -> str:
        if self.op == "interval":
            start, stop = ("" if v is None else repr(v) for v in self.value)
            return f"({self.column}.in_interval({start}, {stop}))"
        return f"({self.column} {self.op} {self.value!r})"


@dataclass(frozen=True)
class Conjunction:
    """Conditions that must all hold."""

    conditions: tuple[Condition, ...]

    def __and__(self, other: Condition | Conjunction) -> Conjunction:
        if isinstance(other, Condition):
            return Conjunction((*self.conditions, other))
        if isinstance(other, Conjunction):
            return Conjunction(self.conditions + other.conditions)
        return NotImplemented

    @property
    def predicate(self) -> list[tuple[str, str, Any]]:
        """The conditions as ``(column, op, value)``, of which the original takes a list; an interval is two of them."""
        found: list[tuple[str, str, Any]] = []
        for c in self.conditions:
            if c.op == "interval":
                found += [(c.column, op, v) for op, v in zip((">=", "<"), c.value, strict=True) if v is not None]
            else:
                found.append((c.column, c.op, list(c.value) if c.op == "in" else c.value))
        return found

    def __bool__(self) -> bool:
        raise TypeError("A condition has no truth value; join conditions with &.")

    def __str__(self) -> str:
        return " & ".join(map(str, self.conditions))


class C:
    """A column to make conditions of: ``C("a") == 1``, ``C("a").isin([1, 2])``."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise _fail(f"{quoted(name)} is no column name.")
        self.name = name

    def _make(self, op: str, value: Any) -> Condition:
        if isinstance(value, (C, Condition, Conjunction)):
            raise TypeError("A condition compares a column with a value.")
        return _checked(Condition(self.name, op, value))

    def __eq__(self, value: object) -> Condition:  # type: ignore[override]
        return self._make("==", value)

    def __ne__(self, value: object) -> Condition:  # type: ignore[override]
        return self._make("!=", value)

    def __lt__(self, value: Any) -> Condition:
        return self._make("<", value)

    def __le__(self, value: Any) -> Condition:
        return self._make("<=", value)

    def __gt__(self, value: Any) -> Condition:
        return self._make(">", value)

    def __ge__(self, value: Any) -> Condition:
        return self._make(">=", value)

    def isin(self, values: Iterable[Any]) -> Condition:
        """Return the condition that the column has one of ``values``; a text is one value."""
        return self._make("in", values)

    def in_interval(self, start: Any = None, stop: Any = None) -> Condition:
        """Return the condition ``start <= column < stop``; a bound of None is open."""
        return self._make("interval", (start, stop))


def _checked(condition: Condition) -> Condition:
    """Return the condition in its normal form; raises ``invalid-condition`` for NULL."""
    column, op, value = text_of(condition.column, "The column of a condition"), condition.op, condition.value
    text_of(op, "The operator of a condition")
    if op in ("in", "isin"):
        single = isinstance(value, (str, bytes)) or not isinstance(value, Iterable)
        op, value = "in", () if value is None else (value,) if single else tuple(value)
    elif op == "interval":
        if not isinstance(value, (tuple, list)) or len(value) != 2:
            raise _fail(f"{column}: 'interval' needs start and stop, not {value!r}.")
    elif op not in _SQL_OPS:
        raise _fail(f"{column}: there is no operator {op!r}.", "Use ==, !=, <, <=, >, >=, in or interval.")
    found = _mapped(Condition(column, "==" if op == "=" else op, value), _scalar)
    if any(is_null(v) for v in _values(found) if op != "interval" or v is not None):
        raise _fail(f"Cannot compare column {column!r} with NULL.", "Use SQL for IS NULL.")
    return found


def _values(condition: Condition) -> tuple[Any, ...]:
    return tuple(condition.value) if condition.op in ("in", "interval") else (condition.value,)


def _mapped(condition: Condition, function: Callable[[Any], Any]) -> Condition:
    values = tuple(map(function, _values(condition)))
    return Condition(condition.column, condition.op, values if condition.op in ("in", "interval") else values[0])


def _scalar(value: Any) -> Any:
    if type(value).__module__.split(".")[0] == "pandas" and hasattr(value, "to_pydatetime"):
        return value if is_null(value) else value.to_pydatetime()
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        if type(value).__name__ == "datetime64":
            return value.astype("datetime64[us]").item()
        return value.item()
    return value


def plain(value: Any) -> Any:
    """Return a scalar of numpy or Arrow as Python's, and collections, Series, Indexes and arrays of them as a list."""
    if isinstance(value, list | tuple | set | frozenset | range):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    kind, module = type(value).__name__, type(value).__module__.partition(".")[0]
    if module == "numpy":  # whose times and arrays the engine reads as they are
        return value if kind in ("datetime64", "timedelta64", "ndarray") else value.item()
    if module == "pandas" and hasattr(value, "tolist"):
        return pa.array(value, from_pandas=True).to_pylist()
    if module in ("polars", "pyarrow"):
        method = next((m for m in ("as_py", "to_pylist", "to_list") if hasattr(value, m)), None)
        return value if method is None else getattr(value, method)()
    return value


def parse_conditions(conditions: Any, types: Mapping[str, pa.DataType]) -> list[Condition]:
    """Return conditions given in any of the forms as a list.

    Raises ``invalid-condition``; column names and types are checked by ``check_types``.
    """
    if conditions is None:
        return []
    if isinstance(conditions, str):
        return [_from_text(part, types) for part in conditions.split("&")] if conditions else []
    if isinstance(conditions, Condition):
        return [_checked(conditions)]
    if isinstance(conditions, Conjunction):
        return list(conditions.conditions)
    if isinstance(conditions, tuple) and len(conditions) == 3 and isinstance(conditions[0], str):
        return [_checked(Condition(*conditions))]
    if not isinstance(conditions, Iterable):
        raise _fail(f"{conditions!r} is no condition.")
    found: list[Condition] = []
    for item in conditions:
        if isinstance(item, list):
            item = tuple(item)
        if isinstance(item, tuple) and len(item) == 4 and item[1] == "interval":
            item = (item[0], "interval", item[2:])
        if not isinstance(item, (Condition, Conjunction, str, tuple)) or (isinstance(item, tuple) and len(item) != 3):
            raise _fail(f"{item!r} is no condition.", "Write (column, op, value), C('a') == 1, or text.")
        if isinstance(item, tuple) and not isinstance(item[0], str):
            raise _fail(f"{item[0]!r} is no column name.")
        found += parse_conditions(item, types)
    return found


def _from_text(text: str, types: Mapping[str, pa.DataType]) -> Condition:
    match = _TEXT.fullmatch(text)
    if not match:
        raise _fail(f"Cannot read the condition {text.strip()!r}.", "Write column, operator and value: (a >= 5).")
    column, op, value = match.groups()
    if not value.strip():
        raise _fail(f"The condition {text.strip()!r} has no value.")
    if column not in types:
        raise _unknown([column])
    read = _kind_of(types[column])[1]
    if read is None:
        raise _fail(f"Column {column!r} of type {types[column]} cannot be used in text conditions.")
    try:
        found = read(value)
    except (ValueError, KeyError):
        raise _fail(f"{value!r} is no {types[column]}, the type of column {column!r}.") from None
    return _checked(Condition(column, op, found))


def _unknown(columns: list[str]) -> UsageError:
    return UsageError(f"Condition columns that are missing from the cube: {', '.join(columns)}", code="unknown-column")


def check_types(conditions: list[Condition], types: Mapping[str, pa.DataType]) -> list[Condition]:
    """Check that columns exist and operands have exactly the column's type, as the original does.

    Returns the conditions that restrict anything, with texts and bytes as the column has
    them. Raises ``unknown-column`` and ``invalid-condition``.
    """
    missing = sorted({c.column for c in conditions if c.column not in types})
    if missing:
        raise _unknown(missing)
    fitting = [_mapped(c, partial(_as_stored, type_=types[c.column])) for c in conditions]
    for condition in fitting:
        type_ = types[condition.column]
        for value in _values(condition):
            if value is not None and not _kind_of(type_)[2](value, type_):
                raise _fail(
                    f"The condition {condition} compares a column of type {type_name(type_)} "
                    f"with {value!r} ({type(value).__name__}).",
                    "Operands must have the column's type; SQL converts them.",
                )
    return [c for c in fitting if not (c.op == "interval" and c.value == (None, None))]


def _as_stored(value: Any, type_: pa.DataType) -> Any:
    """Return text for a text column and bytes for a binary one; they are UTF-8."""
    if pa.types.is_binary(type_) and isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes) and (pa.types.is_string(type_) or pa.types.is_date(type_)):
        return value.decode("utf-8", "replace")
    return value


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'" else text


def _is_date(value: Any, _: pa.DataType) -> bool:
    if not isinstance(value, str):
        return isinstance(value, dt.date) and not isinstance(value, dt.datetime)
    try:
        dt.date.fromisoformat(value)
    except ValueError:
        return False
    return True


# Types of columns, what reads their values from text conditions, and tells whether an operand has the type.
_KINDS: tuple[tuple[Callable[..., bool], Callable[[str], Any] | None, Callable[[Any, pa.DataType], bool]], ...] = (
    (pa.types.is_integer, int, lambda v, _: isinstance(v, int) and not isinstance(v, bool)),
    (pa.types.is_floating, float, lambda v, _: isinstance(v, float)),
    (pa.types.is_boolean, lambda text: _TRUTH[text.lower()], lambda v, _: isinstance(v, bool)),
    (
        *(pa.types.is_timestamp, lambda text: dt.datetime.fromisoformat(text.strip("\"'"))),
        lambda v, type_: isinstance(v, dt.datetime) and (v.tzinfo is None) == (type_.tz is None),
    ),
    (pa.types.is_string, _unquoted, lambda v, _: isinstance(v, str)),
    (pa.types.is_binary, None, lambda v, _: isinstance(v, bytes)),
    (pa.types.is_date, None, _is_date),
    (pa.types.is_null, None, lambda *_: True),
    (lambda _: True, None, lambda *_: False),
)


def _kind_of(type_: pa.DataType) -> Any:
    return next(kind for kind in _KINDS if kind[0](type_))


def to_sql(conditions: list[Condition], quote: Any, lists: Container[str] = ()) -> tuple[str, dict[str, Any]]:
    """Return a WHERE predicate and its parameters; ``quote`` quotes an identifier.

    An IN of the columns ``lists`` has one parameter for all values, in which the planner sees no constants.
    """
    parameters: dict[str, Any] = {}

    def parameter(value: Any) -> str:
        name = f"v{len(parameters)}"
        parameters[name] = value
        return f"${name}"

    parts = []
    for column, op, value in Conjunction(tuple(conditions)).predicate:
        if op != "in":
            parts.append(f"{quote(column)} {_SQL_OPS[op]} {parameter(value)}")
        elif column in lists and value:
            parts.append(f"{quote(column)} IN {parameter(value)}")
        else:
            listed = ", ".join(map(parameter, value))
            parts.append(f"{quote(column)} IN ({listed})" if listed else "FALSE")
    return " AND ".join(parts), parameters
