"""Pruned scans and the user's text as Spark SQL; PySpark is imported when it is first needed."""
