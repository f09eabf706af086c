"""Plans that outlive their process: a statement that was planned before is answered without planning it again.

A plan holds what the planner and the engine made of a statement, and the evidence that it is still right: the names
of all metadata files in the store, and the stamps of those that were read. It is used for the same text, or for one
with other constants where an index finds the files. Whatever does not fit exactly ends with no answer, and then the
statement is planned as ever; so do all errors. Only the standard library is imported, and DuckDB's own module without
its Python package, which takes longer to import than the statement takes.
"""

from __future__ import annotations

import json
import os
import stat

from kartosql.text.constants import differ_in_constants_only, masked
from kartosql.user_cache import UserCache, blake2b, cache_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

PLAN, FILES, INDEX = "plan1", "files1", "index1"  # kinds of entries; another layout is another kind
METADATA = (".by-dataset-metadata.json", ".by-dataset-metadata.msgpack.zstd")
MAX_ROWS = 1_000  # more are quicker as Arrow has them
MAX_FILES = 256
MAX_TEXT = 20_000
_SPACES = " \t\r\n"
_TAIL = 1 << 16  # bytes of a file in which its footer is looked for
SIGNED = {"TINYINT": str, "SMALLINT": str, "INTEGER": str, "BIGINT": str}
# How values of a type are written, as the writers of all formats do.
TEXTS: dict[str, Callable[[Any], str]] = {
    **{f"U{name}": text for name, text in SIGNED.items()},
    **SIGNED,
    "DOUBLE": repr,
    "VARCHAR": str,
    "BOOLEAN": lambda value: "true" if value else "false",
    "DATE": lambda value: _moment(value),
    "TIMESTAMP": lambda value: _moment(value),
    "DECIMAL": lambda value: format(value, "f"),
}
FORMATS = ("csv", "tsv", "json", "jsonl")
_JSON_FLOATS = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


class NoAnswer(Exception):
    """The statement is to be planned."""


def answer(place: str, text: str, format: str) -> bytes | None:  # noqa: A002
    """Return what a statement over the store in a local folder prints in a format; None if it is to be planned."""
    if format not in FORMATS or len(text) > MAX_TEXT or "://" in place or "::" in place:
        return None
    try:
        root = os.path.realpath(os.path.abspath(os.path.expanduser(place)))
        text = text.strip(_SPACES).removesuffix(";").rstrip(_SPACES)
        cache = UserCache(cache_folder())
        for shape in (text, masked(text)):
            if (found := cache.get(PLAN, [root, shape])) is not None:
                rows = _rows(cache, root, text, json.loads(bytes(found[0])), bytes(found[1]))
                return b"".join(_written(*rows, format))
    except Exception:  # noqa: BLE001
        return None  # whatever it is, the planner tells it better
    return None


# -- whether a plan is still right -------------------------------------------------------------------


def stamp_of(path: str) -> list[int]:
    """Return what ``Store.stamp`` returns for a file; raises OSError and ``NoAnswer``."""
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode):
        raise NoAnswer
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def metadata_files(root: str) -> list[str]:
    """Return the names of the metadata files in a store, which define the names of tables."""
    return sorted(name for name in os.listdir(root) if name.endswith(METADATA))


def _expect(is_so: object) -> None:
    if not is_so:
        raise NoAnswer


def _rows(cache: UserCache, root: str, text: str, plan: Any, schema: bytes) -> tuple[list[Any], list[str], list[Any]]:
    """Return the names and types of the columns of a statement, and its rows."""
    _expect(differ_in_constants_only(plan["text"], plan["constants"], text))
    _expect(cache_key(metadata_files(root)) == plan["names"])
    for name, stamp in plan["stamps"].items():
        _expect(stamp_of(f"{root}/{name}") == stamp)
    lists: dict[str, Any] = dict(plan["lists"])
    if plan["lookups"]:
        keys = _candidates(cache, plan, text)
        files = {plan["files"]: [_listed(root, key, None, schema) for key in keys]}
        for variable, at, type_, is_shared in plan["keys"]:
            values = [_partition_value(key, plan["partition_keys"], at, type_) for key in keys]
            _expect(not is_shared or len({*values}) == 1)
            lists[variable] = [type_, values[:1] if is_shared else values]
    else:
        files = {
            variable: [_listed(root, key, size, b"") for key, size in of.items()]
            for variable, of in plan["files"].items()
        }
    for (start, end), new in reversed(plan["edits"]):
        text = text[:start] + new + text[end:]
    return plan["columns"], plan["types"], _run(plan, text, files, lists)


def cache_key(parts: Sequence[object]) -> str:
    """Return a text that stands for some texts and numbers."""
    return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def _listed(root: str, key: str, size: int | None, schema: bytes) -> dict[str, Any]:
    """Return a file as DuckDB is given it: one of a known size, or whose footer begins with a schema."""
    path = f"{root}/{key}"
    found = stamp_of(path)[2]
    _expect(os.path.realpath(path) == path)  # the store judges links
    _expect(size is None or size == found)
    if size is None:
        with open(path, "rb", buffering=0) as file:
            file.seek(max(0, found - _TAIL))
            tail = file.read()
        length = int.from_bytes(tail[-8:-4], "little") + 8
        footer = tail[-length:-8]
        _expect(tail.endswith(b"PAR1") and length <= len(tail) and footer.startswith(schema) and b"geo" not in footer)
    return {"filename": path, "file_size": found}


