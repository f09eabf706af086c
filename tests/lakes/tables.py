"""Tables as other programs write them, with deletes, other schemas and versions, and as their own readers read them."""

from __future__ import annotations

import contextlib
import math
import random
import uuid
import warnings
from pathlib import Path
from typing import Any, ClassVar

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo, IsNull
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, MonthTransform, TruncateTransform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

import delta_tables
from differential.values import ARROW, literal
from sources.iceberg_tables import HandTable


class Lake:
    """One table of a writer; ``kinds`` are those of its columns, ``key`` the one by which its files are parted."""

    type: ClassVar[str]
    keys: ClassVar[tuple[str, ...]] = ("int", "text", "date", "bool")
    kinds_of: ClassVar[tuple[str, ...]] = (
        "int", "float", "text", "digits", "date", "time", "zone", "dec", "bool", "small", "single", "bytes",
    )  # fmt: skip

    def __init__(self, root: Path, kinds: dict[str, str], key: str | None, rng: random.Random) -> None:
        self.root, self.kinds, self.key, self.rng = root, kinds, key, rng
        self.former: dict[str, str] = {}  # names that columns had, and their kinds

    @property
    def url(self) -> str:
        """Where it is attached."""
        return str(self.root)

    def append(self, rows: pa.Table) -> None:
        raise NotImplementedError

    def delete(self, column: str, value: Any) -> None:
        raise NotImplementedError

    def compact(self) -> None:
        """Write the same rows into other files."""

    def evolve(self, name: str, kind: str) -> None:
        """Add a column, which rows that are there do not have."""
        self.kinds[name] = kind

    def past(self) -> dict[str, int] | None:
        """Return the option of ATTACH for the state of now, if there are versions of it."""
        return None

    def arrow(self, past: dict[str, int] | None = None) -> pa.Table:
        """Return the rows as the table's own reader has them, now or of a state of the ``past``."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what is open."""


def _is(column: str, value: Any) -> str:
    return f"{column} IS NULL" if value is None else f"{column} = {literal(value)}"


class DeltaRs(Lake):
    """A Delta table of delta-rs, to which Polars appends, too."""

    type = "delta"

    def append(self, rows: pa.Table) -> None:
        by = [self.key] if self.key else None
        if self.rng.random() < 0.3:
            options: Any = {"schema_mode": "merge", "partition_by": by}
            pl.DataFrame(pl.from_arrow(rows)).write_delta(self.url, mode="append", delta_write_options=options)
        else:
            deltalake.write_deltalake(self.url, rows, mode="append", partition_by=by, schema_mode="merge")

    def delete(self, column: str, value: Any) -> None:
        if self.kinds[column] != "time":  # which delta-rs compares with nanoseconds, and fails
            deltalake.DeltaTable(self.url).delete(_is(column, value))

    def compact(self) -> None:
        table = deltalake.DeltaTable(self.url)
        if self.rng.random() < 0.5:
            table.optimize.compact()
        table.create_checkpoint()

    def past(self) -> dict[str, int] | None:
        return {"version": deltalake.DeltaTable(self.url).version()}

    def arrow(self, past: dict[str, int] | None = None) -> pa.Table:
        return deltalake.DeltaTable(self.url, **(past or {})).to_pyarrow_table()


_DELTA = {
    "int": "long", "small": "integer", "float": "double", "single": "float", "text": "string", "digits": "string",
    "date": "date", "time": "timestamp_ntz", "zone": "timestamp", "bool": "boolean", "bytes": "binary",
    "dec": "decimal(9,2)",
}  # fmt: skip


