"""HTML for notebooks and files: all text escaped, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from kartosql.text.escape import escaped

# Colours are those of the page around it, so it is readable on light and dark.
STYLE = (
    "<style>.kartosql{font:13px/1.4 system-ui,sans-serif}"
    ".kartosql table{border-collapse:collapse;margin:.4em 0}"
    ".kartosql th,.kartosql td{padding:.15em .7em;border-bottom:1px solid rgba(128,128,128,.35);text-align:left;"
    "vertical-align:top}.kartosql .n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
    ".kartosql p{margin:.4em 0}.kartosql .i{margin-left:1.2em}"
    ".kartosql .d{opacity:.65}.kartosql code{font-family:ui-monospace,monospace}"
    ".kartosql .b{display:inline-block;height:.6em;background:#4c78a8}</style>"
)


def text(value: object) -> str:
    """Return a text for HTML: on one line, control and bidi characters shown as escapes, markup escaped."""
    from html import escape  # not at the top: a prompt waits for what it imports

    return escape(escaped(str(value)))


def code(value: object) -> str:
    """Return a piece of SQL for HTML."""
    return f"<code>{text(value)}</code>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Container[int] = ()) -> str:
    """Return a table; the cells are HTML already, the head is text."""

    def cell(tag: str, at: int, inner: str) -> str:
        return f'<{tag} class="n">{inner}</{tag}>' if at in right else f"<{tag}>{inner}</{tag}>"

    lines = ["<table>", "<thead><tr>" + "".join(cell("th", i, text(h)) for i, h in enumerate(head)) + "</tr></thead>"]
    lines.append("<tbody>")
    lines += ["<tr>" + "".join(cell("td", i, c) for i, c in enumerate(row)) + "</tr>" for row in rows]
    return "\n".join([*lines, "</tbody>", "</table>"])


def fragment(*pieces: str) -> str:
    """Return pieces of HTML as one, with the style they need."""
    return "\n".join([STYLE, '<div class="kartosql">', *filter(None, pieces), "</div>"])


def document(title: str, body: str) -> str:
    """Return a whole page that needs nothing but itself."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="color-scheme" content="light dark"><title>{text(title)}</title></head>\n'
        f"<body>\n{body}\n</body></html>"
    )
