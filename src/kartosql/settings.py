"""Every setting, declared once."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from kartosql.errors import SqlError, UsageError, did_you_mean, quoted
from kartosql.text.escape import is_unicode

_SIZE = re.compile(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*(b?|[kmgt]i?b?)\s*", re.IGNORECASE | re.ASCII)
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*")
_LINKED_ZONES = ("posix/", "right/", "posixrules", "localtime")  # of the system, but no engine knows them
_UNKNOWN_MEMORY = 16 << 30
MIN_MEMORY = 10**6
MAX_THREADS = 1024
ENGINES = ("auto", "duckdb", "spark")


class Expected(ValueError):
    """Says what a value has to be."""


def parse_size(value: Any) -> int:
    """Return a number of bytes from a number or a text such as ``2GiB``."""
    expected = Expected("a number of bytes such as 500MB or 2GiB")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise expected
    if isinstance(value, int | float):
        if not 0 <= value < 2**63 or value != int(value):
            raise expected
        return int(value)
    match = _SIZE.fullmatch(value)
    if not match:
        raise expected
    unit = match[2].lower().removesuffix("b")
    base = 1024 if unit.endswith("i") else 1000
    number = float(match[1]) * base ** " kmgt".index(unit[:1] or " ")
    if number >= 2**63:
        raise Expected("a number of bytes below 8 EiB")
    return int(number)


def machine_memory() -> int:
    """Return the bytes of memory that this machine has."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return _UNKNOWN_MEMORY


def _number(value: Any, read: Callable[[Any], float] = float) -> float:
    """Return a number that is given as one or as text, -1 for anything else."""
    if (isinstance(value, str) and value.isascii()) or (isinstance(value, int | float) and not isinstance(value, bool)):
        with contextlib.suppress(ValueError, OverflowError):
            return read(value)
    return -1


def whole(value: Any, least: int = 0, most: int = 1_000_000) -> int:
    """Return a whole number, which may be given as text."""
    number = _number(value, int)
    if not least <= number <= most or number != float(value):
        raise Expected(f"a {'positive ' * least}whole number, at most {most}")
    return int(number)


def where(test: Callable[[Any], bool], expected: str, read: Callable[[Any], Any] = lambda value: value) -> Any:
    """Return what reads values that pass a test; ``expected`` says which these are."""

    def checked(value: Any) -> Any:
        if not test(found := read(value)):
            raise Expected(expected)
        return found

    return checked


