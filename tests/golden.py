"""The golden data: where it is, how its values are written, and how rows compare."""

from __future__ import annotations

import datetime as dt
import functools
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NoReturn

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
OWN = CHECKOUT / "tests" / "data"
BESIDE = CHECKOUT.parent / "shared"
# Of these only a part was made for this project and stands in OWN; the rest is of public repositories.
_PARTED = ("odf/manifest.json", "xskipper/manifest.json")


def folders() -> list[Path]:
    """Return where golden data may be: KARTOSQL_GOLDEN alone, else in the repository and beside the checkout."""
    named = os.environ.get("KARTOSQL_GOLDEN")
    return [Path(named)] if named else [OWN, BESIDE / "golden"]


def missing(reason: str) -> NoReturn:
    """Fail where the data were asked for, and in CI where there are data beside the checkout; skip elsewhere."""
    if os.environ.get("KARTOSQL_GOLDEN") or (os.environ.get("CI") and BESIDE.is_dir()):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def find(name: str) -> Path:
    """Return a file or folder of the golden data."""
    for folder in folders():
        if (folder / name).exists():
            return folder / name
    missing(f"no {name} in {' or '.join(map(str, folders()))}; KARTOSQL_GOLDEN may name the folder of all golden data")


@functools.cache
def load(name: str) -> Any:
    """Return a JSON file of the golden data, with the entries of all folders; an empty object where there is none."""
    found = [json.loads((f / name).read_text("utf-8")) for f in folders() if (f / name).is_file()]
    if name not in _PARTED or not found:
        return found[0] if found else {}
    lists = {key for given in found for key, value in given.items() if isinstance(value, list)}
    return found[0] | {key: _without_repeats(e for given in found for e in given.get(key, ())) for key in lists}


def _without_repeats(entries: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for entry in entries:
        if entry not in found:
            found.append(entry)
    return found


def entries(name: str, key: str = "cases") -> list[dict[str, Any]]:
    """Return the entries of a file: itself if it is a list, else what stands under ``key``."""
    found = load(name)
    return found if isinstance(found, list) else found.get(key, [])


def params(
    name: str, keep: Callable[[dict[str, Any]], Any] = lambda case: True, *, key: str = "cases", named: str = "id"
) -> list[Any]:
    """Return entries of a file as pytest parameters; without any there is one that is skipped."""
    found = [pytest.param(case, id=case[named]) for case in entries(name, key) if keep(case)]
    reason = f"no such {key} of {name} in {' or '.join(map(str, folders()))}"
    return found or [pytest.param(None, id="no-golden-data", marks=pytest.mark.skip(reason))]


SAMPLES = entries("xskipper/manifest.json", "samples")


def samples(keep: Callable[[dict[str, Any]], Any] = lambda sample: True) -> list[Any]:
    """Return samples of data-skipping metadata as pytest parameters."""
    return params("xskipper/manifest.json", keep, key="samples", named="name")


def sample(name: str) -> dict[str, Any]:
    """Return one sample of data-skipping metadata."""
    for found in SAMPLES:
        if found["name"] == name:
            return found
    missing(f"no sample {name} of data-skipping metadata; those of public repositories stand outside of this one")


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
