"""Every setting, declared once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kartosql.errors import UsageError

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(b?|[kmgt]i?b?)\s*", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


class _Expected(ValueError):
    """Says what a value has to be."""


def parse_size(value: Any) -> int:
    """Return a number of bytes from an integer or a text such as ``2GiB``."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    match = _SIZE.fullmatch(str(value))
    if not match:
        raise _Expected("a number of bytes such as 500MB or 2GiB")
    unit = match[2].lower().removesuffix("b")
    factor = _UNITS[unit.removesuffix("i")]
    if unit.endswith("i"):
        factor = 1024 ** (["k", "m", "g", "t"].index(unit[0]) + 1)
    number = float(match[1]) * factor
    if number >= 2**63:
        raise _Expected("a number of bytes below 8 EiB")
    return int(number)


def _seconds(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 < number < 1e9:
        raise _Expected("a positive number of seconds")
    return number


def _grace(value: Any) -> float:
    number = _seconds(value)
    if number < 3600:
        raise _Expected("3600 seconds or more: readers and writers that are at work need that")
    return number


def _count(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = 0
    if isinstance(value, bool) or not 1 <= number < 2**31 or number != float(value):
        raise _Expected("a positive whole number")
    return number


def _engine(value: Any) -> str:
    if value not in ("auto", "duckdb", "spark"):
        raise _Expected("auto, duckdb or spark")
    return str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise _Expected("a non-empty text")
    return value


def _yes_or_no(value: Any) -> bool:
    found = {"true": True, "false": False}.get(str(value).lower())
    if found is None:
        raise _Expected("true or false")
    return found


@dataclass(frozen=True)
class Setting:
    """The declaration of one setting."""

    name: str
    default: Any
    parse: Callable[[Any], Any]
    about: str
    duckdb: str | None = None  # name of the DuckDB setting it is handed to
    in_sql: bool = True  # whether SET may change it; where files are written is not for a statement to say


SETTINGS: Mapping[str, Setting] = {
    s.name: s
    for s in (
        Setting("engine", "auto", _engine, "engine that runs the scan: auto, duckdb or spark"),
        Setting(
            "spark_threshold", None, parse_size, "bytes to read above which auto is Spark; else 4 times the memory"
        ),
        Setting("timeout", None, _seconds, "seconds after which a running query is stopped"),
        Setting("max_bytes", None, parse_size, "refuse scans whose selected files hold more bytes"),
        Setting("memory_limit", None, _text, "memory of the engine, e.g. 4GB", "memory_limit"),
        Setting("threads", None, _count, "threads of the engine", "threads"),
        Setting("temp_directory", None, _text, "folder for spilling", "temp_directory", in_sql=False),
        Setting("TimeZone", "UTC", _text, "time zone of the session", "TimeZone"),
        Setting("single_writer", False, _yes_or_no, "write to stores without conditional writes as well", in_sql=False),
        Setting("write_memory", 512 * 10**6, parse_size, "bytes of rows that a write holds in memory before it spills"),
        Setting("grace_period", 7 * 86_400.0, _grace, "seconds that files stay after nothing refers to them"),
        Setting("attach", True, _yes_or_no, "whether statements may ATTACH folders and stores", in_sql=False),
        Setting("default_collation", None, _text, "collation of text comparisons", "default_collation"),
    )
}
_BY_LOWER = {name.lower(): setting for name, setting in SETTINGS.items()}


class Settings:
    """The values of one connection; unset settings have their default."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Any] = {}
        for name, value in (values or {}).items():
            self.set(name, value)

    def __getitem__(self, name: str) -> Any:
        return self._values.get(name, SETTINGS[name].default)

    def set(self, name: str, value: Any) -> None:
        """Set ``name``, matched case-insensitively; ``None`` restores the default."""
        setting = find(name)
        if value is None:
            self._values.pop(setting.name, None)
            return
        try:
            self._values[setting.name] = setting.parse(value)
        except _Expected as e:
            raise UsageError(
                f"{value!r} is no value for the setting {setting.name}",
                code="invalid-setting",
                hint=f"{setting.name}: {setting.about}; expected {e}.",
            ) from None

    def reset(self, name: str) -> None:
        """Restore the default of ``name``."""
        self.set(name, None)

    def copy(self) -> Settings:
        """Return an independent copy."""
        other = Settings()
        other._values = dict(self._values)
        return other

    def engine_settings(self) -> dict[str, Any]:
        """Return the DuckDB settings that follow from the values."""
        return {s.duckdb: self[s.name] for s in SETTINGS.values() if s.duckdb and self[s.name] is not None}


def find(name: str) -> Setting:
    """Return the declaration of ``name`` or raise ``unknown-setting``."""
    setting = _BY_LOWER.get(name.lower())
    if setting is None:
        close = difflib.get_close_matches(name.lower(), _BY_LOWER, 1)
        did = f"Did you mean {_BY_LOWER[close[0]].name}? " if close else ""
        raise UsageError(
            f"There is no setting {name!r}.",
            code="unknown-setting",
            hint=f"{did}Settings: {', '.join(SETTINGS)}.",
        )
    return setting