_memory = where(lambda size: size >= MIN_MEMORY, "a number of bytes such as 4GB, and 1MB at least", parse_size)
_seconds = where(lambda number: 0 < number < 1e9, "a positive number of seconds", _number)
_grace = where(
    lambda number: number >= 3600, "3600 seconds or more: readers and writers that are at work need that", _seconds
)
_engine = where(lambda value: isinstance(value, str) and value in ENGINES, "auto, duckdb or spark")
_text = where(lambda v: isinstance(v, str) and v != "" and "\0" not in v and is_unicode(v), "a non-empty text")
_zone = where(
    lambda value: isinstance(value, str) and _ZONE.fullmatch(value) is not None,
    "a time zone such as UTC or Europe/Berlin",
)
_yes_or_no = where(
    lambda value: isinstance(value, bool),
    "true or false",
    lambda value: {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else value,
)


def _cache(value: Any) -> Any:
    from kartosql.user_cache import OFF  # not at the top: a prompt waits for what it imports

    if value is False or (isinstance(value, str) and value.lower() in (OFF, "false")):
        return OFF
    return os.path.abspath(os.path.expanduser(_text(os.fspath(value) if isinstance(value, os.PathLike) else value)))


def _is_doubtful_zone(value: str) -> bool:
    """Return whether only the engine knows if a zone is valid: it takes any case, and names of its own."""
    import zoneinfo  # not at the top: hardly anybody sets a zone

    if value.startswith(_LINKED_ZONES):
        return True
    try:
        zoneinfo.ZoneInfo(value)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return True
    return False


def _attachable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        found = tuple(os.fspath(v) if isinstance(v, os.PathLike) else v for v in value)
        for prefix in found:
            _text(prefix)
        # What is relative is so to the folder of now, not to that of a later statement.
        return tuple(p if "://" in p or "::" in p else os.path.abspath(os.path.expanduser(p)) for p in found)
    try:
        return _yes_or_no(value)
    except Expected:
        raise Expected("true, false, or a list of URLs and folders below which all may be attached") from None


@dataclass(frozen=True)
class Setting:
    """The declaration of one setting."""

    name: str
    default: Any
    parse: Callable[[Any], Any]
    about: str
    of_duckdb: bool = False  # whether it is handed to DuckDB, where it has the same name
    in_sql: bool = True  # whether SET may change it; where files are written is not for a statement to say
    # A limit: SET on a read-only connection may make it smaller. All others it leaves alone, as they are either of no
    # use there, or change the answers and the work of others on the same connection.
    narrows: bool = False
    most: Callable[[], float] | None = None  # the limit that holds where none was given
    is_doubtful: Callable[[Any], bool] | None = None  # whether only the engine can tell that a value is right


_threads = partial(whole, least=1, most=MAX_THREADS)
_of_duckdb = partial(Setting, of_duckdb=True)
_limit = partial(_of_duckdb, narrows=True)


def _cap(what: str, about: str) -> Setting:
    return Setting(f"max_{what}", None, partial(whole, least=1), about, narrows=True)


CAPPED = ("columns", "conditions", "subqueries", "constants", "nesting")


SETTINGS: Mapping[str, Setting] = {
    s.name: s
    for s in (
        Setting("engine", "auto", _engine, "engine that runs the scan: auto, duckdb or spark"),
        Setting(
            "spark_threshold", None, parse_size, "bytes to read above which auto is Spark; else 4 times the memory"
        ),
        Setting("timeout", None, _seconds, "seconds after which a running query is stopped", narrows=True),
        Setting("max_bytes", None, parse_size, "refuse scans whose selected files hold more bytes", narrows=True),
        _cap("columns", "refuse statements with more columns behind SELECT"),
        _cap("conditions", "refuse statements with AND and OR more often"),
        _cap("subqueries", "refuse statements with more subqueries"),
        _cap("constants", "refuse statements with more constants"),
        _cap("nesting", "refuse statements with brackets and CASE on more levels"),
        _limit("memory_limit", None, _memory, "memory of the engine, e.g. 4GB", most=lambda: machine_memory() * 0.8),
        _limit("threads", None, _threads, "threads of the engine", most=lambda: os.cpu_count() or 1),
        _of_duckdb("temp_directory", None, _text, "folder for spilling", in_sql=False),
        Setting("cache", None, _cache, "folder of what is kept for later processes, or off", in_sql=False),
        Setting("keep_answers", True, _yes_or_no, "whether small answers are kept for repeated statements"),
        _of_duckdb("TimeZone", "UTC", _zone, "time zone of the session", is_doubtful=_is_doubtful_zone),
        Setting("single_writer", False, _yes_or_no, "write to stores without conditional writes as well", in_sql=False),
        Setting("write_memory", 512 * 10**6, parse_size, "bytes of rows that a write holds in memory before it spills"),
        Setting("grace_period", 7 * 86_400.0, _grace, "seconds that files stay after nothing refers to them"),
        Setting("history_versions", 1000, whole, "versions of a dataset before the present one that stay readable"),
        Setting("history_days", 30, whole, "days that a version stays readable after another took its place"),
        Setting("attach", True, _attachable, "whether anything may be attached, or below which URLs", in_sql=False),
        _of_duckdb("default_collation", None, _text, "collation of text comparisons", is_doubtful=lambda _: True),
    )
}
_OF_DUCKDB = [name for name, setting in SETTINGS.items() if setting.of_duckdb]
_ARGUMENTS = ("read_only", "storage_options", "untrusted")  # of connect(), which are no settings


class Settings:
    """The values of one connection; unset settings have their default.

    ``values`` are what the owner gave: RESET goes back to them. ``check`` raises for what the engine does not take.
    """

    declared: ClassVar[Mapping[str, Setting]] = SETTINGS
    noun: ClassVar[str] = "setting"

    def __init__(
        self, values: Mapping[str, Any] | None = None, check: Callable[[str, Any], None] | None = None
    ) -> None:
        self._values: dict[str, Any] = {}
        self._check = check
        for name, value in (values or {}).items():
            self.set(name, value)
        self._given = dict(self._values)

    @classmethod
    def find(cls, name: str) -> Setting:
        """Return the declaration of ``name`` or raise ``unknown-setting``."""
        if not isinstance(name, str):
            raise UsageError(f"The name of a {cls.noun} is text, not {type(name).__name__}.", code="unknown-setting")
        found = next((s for known, s in cls.declared.items() if known.lower() == name.lower()), None)
        if found is None:
            meant = did_you_mean(name, (*cls.declared, *_ARGUMENTS), "")
            hint = f"{meant} {cls.noun.title()}s: {', '.join(cls.declared)}.".lstrip()
            raise UsageError(f"There is no {cls.noun} {name!r}.", code="unknown-setting", hint=hint)
        return found

    def __getitem__(self, name: str) -> Any:
        return self._values.get(name, self.declared[name].default)

    def set(self, name: str, value: Any) -> None:
        """Set ``name``, matched case-insensitively; ``None`` restores the default."""
        setting = self.find(name)
        if value is None:
            self._values.pop(setting.name, None)
        else:
            self._values[setting.name] = self._parsed(setting, value)

    def _parsed(self, setting: Setting, value: Any) -> Any:
        """Return a value as it is kept; raises ``invalid-setting``."""
        try:
            parsed = setting.parse(value)
        except Expected as e:
            raise UsageError(
                f"{quoted(value)} is no value for the {self.noun} {setting.name}",
                code="invalid-setting",
                hint=f"{setting.name}: {setting.about}; expected {e}.",
            ) from None
        if self._check is not None and setting.is_doubtful is not None and setting.is_doubtful(parsed):
            self._check(setting.name, parsed)
        return parsed

    def reset(self, name: str) -> None:
        """Set ``name`` to what the owner gave, or else to the default."""
        self.set(name, self._given.get(self.find(name).name))

    def narrow(self, name: str, value: Any) -> None:
        """Set ``name`` to a value that is within what the owner gave; raises ``not-allowed``."""
        setting = self.find(name)
        if not setting.narrows:
            raise _not_for_statements(setting, "of a read-only connection is given to connect() only")
        parsed = self._parsed(setting, value)
        most = self._given.get(setting.name, setting.most() if setting.most is not None else None)
        if most is not None and parsed > most:
            raise _not_for_statements(setting, f"of this connection is {most:.15g} at most")
        self._values[setting.name] = parsed

    def copy(self) -> Settings:
        """Return an independent copy."""
        other = Settings(check=self._check)
        other._values, other._given = dict(self._values), self._given
        return other

    def caps(self) -> dict[str, int]:
        """Return what statements may have at most, by what is capped; only what is."""
        return {what: most for what in CAPPED if (most := self._values.get(f"max_{what}")) is not None}

    def to_dict(self) -> dict[str, Any]:
        """Return what is set, with values by name."""
        return dict(self._values)

    def engine_settings(self) -> dict[str, Any]:
        """Return the DuckDB settings that follow from the values."""
        found = {name: value for name in _OF_DUCKDB if (value := self[name]) is not None}
        if "memory_limit" in found:
            found["memory_limit"] = f"{found['memory_limit']}B"
        return found


def _not_for_statements(setting: Setting, why: str) -> SqlError:
    hint = "Whoever opens a connection with read_only=True says what holds on it; SET may only make limits smaller."
    return SqlError(f"The setting {setting.name!r} {why}.", code="not-allowed", hint=hint)


find = Settings.find
