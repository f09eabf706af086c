"""Highlighting while typing, and what is shown of characters that would disturb the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable

from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.lexers import Lexer

from kartosql.text.escape import is_unsafe

MOST = 20_000  # characters; longer texts were pasted, and stay without colours
HIDDEN = "�"


class SqlLexer(Lexer):
    """Colours from the tokenizer of the statements."""

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        """Return what gives the coloured text of a line."""
        lines = document.lines
        text = document.text
        if text.lstrip()[:1] in (".", "\\") and "\n" not in text.strip():
            return lambda number: [("class:command", lines[number])]
        # It takes a moment to import, which comes after the prompt.
        if len(text) > MOST or "kartosql.sql.lexemes" not in sys.modules:
            return lambda number: [("", lines[number])]
        styled = _styled(text)
        return lambda number: styled[number] if number < len(styled) else []


def _styled(text: str) -> list[StyleAndTextTuples]:
    from kartosql.sql.lexemes import lexemes

    fragments: list[tuple[str, str]] = []
    at = 0
    for lexeme in lexemes(text):
        fragments.append(("", text[at : lexeme.start]))
        fragments.append((f"class:{lexeme.kind}", text[max(at, lexeme.start) : lexeme.end]))
        at = max(at, lexeme.end)
    fragments.append(("", text[at:]))
    styled: list[StyleAndTextTuples] = [[]]
    for style, piece in fragments:
        first, *others = piece.split("\n")
        styled[-1].append((style, first))
        for line in others:
            styled.append([(style, line)])
    return styled


class SafeText(Processor):
    """Shows one sign for each character that could reorder or hide text; the text itself stays."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        """Return the line as it is shown."""
        shown: StyleAndTextTuples = []
        for style, text, *_ in transformation_input.fragments:
            if not text.isprintable():
                # Tabs and control characters are shown by the prompt itself.
                text = "".join(HIDDEN if ord(c) > 0x9F and is_unsafe(c) else c for c in text)
            shown.append((style, text))
        return Transformation(shown)
