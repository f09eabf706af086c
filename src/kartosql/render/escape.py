"""The escapes of ``kartosql.text.escape``, where those who print tables look for them."""

from kartosql.text.escape import escaped, escaped_csv, escaped_json, escaped_lines, is_unsafe, width

__all__ = ["escaped", "escaped_csv", "escaped_json", "escaped_lines", "is_unsafe", "width"]
