"""The front with all that a terminal can do: several lines, keys, colours, history, completion."""

from __future__ import annotations

import sys

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.output.color_depth import ColorDepth
from prompt_toolkit.styles import Style

from kartosql.cli.repl.history import History, place
from kartosql.cli.repl.keys import bindings
from kartosql.cli.repl.looks import SafeText, SqlLexer
from kartosql.cli.repl.menu import Menu
from kartosql.cli.repl.start import NOWHERE, Behind, greeting
from kartosql.cli.repl.theme import prompt_styles
from kartosql.text.escape import escaped

MENU_LINES = 8
PAUSE = 0.05  # seconds until a completion that could not begin is tried again
TRIES = 40


def run(behind: Behind, told: list[str]) -> None:
    """Prompt until the shell is left; raises what opening the store raises."""
    screen = behind.screen
    for text in told:
        screen.say(text, "hint")
    screen.say(greeting(behind.place), "note")
    front = Front(behind)
    behind.start()
    while True:
        try:
            text = front.prompt()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if behind.error is not None:
            raise behind.error
        if not text.strip():
            continue
        try:
            shell = behind.shell()
        except KeyboardInterrupt:
            continue
        shell.ask = input
        try:
            if not text.lstrip().startswith((".", "\\")) and not _is_ready(text):
                text += "\n;"  # it was sent as it is
            shell.execute(text)
        except SystemExit:
            return
        front.draft, shell.draft = shell.draft or "", None


def _is_ready(text: str) -> bool:
    from kartosql.cli.repl.units import is_ready

    return is_ready(text)


class Front:
    """The prompt."""

    def __init__(self, behind: Behind) -> None:
        self._behind = behind
        self.draft = ""
        self._theme = ""
        self._menu = Menu(behind)
        options = behind.options
        self._session: PromptSession[str] = PromptSession(
            message=self._message,
            multiline=True,
            prompt_continuation=self._continuation,
            lexer=SqlLexer(),
            completer=self._menu,
            complete_while_typing=Condition(lambda: bool(options["completion"])),
            history=History(place(), lambda text: behind.screen.say(text, "hint")),
            auto_suggest=AutoSuggestFromHistory(),
            key_bindings=bindings(),
            bottom_toolbar=self._toolbar,
            input_processors=[SafeText()],
            include_default_pygments_style=False,
            enable_open_in_editor=True,
            enable_history_search=False,
            reserve_space_for_menu=MENU_LINES,
        )
        # A terminal that does not answer where its cursor is has no toolbar; that is no reason for a warning.
        self._session.app.renderer.cpr_not_supported_callback = lambda: None
        behind.on_news = self._redraw
        behind.on_values = self._complete_again

    def prompt(self) -> str:
        """Return what was typed; raises EOFError and KeyboardInterrupt."""
        options, screen = self._behind.options, self._behind.screen
        draft, self.draft = self.draft, ""
        session = self._session
        session.editing_mode = EditingMode.VI if options["keys"] == "vi" else EditingMode.EMACS
        session.auto_suggest = AutoSuggestFromHistory() if options["suggest"] else None
        if self._theme != screen.theme:
            self._theme = screen.theme
            session.style = Style.from_dict({"bottom-toolbar": "noreverse", **prompt_styles(screen.theme)})
        session.color_depth = ColorDepth.DEPTH_1_BIT if screen.theme == "none" else None
        return session.prompt(default=draft)

    def _redraw(self) -> None:
        """Draw the prompt anew from another thread; if the store cannot be opened, end it."""
        app = self._session.app
        if not app.is_running:
            return
        if self._behind.error is not None and app.loop is not None:
            app.loop.call_soon_threadsafe(self._give_up)
        else:
            app.invalidate()

    def _complete_again(self) -> None:
        """Look for completions once more, now that values are there."""
        app = self._session.app
        if app.is_running and app.loop is not None:
            app.loop.call_soon_threadsafe(self._complete)

    def _complete(self) -> None:
        buffer = self._session.default_buffer
        state = buffer.complete_state
        wanted = bool(self._behind.options["completion"]) or state is not None
        if wanted and buffer.text and (state is None or state.current_completion is None):
            self._start_completion(TRIES)
        self._session.app.invalidate()

    def _start_completion(self, tries: int) -> None:
        """Complete what stands there now, also where an older menu is open or still being filled."""
        app, buffer = self._session.app, self._session.default_buffer
        # The buffer begins no completion while it has one.
        buffer.complete_state = None
        answered = self._menu.answered
        buffer.start_completion(select_first=False)

        def look() -> None:
            if self._menu.answered == answered and tries and app.is_running and buffer.complete_state is None:
                self._start_completion(tries - 1)

        # Nor does it while the one before still runs, which ends as soon as it notices.
        if app.loop is not None:
            app.loop.call_later(PAUSE, look)

    def _give_up(self) -> None:
        app = self._session.app
        if app.is_running and not app.is_done:
            app.exit(result="")

    def _message(self) -> StyleAndTextTuples:
        name = "" if self._behind.place == NOWHERE else self._behind.place.rstrip("/").rsplit("/", 1)[-1]
        return [("class:command", f"{escaped(name)[:20] or 'kartosql'}> ")]

    def _continuation(self, width: int, line: int, wrapped: int) -> StyleAndTextTuples:
        # A line that goes on because the terminal ends is no new line of the statement.
        mark = " " * width if wrapped else "." * max(0, width - 2) + "> "[:width]
        return [("class:note", mark)]

    def _toolbar(self) -> StyleAndTextTuples:
        behind = self._behind
        shell, known = behind.ready_shell, behind.known
        parts = []
        if shell is None:
            parts.append("opening …")
        else:
            parts.append("may write" if not shell.connection.read_only else "read-only")
            parts.append(f"engine {shell.connection.settings['engine']}")
            parts.append(f"{len(known.tables):,} tables" if known is not None else "loading metadata …")
            if shell.values.is_reading:
                parts.append("reading an index …")
        parts.append(f"mode {behind.options['mode']}")
        text = get_app().current_buffer.text
        open_ = _open_mark(text)
        if open_:
            parts.append(f"{open_} is open, Ctrl-C drops the statement")
        elif text.strip() and "\n" in text:
            parts.append("; and Enter run, Esc Enter runs it as it is")
        line = " · ".join(parts)
        room = get_app().output.get_size().columns
        return [("class:note", line if len(line) < room else line[: max(0, room - 1)])]


def _open_mark(text: str) -> str | None:
    if len(text) > 100_000 or "kartosql.sql.lexemes" not in sys.modules:
        return None
    from kartosql.sql.lexemes import open_mark

    return None if text.lstrip()[:1] in (".", "\\") else open_mark(text)
