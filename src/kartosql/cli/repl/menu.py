"""The menu of completions: what the completer finds, as prompt_toolkit shows it."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from kartosql.cli.repl.start import Behind
from kartosql.text.escape import escaped

MOST = 20_000  # characters of a text that is completed


class Choice(Completion):
    """A completion, and what is put behind the cursor when it is taken."""

    suffix = ""


class Menu(Completer):
    """Completes with what is known at the moment; ``answered`` counts how often it was asked."""

    def __init__(self, behind: Behind) -> None:
        self._behind = behind
        self.answered = 0

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yield the completions at the cursor."""
        self.answered += 1
        if len(document.text) > MOST or "kartosql.cli.repl.shell" not in sys.modules:
            return
        shell = self._behind.ready_shell
        if shell is None:
            return
        from kartosql.cli.repl.complete import candidates

        for found in candidates(document.text, document.cursor_position, shell, self._behind.known):
            if not complete_event.completion_requested and not found.unasked:
                continue
            choice = Choice(
                found.text,
                start_position=found.start - document.cursor_position,
                display=escaped(found.shown or found.text),
                display_meta=escaped(found.about),
            )
            choice.suffix = found.suffix
            yield choice
