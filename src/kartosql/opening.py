"""Opening a store: what ``kartosql.connect`` does."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from kartosql.connection import Connection
from kartosql.engines.duckdb.runtime import check_setting
from kartosql.errors import UsageError
from kartosql.session import Session
from kartosql.settings import Settings
from kartosql.store import Store
from kartosql.text.escape import escaped

if TYPE_CHECKING:
    from kartosql.typing import Engine, SettingValues
    from kartosql.untrusted import UntrustedConnection


@overload
def connect(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine = "auto",
    read_only: bool | None = None,
    attach: bool | Sequence[str | os.PathLike[str]] | None = None,
    untrusted: Literal[False] = False,
    **settings: Unpack[SettingValues],
) -> Connection: ...


@overload
def connect(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    untrusted: Literal[True],
    workers: int = 1,
    **settings: Unpack[SettingValues],
) -> UntrustedConnection: ...


def connect(
    url: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine = "auto",
    read_only: bool | None = None,
    attach: bool | Sequence[str | os.PathLike[str]] | None = None,
    untrusted: bool = False,
    **settings: Any,
) -> Connection | UntrustedConnection:
    """Open a store of cubes and datasets, and return a Connection.

    ``url`` is a local path or any fsspec URL, ``storage_options`` go to its filesystem. ``attach`` says what may be
    attached: all, nothing, or what lies below some URLs; without it all, but nothing if the connection is
    ``read_only``. With ``read_only=False`` the first write makes the folder of a new store; the logger ``kartosql``
    says in a line that it is new. Other keywords are settings (see docs/python.md). Raises ``store-not-found``,
    ``store-failed``, ``unknown-setting`` and ``invalid-setting``.

    With ``untrusted`` statements may come from strangers: an UntrustedConnection runs them in a worker process, which
    is ended where a statement takes more than ``timeout``, ``memory_limit`` or ``max_bytes``.

    >>> with kartosql.connect("store", read_only=True, timeout=60) as con:
    ...     con.sql("SELECT count(*) FROM trips").rows()
    [(3,)]
    """
    if untrusted:
        from kartosql.untrusted import connect_untrusted

        if attach or read_only is False:
            name, value = ("attach", attach) if attach else ("read_only", read_only)
            raise UsageError(
                f"{name}={value!r} contradicts untrusted=True, which reads the tables of the store alone.",
                hint=f"Leave out {name}, or connect without untrusted=True.",
            )
        return connect_untrusted(url, storage_options, engine=engine, **settings)
    attachable = not read_only if attach is None else attach
    values = Settings({"engine": engine, "attach": attachable, **settings}, check_setting)
    store = Store(url, storage_options, begin=read_only is False)
    if read_only is False and store.is_local and not os.path.isdir(store.root):
        import logging  # not at the top: hardly any store is new

        # On stderr where a program does not say otherwise, and no warning, which some take for an error.
        logging.getLogger("kartosql").warning("%s is new: what is written makes it a store.", escaped(store.url))
    return Connection(Session(store, values, bool(read_only), storage_options))


def connect_as_owner(
    url: str,
    *,
    write: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    attach: Any = True,
    **settings: Any,
) -> Connection:
    """Open a store for somebody who writes the statements and may do whatever the process may, as on the command line.

    Without ``write`` it is read-only to guard against slips; SET and ATTACH are not restrained.
    """
    found: Connection = connect(url, storage_options=storage_options, read_only=not write, attach=attach, **settings)
    found._session.is_of_owner = True
    return found
