"""The Java of ours that a session runs: ``ListedFiles.java``, compiled in the driver when it is first needed."""

from __future__ import annotations

import threading
from importlib import resources
from typing import TYPE_CHECKING, Any

from kartosql.errors import ExecutionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_lock = threading.Lock()


def maker(spark: SparkSession) -> Any:
    """Return the Java object that makes relations and sessions, compiled once per JVM by Spark's own compiler.

    Raises ``spark-failed`` for versions of Spark that it does not fit.
    """
    context: Any = spark._sc
    with _lock:
        found = getattr(context, "_kartosql_maker", None)
        if found is None:
            found = context._kartosql_maker = _compiled(spark)
    return found


def _compiled(spark: SparkSession) -> Any:
    context: Any = spark._sc
    jvm: Any = spark._jvm
    java: Any = spark._jsparkSession
    source = resources.files("kartosql.engines.spark").joinpath("ListedFiles.java").read_text("utf-8")
    try:
        compiler = getattr(jvm, "org.codehaus.janino.SimpleCompiler")()
        compiler.setParentClassLoader(java.getClass().getClassLoader())
        compiler.cook(source)
        kind = compiler.getClassLoader().loadClass("kartosql.ListedFiles$Maker")
        nothing = context._gateway.new_array(getattr(jvm, "java.lang.Object"), 0)
        return kind.getConstructors()[0].newInstance(nothing)
    except Exception as e:
        raise ExecutionError(
            f"This version of Spark does not take lists of files: {str(e).splitlines()[0]}",
            code="spark-failed",
            hint="Use PySpark 4 as the extra 'spark' installs it, or engine='duckdb'.",
        ) from e
