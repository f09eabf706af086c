"""The keys of the prompt beyond those of emacs and vi."""

from __future__ import annotations

from prompt_toolkit.application import get_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition, completion_is_selected, has_completions, is_searching
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys


def bindings() -> KeyBindings:
    """Return the bindings: Enter, Tab, and what a chosen completion adds."""
    keys = KeyBindings()

    @keys.add("enter", filter=completion_is_selected)
    def _accept(event: KeyPressEvent) -> None:
        accept(event.current_buffer)

    @keys.add("enter", filter=~completion_is_selected & ~is_searching)
    def _enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if runs(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.newline(copy_margin=True)

    @keys.add("escape", "enter", filter=~is_searching)
    def _as_it_is(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("c-o")
    def _line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=True)

    @keys.add(Keys.Any, filter=completion_is_selected & Condition(_has_suffix))
    def _goes_on(event: KeyPressEvent) -> None:
        accept(event.current_buffer)
        event.current_buffer.insert_text(event.data)

    @keys.add("escape", filter=has_completions, eager=True)
    def _close(event: KeyPressEvent) -> None:
        event.current_buffer.cancel_completion()

    return keys


def runs(text: str) -> bool:
    """Return whether Enter runs a text: nothing, a command, or whole statements."""
    if not text.strip():
        return True
    from kartosql.cli.repl.units import is_ready

    return is_ready(text)


def accept(buffer: Buffer) -> None:
    """Take the chosen completion, and put behind the cursor what belongs to it."""
    suffix = _suffix(buffer)
    buffer.complete_state = None
    if suffix:
        buffer.insert_text(suffix, move_cursor=False)


def _has_suffix() -> bool:
    return bool(_suffix(get_app().current_buffer))


def _suffix(buffer: Buffer) -> str:
    state = buffer.complete_state
    completion = state.current_completion if state is not None else None
    return getattr(completion, "suffix", "")