def _candidates(cache: UserCache, plan: Any, text: str) -> list[str]:
    """Return the keys of the files that may hold rows with the constants of a statement, by its indices."""
    from kartosql.formats.sorted_values import SortedValues

    selected: frozenset[int] | None = None
    for identity, spans in plan["lookups"]:
        *ends, _, _, _ = buffers = _cached(cache, INDEX, identity)
        index = SortedValues.of(buffers, plan["count"])
        constants = [text[start:end] for start, end in spans]
        _expect(all(c.startswith("'") if ends else c.isdecimal() for c in constants))
        of = index.files(index.among(c[1:-1] if ends else int(c) for c in constants))
        selected = of if selected is None else selected & of
    _expect(selected and len(selected) <= MAX_FILES)
    places, names = _cached(cache, FILES, plan["table"])
    places = places.cast("Q")
    return [str(names[places[n] : places[n + 1]], "utf-8") for n in sorted(selected or ())]


def _cached(cache: UserCache, kind: str, identity: list[str]) -> list[memoryview]:
    found = cache.get(kind, identity)
    if found is None:
        raise NoAnswer
    return found


def _partition_value(key: str, names: Sequence[str], at: int, type_: str) -> int | str:
    """Return the value of a partition key in the path of a file, if it is plainly there."""
    folders = key.split("/")[2:-1]
    name, _, value = folders[at].partition("=")
    _expect(len(folders) == len(names) and name == names[at] and "%" not in value and "=" not in value)
    if type_ == "VARCHAR":
        return value
    _expect(type_ in SIGNED and value.isascii() and value.isdigit() and len(value) <= 18)
    return int(value)


# -- the run -----------------------------------------------------------------------------------------


def engine() -> Any:
    """Return DuckDB, without the Python package around it where that is possible."""
    try:
        import _duckdb
    except ImportError:
        import duckdb

        return duckdb
    return _duckdb


def _run(plan: Any, text: str, files: dict[str, Any], lists: dict[str, Any]) -> list[Any]:
    """Return the rows of a text in an instance that may read its files only."""
    from kartosql.engines.duckdb.lockdown import CONFIG, lock

    duckdb = engine()
    _expect(duckdb.__version__ == plan["duckdb"])
    # What does not fit into memory is planned, and may spill.
    connection = duckdb.connect(":memory:", config={**CONFIG, "temp_directory": ""})
    try:
        connection.execute("SET GLOBAL python_enable_replacements = false")
        connection.execute("SET GLOBAL TimeZone = 'UTC'")
        lock(connection, [file["filename"] for listed in files.values() for file in listed])
        connection.execute(f"SET GLOBAL disabled_optimizers = {plan['optimizers']}")
        for variable, listed in files.items():
            connection.execute(f"SET VARIABLE {variable} = ?", [listed])
        for variable, (type_, given) in lists.items():
            if type_:
                connection.execute(f"SET VARIABLE {variable} = CAST(? AS {type_}[])", [given])
            else:
                connection.execute(f"SET VARIABLE {variable} = {given}")
        for schema, name, body in plan["views"]:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            connection.execute(f"CREATE VIEW {schema}.{name} AS {body}")
        connection.execute(text)
        _expect([str(column[1]) for column in connection.description] == plan["types"])
        rows = connection.fetchmany(MAX_ROWS + 1)
        _expect(len(rows) <= MAX_ROWS)
        return list(rows)
    finally:
        connection.close()


# -- the answer --------------------------------------------------------------------------------------


def _written(columns: list[str], types: list[str], rows: list[Any], format: str) -> Iterator[bytes]:  # noqa: A002
    """Yield the lines of an answer, as the writers of ``render`` write them."""
    texts = [TEXTS[type_.partition("(")[0]] for type_ in types]
    if format in ("csv", "tsv"):
        separator = "," if format == "csv" else "\t"
        yield separator.join(_cell(name, separator) for name in columns).encode() + b"\n"
        for row in rows:
            cells = ("" if v is None else _cell(text(v), separator) for v, text in zip(row, texts, strict=True))
            yield separator.join(cells).encode() + b"\n"
        return
    heads = [json.dumps(name, ensure_ascii=False) + ":" for name in columns]
    objects = [
        "{" + ",".join(h + _json(v, t, text) for h, v, t, text in zip(heads, row, types, texts, strict=True)) + "}"
        for row in rows
    ]
    if format == "json":
        yield ("[\n" + ",\n".join(objects) + "\n]\n" if objects else "[]\n").encode()
    else:
        yield "".join(line + "\n" for line in objects).encode()


def _cell(text: str, separator: str) -> str:
    special = not text or any(c in text for c in ('"', "\r", "\n", separator))
    return '"' + text.replace('"', '""') + '"' if special else text


def _moment(value: Any) -> str:
    """Return the text of a date or timestamp that Python can hold; its first and last ones stand for infinity."""
    _expect(hasattr(value, "year") and 1 < value.year < 9999)
    return str(value)


def _json(value: Any, type_: str, text: Callable[[Any], str]) -> str:
    if value is None:
        return "null"
    if type_ in ("VARCHAR", "DATE", "TIMESTAMP"):
        return json.dumps(text(value).replace(" ", "T") if type_ == "TIMESTAMP" else text(value), ensure_ascii=False)
    return _JSON_FLOATS.get(text(value), text(value)) if type_ == "DOUBLE" else text(value)
