"""Arrow data as text, HTML and files; no engine."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kartosql.render.formats import write_file as write_file
    from kartosql.render.formats import write_stream as write_stream

__all__ = ["write_file", "write_stream"]


def __getattr__(name: str) -> Any:
    # Lazy, as the command line escapes its messages before it has pyarrow.
    if name == "write_file":
        from kartosql.render.formats import write_file

        return write_file
    if name == "write_stream":
        from kartosql.render.formats import write_stream

        return write_stream
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