class DeltaVectors(Lake):
    """A Delta table with deletion vectors, by hand: delta-rs reads and does not write these."""

    type = "delta"

    def __init__(self, root: Path, kinds: dict[str, str], key: str | None, rng: random.Random) -> None:
        super().__init__(root, kinds, key, rng)
        fields = [self._field(n, k) for n, k in kinds.items()]
        features = ("deletionVectors", "timestampNtz")
        on = {"delta.enableDeletionVectors": "true"}
        self._table = delta_tables.DeltaTable(root, fields, [key] if key else [], features=features, configuration=on)

    def _field(self, name: str, kind: str) -> dict[str, Any]:
        return delta_tables.column(name, _DELTA[kind])

    def append(self, rows: pa.Table) -> None:
        by_key: dict[Any, list[dict[str, Any]]] = {}
        for row in rows.to_pylist():
            by_key.setdefault(row[self.key] if self.key else None, []).append(row)
        for own in by_key.values():
            odd = any(isinstance(v, float) and math.isinf(v) for row in own for v in row.values())
            self._table.add(own, **({"stats": None} if odd else {}))

    def delete(self, column: str, value: Any) -> None:
        for name, rows in list(self._table.rows.items()):
            gone = [n for n, row in enumerate(rows) if row is None or row.get(column) == value]
            if any(rows[n] is not None for n in gone):
                self._table.delete(name, gone, self.rng.choice("uip"), self.rng.random() < 0.3)

    def compact(self) -> None:
        self._table.checkpoint(*self.rng.choice([("classic", 1), ("parts", 2), ("parquet", 2), ("json", 1)]))

    def evolve(self, name: str, kind: str) -> None:
        super().evolve(name, kind)
        self._table.evolve([*self._table.fields, self._field(name, kind)])

    def past(self) -> dict[str, int] | None:
        return {"version": self._table.version}

    def arrow(self, past: dict[str, int] | None = None) -> pa.Table:
        table = deltalake.DeltaTable(self.url, **(past or {}))
        return pa.table(deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t"))


class PyIceberg(Lake):
    """An Iceberg table of pyiceberg, with partition transforms."""

    type = "iceberg"

    def __init__(self, root: Path, kinds: dict[str, str], key: str | None, rng: random.Random) -> None:
        super().__init__(root, kinds, key, rng)
        root.mkdir()
        self._catalog = SqlCatalog("c", uri=f"sqlite:///{root}/catalog.db", warehouse=f"file://{root}")
        self._catalog.create_namespace("n")
        schema = pa.schema([(c, ARROW[k]) for c, k in kinds.items()])
        told = {"write.metadata.metrics.default": rng.choice(["truncate(16)", "full", "counts", "truncate(2)"])}
        self._table: Any = self._catalog.create_table("n.t", schema, properties=told)
        if key is not None:
            self._part(key, IdentityTransform())

    def _part(self, column: str, transform: Any) -> None:
        # It may be parted by that already, which pyiceberg refuses.
        with contextlib.suppress(ValueError), self._table.update_spec() as update:
            update.add_field(column, transform, f"p{self.rng.randrange(10**9)}")

    @property
    def url(self) -> str:
        return str(self._table.location().removeprefix("file://"))

    def append(self, rows: pa.Table) -> None:
        self._table.append(rows.select(self.kinds))

    def delete(self, column: str, value: Any) -> None:
        if self.kinds[column] == "dec":  # pyiceberg takes no literal of other digits
            return
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Delete operation did not match any records")
            self._table.delete(IsNull(column) if value is None else EqualTo(column, value))

    def compact(self) -> None:
        """Write all rows anew, part what comes by other values from now on, and rename a column."""
        self._table.overwrite(self._table.scan().to_arrow())
        transforms = {"int": [BucketTransform(3), TruncateTransform(2)], "text": [TruncateTransform(1)],
                      "date": [MonthTransform()], "time": [DayTransform()]}  # fmt: skip
        known = [(c, t) for c, k in self.kinds.items() if c != self.key for t in transforms.get(k, ())]
        if known:
            self._part(*self.rng.choice(known))
        old = self.rng.choice([c for c in self.kinds if c != self.key])
        with self._table.update_schema() as update:
            update.rename_column(old, f"{old}r")
        self.former[old] = self.kinds[old]
        self.kinds = {f"{old}r" if c == old else c: k for c, k in self.kinds.items()}

    def evolve(self, name: str, kind: str) -> None:
        super().evolve(name, kind)
        with self._table.update_schema() as update:
            update.add_column(name, _ICEBERG[kind])

    def past(self) -> dict[str, int] | None:
        return {"snapshot": self._table.current_snapshot().snapshot_id}

    def arrow(self, past: dict[str, int] | None = None) -> pa.Table:
        return self._table.scan(snapshot_id=None if past is None else past["snapshot"]).to_arrow()

    def close(self) -> None:
        self._catalog.close()


_ICEBERG: dict[str, IcebergType] = {
    "int": LongType(), "float": DoubleType(), "text": StringType(), "digits": StringType(), "date": DateType(),
    "time": TimestampType(), "zone": TimestamptzType(), "bool": BooleanType(), "dec": DecimalType(9, 2),
}  # fmt: skip


class IcebergPositions(Lake):
    """An Iceberg table with position deletes, by hand: pyiceberg reads and does not write these."""

    type = "iceberg"
    keys = ("int", "text", "bool")
    kinds_of = tuple(_ICEBERG)

    def __init__(self, root: Path, kinds: dict[str, str], key: str | None, rng: random.Random) -> None:
        super().__init__(root, kinds, key, rng)
        fields = [NestedField(n, c, _ICEBERG[k]) for n, (c, k) in enumerate(kinds.items(), 1)]
        part = [PartitionField([*kinds].index(key) + 1, 1000, IdentityTransform(), key)] if key is not None else []
        self._table = HandTable(root, Schema(*fields, schema_id=0), PartitionSpec(*part, spec_id=0))
        self._files: list[tuple[DataFile, list[Any], list[dict[str, Any] | None]]] = []

    def append(self, rows: pa.Table) -> None:
        made = []
        for value in rows[self.key].unique().to_pylist() if self.key is not None else [None]:
            own = rows
            if self.key is not None:
                same = pc.is_null(rows[self.key]) if value is None else pc.equal(rows[self.key], pa.scalar(value))
                own = rows.filter(same)
            part = [] if self.key is None else [value]
            file = self._table.data(own, part, bounds=self.rng.random() < 0.8)
            self._files.append((file, part, own.to_pylist()))
            made.append(file)
        self._table.commit(*made)

    def delete(self, column: str, value: Any) -> None:
        made = []
        for file, part, rows in self._files:
            gone = [n for n, row in enumerate(rows) if row is not None and row.get(column) == value]
            if gone:
                made.append(self._table.positions([(file, n) for n in gone], part))
                for n in gone:
                    rows[n] = None
        if made:
            self._table.commit(*made)

    def evolve(self, name: str, kind: str) -> None:
        super().evolve(name, kind)
        fields = [*self._table.schema.fields, NestedField(50, name, _ICEBERG[kind])]
        self._table.evolve(Schema(*fields, schema_id=1))

    def past(self) -> dict[str, int] | None:
        return {"snapshot": self._table.snapshots[-1]["snapshot-id"]}

    def arrow(self, past: dict[str, int] | None = None) -> pa.Table:
        newest = self.root / "metadata" / f"v{self._table.sequence}.metadata.json"
        found = StaticTable.from_metadata(f"file://{newest}")
        return found.scan(snapshot_id=None if past is None else past["snapshot"]).to_arrow()


class Folder(Lake):
    """Parquet files of DuckDB and Polars; to delete rows they are written again, or are gone."""

    type = "parquet"
    keys = ("int", "date")
    kinds_of = (*Lake.kinds_of, "big")

    def append(self, rows: pa.Table) -> None:
        self.root.mkdir(exist_ok=True)
        if self.key is None and self.rng.random() < 0.5:
            frame = pl.DataFrame(pl.from_arrow(rows))
            frame.write_parquet(self.root / f"{uuid.uuid4().hex}.parquet", row_group_size=3)
            return
        by = f", PARTITION_BY ({self.key}), OVERWRITE_OR_IGNORE, FILENAME_PATTERN 'x{{uuid}}'" if self.key else ""
        target = self.root if self.key else self.root / f"{uuid.uuid4().hex}.parquet"
        with duckdb.connect(":memory:", config={"threads": "1"}) as con:
            con.execute("SET TimeZone = 'UTC'")
            con.register("rows", rows)
            con.execute(f"COPY rows TO '{target}' (FORMAT parquet{by})")

    def delete(self, column: str, value: Any) -> None:
        for path in sorted(self.root.rglob("*.parquet")):
            with pq.ParquetFile(path) as file:
                rows = file.read()
            if column not in rows.column_names:
                continue
            kept = pa.array([v != value for v in rows[column].to_pylist()], pa.bool_())
            if not any(kept.to_pylist()) and len([*self.root.rglob("*.parquet")]) > 1:
                path.unlink()
            elif not all(kept.to_pylist()):
                made = path.with_name(f".{path.name}")
                pq.write_table(rows.filter(kept), made)
                made.rename(path)

    def arrow(self, past: dict[str, int] | None = None) -> pa.Table:
        with duckdb.connect(":memory:", config={"threads": "1"}) as con:
            con.execute("SET TimeZone = 'UTC'")
            how = f"union_by_name = true, hive_partitioning = {self.key is not None}"
            return con.sql(f"FROM read_parquet('{self.root}/**/*.parquet', {how})").to_arrow_table()


LAKES: tuple[type[Lake], ...] = (DeltaRs, PyIceberg, Folder, DeltaVectors, IcebergPositions)
