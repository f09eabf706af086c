"""The front with all that a terminal can do: several lines, keys, colours, history, completion."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.filters import Condition, completion_is_selected, has_completions, is_searching
from prompt_toolkit.formatted_text import StyleAndTextTuples, split_lines
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.lexers import Lexer
from prompt_toolkit.output.color_depth import ColorDepth
from prompt_toolkit.styles import Style

from kartosql.cli.repl.screen import prompt_styles
from kartosql.cli.repl.start import NOWHERE, Opening, greeting, run_init
from kartosql.text.escape import escaped, is_unsafe
from kartosql.text.secrets import redacted

HISTORY = "KARTOSQL_HISTORY"
MAX_ENTRY = 20_000  # characters; what is longer was pasted, and is not kept
MAX_FILE = 20_000_000


def place() -> str:
    """Return the path of the history."""
    given = os.environ.get(HISTORY)
    if given:
        return os.path.abspath(os.path.expanduser(given))
    import platformdirs

    return os.path.join(platformdirs.user_state_dir("kartosql"), "history")


class History(FileHistory):
    """A history that never stops the session, whatever its file is; ``tell`` is called once with what is wrong."""

    def __init__(self, path: str, tell: Callable[[str], None]) -> None:
        super().__init__(path)
        self._tell: Callable[[str], None] | None = tell
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            os.close(os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600))
            with open(path, "rb") as file:
                if b"\0" in file.read(4096):
                    self._complain("is no text")
            if os.path.getsize(path) > MAX_FILE:
                self._complain(f"has more than {MAX_FILE:,} bytes")
        except OSError as e:
            self._complain(f"cannot be written: {e.strerror or e}")

    def _complain(self, what: str) -> None:
        if self._tell is not None:
            self._tell(f"warning: The history {self.filename!s} {what}; it is kept for this session only.")
        self._tell = None

    def load_history_strings(self) -> Iterable[str]:
        """Return what the file holds, the newest first."""
        with suppress(OSError, ValueError):
            return list(super().load_history_strings()) if self._tell is not None else []
        return []

    def store_string(self, string: str) -> None:
        """Append an entry to the file, without credentials in URLs."""
        if self._tell is not None and len(string) <= MAX_ENTRY:
            try:
                super().store_string(redacted(string))
            except (OSError, ValueError) as e:
                self._complain(f"cannot be written: {e}")


def _bindings() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter", filter=~completion_is_selected & ~is_searching)
    def _enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if not buffer.text.strip() or _is_ready(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.newline(copy_margin=True)

    @keys.add(Keys.Any, filter=completion_is_selected & Condition(lambda: bool(_suffix(get_app().current_buffer))))
    def _goes_on(event: KeyPressEvent) -> None:
        _accept(event)
        event.current_buffer.insert_text(event.data)

    keys.add("enter", filter=completion_is_selected)(_accept)
    keys.add("escape", "enter", filter=~is_searching)(lambda event: event.current_buffer.validate_and_handle())
    keys.add("c-o")(lambda event: event.current_buffer.newline(copy_margin=True))
    keys.add("escape", filter=has_completions, eager=True)(lambda event: event.current_buffer.cancel_completion())
    return keys


def _accept(event: KeyPressEvent) -> None:
    """Take the chosen completion, and put behind the cursor what belongs to it."""
    buffer = event.current_buffer
    suffix = _suffix(buffer)
    buffer.complete_state = None
    if suffix:
        buffer.insert_text(suffix, move_cursor=False)


def _suffix(buffer: Buffer) -> str:
    state = buffer.complete_state
    completion = state.current_completion if state is not None else None
    return getattr(completion, "suffix", "")


MOST = 20_000  # characters; longer texts were pasted, and stay without colours
HIDDEN = "�"


class _SqlLexer(Lexer):
    """Colours from the tokenizer of the statements."""

    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        lines = document.lines
        text = document.text
        if text.lstrip()[:1] in (".", "\\") and "\n" not in text.strip():
            return lambda number: [("class:command", lines[number])]
        # It takes a moment to import, which comes after the prompt.
        if len(text) > MOST or "kartosql.sql.incremental_lexer" not in sys.modules:
            return lambda number: [("", lines[number])]
        from kartosql.sql.incremental_lexer import lexemes

        fragments: StyleAndTextTuples = []
        at = 0
        for lexeme in lexemes(text):
            fragments.append(("", text[at : lexeme.start]))
            fragments.append((f"class:{lexeme.kind}", text[max(at, lexeme.start) : lexeme.end]))
            at = max(at, lexeme.end)
        styled = list(split_lines([*fragments, ("", text[at:])]))
        return lambda number: styled[number] if number < len(styled) else []


class _SafeText(Processor):
    """Shows one sign for each character that could reorder or hide text; the text itself stays."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        shown: StyleAndTextTuples = []
        for style, text, *_ in transformation_input.fragments:
            if not text.isprintable():
                # Tabs and control characters are shown by the prompt itself.
                text = "".join(HIDDEN if ord(c) > 0x9F and is_unsafe(c) else c for c in text)
            shown.append((style, text))
        return Transformation(shown)


