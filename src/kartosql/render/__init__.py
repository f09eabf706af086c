"""Arrow data as text, HTML and files; no engine."""

from kartosql.render.files import write_file
from kartosql.render.formats import FORMATS, write_stream

__all__ = ["FORMATS", "write_file", "write_stream"]
