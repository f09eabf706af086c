"""Spark's errors as ours."""

from __future__ import annotations

import re

from kartosql.engines.spark.portable.casts import REFUSED
from kartosql.errors import ExecutionError, FormatError, KartosqlError, LimitError, NotPortable, StoreError, UsageError

_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] (.*?)(?: SQLSTATE: \w+)?(?:\n|$)")
_REFUSED = re.compile(r"\[USER_RAISED_EXCEPTION\] " + re.escape(REFUSED) + r"([^\n]*?)(?: SQLSTATE: \w+)?(?:\n|$)")
_OVERFLOW = re.compile(
    r"^(?:[\w.: ]*ArithmeticException: )?(?:long|integer) overflow", re.MULTILINE
)  # of Java, without a condition
_TOO_LARGE = re.compile(r"cannot be represented as Decimal\(38, \d+\)|[Oo]verflow in sum of decimals")
_CORRUPT = re.compile(r"kartosql:corrupt-file:([^\n]*)")
# Conditions that tell of a value, not of the statement or of Spark.
_VALUES = (
    *("ARITHMETIC_OVERFLOW", "BINARY_ARITHMETIC_OVERFLOW", "CAST_INVALID_INPUT", "CAST_OVERFLOW", "DATETIME_OVERFLOW"),
    *("DATETIME_FIELD_OUT_OF_BOUNDS", "DIVIDE_BY_ZERO", "INTERVAL_ARITHMETIC_OVERFLOW", "REMAINDER_BY_ZERO"),
    *("NUMERIC_VALUE_OUT_OF_RANGE", "NUMERIC_OUT_OF_SUPPORTED_RANGE", "USER_RAISED_EXCEPTION", "INVALID_ARRAY_INDEX"),
)
_HINT = "Use engine='duckdb' or 'auto'."


def missing_pyspark() -> UsageError:
    """Return the error about PySpark, or what it needs, where it is not installed."""
    return UsageError("PySpark is not installed.", code="missing-extra", hint="pip install 'kartosql[spark]'")


def translate(error: BaseException, *, interrupted: bool, timed_out: bool) -> KartosqlError:
    """Return the error of ours that an error of Spark means; no traceback of Java goes further."""
    if isinstance(error, KartosqlError):
        return error
    if timed_out:
        return LimitError("The statement ran longer than its timeout.", code="timeout", hint="Raise timeout.")
    if isinstance(error, ImportError):
        return missing_pyspark()
    text = str(error)
    if interrupted or ("cancelled" in text and "SPARK_JOB_CANCELLED" in text):
        return ExecutionError("The statement was interrupted.", code="interrupted")
    refused = _REFUSED.search(text)
    if refused:
        return NotPortable(f"Spark would not treat {refused[1].strip()} as DuckDB does.", hint=_HINT)
    if "kartosql:nanoseconds" in text:
        return NotPortable("The data hold nanoseconds, which Spark does not have.", hint=_HINT)
    if _OVERFLOW.search(text):
        return NotPortable("Spark would not treat so far a date as DuckDB does.", hint=_HINT)
    if _TOO_LARGE.search(text):
        return NotPortable("Spark has no numbers of more than 38 digits.", hint=_HINT)
    corrupt = _CORRUPT.search(text)
    if corrupt:
        return FormatError(
            corrupt[1].strip(),
            code="corrupt-file",
            hint="The file is damaged, or not one that the dataset's writer wrote.",
        )
    return _by_condition(text, type(error).__name__)


def _by_condition(text: str, kind: str) -> KartosqlError:
    found = [(match[1], match[2].strip()) for match in _CONDITION.finditer(text)]
    for condition, message in found:
        if condition in _VALUES or condition.split(".")[0] in _VALUES:
            return ExecutionError(message, code="invalid-value")
    for condition, message in found:
        if condition.startswith("FAILED_READ_FILE"):
            missing = "FILE_NOT_EXIST" in condition or "FileNotFoundException" in text
            if missing:
                return StoreError(message, code="missing-file", hint="A data file was removed while it was read.")
            return FormatError(
                message,
                code="corrupt-file",
                hint="The file is damaged, or not one that the dataset's writer wrote.",
            )
    if "OutOfMemoryError" in text:
        return LimitError("Spark ran out of memory.", code="out-of-memory", hint="Give the driver or executors more.")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    message = found[0][1] if found else (lines[0] if lines else kind)
    return ExecutionError(f"Spark failed: {message}", hint=_HINT)