class _MenuItem(Completion):
    """A completion, and what is put behind the cursor when it is taken."""

    suffix = ""


class _Menu(Completer):
    """Completes with what is known at the moment; ``answered`` counts how often it was asked."""

    def __init__(self, behind: Opening) -> None:
        self._behind = behind
        self.answered = 0

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
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
            choice = _MenuItem(
                found.text,
                start_position=found.start - document.cursor_position,
                display=escaped(found.shown or found.text),
                display_meta=escaped(found.about),
            )
            choice.suffix = found.suffix
            yield choice


MENU_LINES = 8
PAUSE = 0.05  # seconds until a completion that could not begin is tried again
TRIES = 40


def run(behind: Opening) -> None:
    """Prompt until the shell is left; raises what opening the store raises."""
    behind.screen.say(greeting(behind.place), "note")
    front = Front(behind)
    run_init(behind)
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
    from kartosql.cli.repl.registry import is_ready

    return is_ready(text)


class Front:
    """The prompt."""

    def __init__(self, behind: Opening) -> None:
        self._behind = behind
        self.draft = ""
        self._theme = ""
        self._menu = _Menu(behind)
        options = behind.options
        self._session: PromptSession[str] = PromptSession(
            message=self._message,
            multiline=True,
            # A line that goes on because the terminal ends is no new line of the statement.
            prompt_continuation=lambda width, line, wrapped: [
                ("class:note", " " * width if wrapped else "." * max(0, width - 2) + "> "[:width])
            ],
            lexer=_SqlLexer(),
            completer=self._menu,
            complete_while_typing=Condition(lambda: bool(options["completion"])),
            history=History(place(), lambda text: behind.screen.say(text, "hint")),
            auto_suggest=AutoSuggestFromHistory(),
            key_bindings=_bindings(),
            bottom_toolbar=self._toolbar,
            input_processors=[_SafeText()],
            include_default_pygments_style=False,
            enable_open_in_editor=True,
            enable_history_search=False,
            reserve_space_for_menu=MENU_LINES,
        )
        # A terminal that does not answer where its cursor is has no toolbar; that is no reason for a warning.
        self._session.app.renderer.cpr_not_supported_callback = lambda: None
        self._session.app.after_render += lambda app: behind.start()  # who waits for the prompt shares no CPU with it
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
        """Complete the current text, also where an older menu is open or still being filled."""
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
            if shell.values.coming:
                parts.append("reading an index …")
        parts.append(f"mode {behind.options['mode']}")
        text = get_app().current_buffer.text
        if open_ := _open_mark(text):
            parts.append(f"{open_} is open, Ctrl-C drops the statement")
        elif text.strip() and "\n" in text:
            parts.append("; and Enter run, Esc Enter runs it as it is")
        line = " · ".join(parts)
        room = get_app().output.get_size().columns
        return [("class:note", line if len(line) < room else line[: max(0, room - 1)])]


def _open_mark(text: str) -> str | None:
    if len(text) > 100_000 or "kartosql.sql.incremental_lexer" not in sys.modules:
        return None
    from kartosql.sql.incremental_lexer import open_mark

    return None if text.lstrip()[:1] in (".", "\\") else open_mark(text)
