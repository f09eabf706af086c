"""Types of what calls take and return, for editors and type checkers; nothing here is needed to run."""

from typing import Any, Literal, NotRequired, TypedDict

Engine = Literal["auto", "duckdb", "spark"]
FileFormat = Literal["parquet", "arrow", "csv", "tsv", "json", "jsonl", "html", "markdown", "box", "vertical"]
SourceType = Literal["parquet", "csv", "odf", "kartothek", "delta", "iceberg"]
PublishedType = Literal["delta", "iceberg"]
DocumentFormat = Literal["json", "msgpack"]
Size = int | float | str  # a number of bytes, also as "500MB"


class SettingValues(TypedDict, total=False):
    """Settings of a connection, but for those that are arguments of their own."""

    spark_threshold: Size | None
    timeout: float | None
    max_bytes: Size | None
    max_columns: int | None
    max_conditions: int | None
    max_subqueries: int | None
    max_constants: int | None
    max_nesting: int | None
    memory_limit: Size | None
    threads: int | None
    temp_directory: str | None
    cache: Any
    keep_answers: bool
    TimeZone: str
    single_writer: bool
    write_memory: Size
    grace_period: float
    history_versions: int
    history_days: int
    default_collation: str | None


class StepDict(TypedDict):
    """What one condition left of the files of a dataset."""

    condition: str
    by: str
    files_before: int
    files_after: int
    alternatives: NotRequired[list[dict[str, Any]]]


class DatasetDict(TypedDict):
    """What is read of one dataset, sizes None where nobody asked for them."""

    dataset: str
    join: str
    files_total: int
    files_selected: int
    bytes_total: int | None
    bytes_selected: int | None
    files: list[str]
    answered_from: Literal["metadata", "memory", "files"]
    steps: list[StepDict]
    bytes_after_steps: list[int | None]


class ScanDict(TypedDict):
    """What is read of one table of a statement, and why."""

    table: str
    cube: str | None
    datasets: list[DatasetDict]
    eliminated: list[str]
    conditions: list[str]
    residual: str | None
    by_position: str | None
    kept_because: str | None
    not_used: list[dict[str, str]]
    at: str | int | None


class ScanReportDict(TypedDict):
    """What ``ScanReport.to_dict`` returns; ``actual`` and ``operators`` are those of a run."""

    engine: str
    engine_reason: str
    sql: str
    scans: list[ScanDict]
    phases: dict[str, float]
    actual: NotRequired[dict[str, Any]]
    operators: NotRequired[list[dict[str, Any]]]


class WriteReport(TypedDict):
    """What a commit did to one dataset; ``sequence`` and ``id`` are None where there was nothing to commit."""

    files: int
    rows: int
    bytes: int
    removed: int
    sequence: int | None
    id: str | None
