"""The calls of a connection that attach what is no dataset of its store, and detach it again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kartosql.engines.duckdb import Runtime
from kartosql.errors import KartosqlError, SqlError, UsageError
from kartosql.failures import tells_failures
from kartosql.result import Query
from kartosql.settings import Settings
from kartosql.sql import Attach, Detach
from kartosql.sql.statements import VerifyData
from kartosql.store import Mounts
from kartosql.tables.names import Tables
from kartosql.tables.table import Table

if TYPE_CHECKING:
    from kartosql.sources.indexing import FolderIndexes
    from kartosql.sources.registry import Attachments


@tells_failures
class Attaching:
    """What a connection knows of attached folders, files and stores."""

    settings: Settings
    _mounts: Mounts
    _runtime: Runtime
    _storage_options: Mapping[str, Any] | None
    _attached: Attachments | None  # made when something is attached

    def _open(self) -> None:
        raise NotImplementedError

    def _tables(self) -> Tables:
        raise NotImplementedError

    @property
    def _attachments(self) -> Attachments:
        if self._attached is None:
            from kartosql.sources.registry import Attachments
            from kartosql.sources.source import Access

            access = Access(self._mounts.main, self._storage_options, self.settings)
            self._attached = Attachments(self._mounts, self._runtime, access)
        return self._attached

    def attach(
        self,
        url: str | os.PathLike[str],
        name: str,
        *,
        type: str = "parquet",  # noqa: A002
        storage_options: Mapping[str, Any] | None = None,
        replace: bool = False,
        **options: Any,
    ) -> None:
        """Make a folder of files, an ODF dataset or another store known as ``name``, to be read.

        ``type`` and ``options`` are those of ATTACH (docs/attach.md).
        Raises ``not-allowed``, ``name-taken``, ``unknown-type``, ``invalid-option``, ``no-files``, and
        what is wrong with the files.
        """
        self._open()
        tables = self._tables()
        self._attachments.attach(
            url,
            name,
            type,
            options,
            is_taken=tables.is_taken,
            storage_options=storage_options,
            replace=replace,
        )

    def detach(self, name: str, *, if_exists: bool = False) -> None:
        """Forget what was attached as ``name``; raises ``not-attached``. Nothing is deleted."""
        self._open()
        self._attachments.detach(name, if_exists=if_exists)

    def _attach_or_detach(self, statement: Attach | Detach) -> Query:
        from kartosql import catalog

        if isinstance(statement, Detach):
            if not self.settings["attach"]:
                raise SqlError("Statements of this connection may not detach.", code="not-allowed", sql=statement.text)
            try:
                done = self._attachments.detach(statement.name, if_exists=statement.if_exists)
            except SqlError as e:
                e.span, e.sql = statement.span, statement.text
                raise
            return Query(catalog.detached(statement.name, done))
        options = dict(statement.options)
        self._attachments.attach(
            statement.url,
            statement.name,
            options.pop("type"),
            options,
            is_taken=self._tables().is_taken,
            replace=statement.replace,
            if_not_exists=statement.if_not_exists,
        )
        return Query(catalog.attached([e for n, e in self._attachments.entries.items() if n == statement.name]))

    def _verify_data(self, statement: VerifyData) -> Query:
        from kartosql import catalog

        found = self._attachments.find(statement.target) if self._attached is not None else None
        checks = getattr(found, "verify", None)
        if checks is None:
            self._tables().find(statement.target, statement.span, statement.text)
            raise SqlError(
                f"{'.'.join(statement.target)!r} has no hashes to verify.",
                code="not-supported",
                hint="VERIFY name checks ODF datasets that are attached, VERIFY SELECT ... the answer of a query.",
                span=statement.span,
                sql=statement.text,
            )
        return Query(catalog.checks(checks()))

    def _indexes_of_folder(self, name: str, spark: Any = None) -> FolderIndexes | None:
        """Return the skipping indexes of what is attached as ``name``, None if that is nothing."""
        found = self._attachments.find((name,)) if self._attached is not None and isinstance(name, str) else None
        if found is None:
            return None
        if spark:
            raise UsageError(
                f"{name!r} is attached: Spark indexes the files of datasets only.", hint="Leave out spark=."
            )
        indexes = getattr(found, "skipping_indexes", None)
        if indexes is None:
            raise UsageError(
                f"{name!r} is attached, and what is attached can only be read.",
                code="unknown-table",
                hint="Skipping indexes are for folders of Parquet and CSV files, and for datasets of the store.",
            )
        made: FolderIndexes = indexes()
        return made

    def _attached_tables(self, tables: Tables) -> list[tuple[str, Table | KartosqlError]]:
        """Return the tables that are attached with what is wrong with them, but for those of attached stores."""
        found: list[tuple[str, Table | KartosqlError]] = []
        for name, _ in self._attachments.tables() if self._attached is not None else ():
            if len(name) == 1:
                try:
                    found.append((name[0], tables.find(name)))
                except KartosqlError as e:
                    found.append((name[0], e))
        return found
