"""The golden data: where it is, how its values are written, and how rows compare."""

from __future__ import annotations

import datetime as dt
import functools
import json
import math
import os
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]


def folder() -> Path:
    """Return where the golden data should be: KARTOSQL_GOLDEN, else beside the checkout."""
    named = os.environ.get("KARTOSQL_GOLDEN")
    return Path(named) if named else CHECKOUT.parent / "shared" / "golden"


def require() -> Path:
    """Return the golden folder; without it CI fails and other runs skip."""
    path = folder()
    if not (path / "kartothek" / "manifest.json").is_file():
        reason = f"no golden data in {path}; set KARTOSQL_GOLDEN to its folder"
        if os.environ.get("CI") or os.environ.get("KARTOSQL_GOLDEN"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return path


@functools.cache
def load(name: str) -> Any:
    """Return a JSON file of the golden folder, or an empty list where it is absent."""
    path = folder() / name
    return json.loads(path.read_text("utf-8")) if path.is_file() else []


def params(name: str, keep: Callable[[dict[str, Any]], Any] = lambda case: True) -> list[Any]:
    """Return the cases of a file as pytest parameters, named by their id.

    Without golden data there is one placeholder, so that ``require`` gets to say so.
    """
    found = load(name)
    cases = found["cases"] if isinstance(found, dict) else found
    if not cases:
        return [pytest.param(None, id="no-golden-data")]
    return [pytest.param(case, id=case["id"]) for case in cases if keep(case)]


# -- values ----------------------------------------------------------------------------------


def _timestamp(text: str) -> dt.datetime:
    head, _, fraction = text.partition(".")
    if fraction[6:].strip("0"):
        raise ValueError(f"{text}: Python has no nanoseconds")
    return dt.datetime.fromisoformat(f"{head}.{fraction[:6] or '0'}")


def _zoned(text: str) -> dt.datetime:
    moment = dt.datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "$ts": _timestamp,
    "$tstz": _zoned,
    "$date": dt.date.fromisoformat,
    "$dec": Decimal,
    "$bytes": bytes.fromhex,
    "$float": float,
    "$list": lambda items: [decode(item) for item in items],
    "$struct": lambda fields: {name: decode(value) for name, value in fields.items()},
}


def decode(value: Any) -> Any:
    """Return the Python value that ``value`` of a case stands for."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if isinstance(value, dict):
        ((tag, raw),) = value.items()
        return _DECODERS[tag](raw)
    return value


# -- rows ------------------------------------------------------------------------------------


def same(expected: Any, actual: Any) -> bool:
    """Return whether two values are of one type and equal, floats up to rounding."""
    if type(expected) is not type(actual):
        return False
    if isinstance(expected, float):
        if math.isnan(expected) or math.isnan(actual):
            return math.isnan(expected) and math.isnan(actual)
        if expected == 0 == actual:
            return math.copysign(1, expected) == math.copysign(1, actual)
        return math.isclose(expected, actual, rel_tol=1e-9, abs_tol=0)
    if isinstance(expected, list):
        return len(expected) == len(actual) and all(map(same, expected, actual))
    if isinstance(expected, dict):
        return list(expected) == list(actual) and all(same(v, actual[k]) for k, v in expected.items())
    return bool(expected == actual)


def _sort_key(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_sort_key, value)) + "]"
    return repr(value)


def difference(expected: Sequence[Any], actual: Sequence[Any], *, ordered: bool) -> str | None:
    """Return how the decoded rows differ, or None if they are the same."""
    want, got = [list(row) for row in expected], [list(row) for row in actual]
    if not ordered:
        want, got = sorted(want, key=_sort_key), sorted(got, key=_sort_key)
    if len(want) == len(got) and all(map(same, want, got)):
        return None
    lines = [f"{len(want)} rows expected, {len(got)} rows given"]
    wrong = [i for i, pair in enumerate(zip(want, got, strict=False)) if not same(*pair)]
    lines += [f"row {i}:\n  expected {want[i]}\n  given    {got[i]}" for i in wrong[:5]]
    lines += [f"missing {row}" for row in want[len(got) :][:5]] + [f"extra {row}" for row in got[len(want) :][:5]]
    return "\n".join(lines)


def check_rows(case_id: str, what: object, expected: Any, actual: Any, *, ordered: bool = True) -> None:
    """Fail with the case, what was asked and the difference, unless the rows are the same."""
    problem = difference(decode(expected), actual, ordered=ordered)
    if problem:
        pytest.fail(f"{case_id}: {what}\n{problem}", pytrace=False)
