"""Colours of the shell: one name per kind of thing, and what it looks like on dark, light and plain terminals."""

from __future__ import annotations

import os
from collections.abc import Mapping

# Name -> (SGR codes for results and messages, style of the prompt's text).
_DARK: Mapping[str, tuple[str, str]] = {
    "keyword": ("1;94", "ansibrightblue bold"),
    "function": ("96", "ansibrightcyan"),
    "name": ("", ""),
    "quoted": ("", ""),
    "string": ("92", "ansibrightgreen"),
    "number": ("93", "ansibrightyellow"),
    "comment": ("90", "ansibrightblack italic"),
    "parameter": ("95", "ansibrightmagenta"),
    "symbol": ("", ""),
    "command": ("1;95", "ansibrightmagenta bold"),
    "line": ("90", "ansibrightblack"),
    "type": ("90", "ansibrightblack"),
    "null": ("3;90", "ansibrightblack italic"),
    "error": ("1;91", "ansibrightred bold"),
    "hint": ("93", "ansibrightyellow"),
    "note": ("90", "ansibrightblack"),
    "good": ("92", "ansibrightgreen"),
}
_LIGHT: Mapping[str, tuple[str, str]] = {
    **_DARK,
    "keyword": ("1;34", "ansiblue bold"),
    "function": ("36", "ansicyan"),
    "string": ("32", "ansigreen"),
    "number": ("35", "ansimagenta"),
    "parameter": ("31", "ansired"),
    "command": ("1;35", "ansimagenta bold"),
    "error": ("1;31", "ansired bold"),
    "hint": ("33", "ansiyellow"),
    "good": ("32", "ansigreen"),
}
THEMES: Mapping[str, Mapping[str, tuple[str, str]]] = {"dark": _DARK, "light": _LIGHT, "none": {}}


def chosen(theme: str, *, is_terminal: bool) -> str:
    """Return the theme that ``auto`` means here, other names as they are; ``NO_COLOR`` and dumb terminals have none."""
    if not is_terminal or os.environ.get("NO_COLOR") or os.environ.get("TERM", "") in ("", "dumb"):
        return "none"
    if theme != "auto":
        return theme
    # What xterm, rxvt and konsole say about the background: the last of "15;0" is its colour.
    background = os.environ.get("COLORFGBG", "").rsplit(";", 1)[-1]
    return "light" if background in ("7", "15") else "dark"


def painted(theme: str, style: str, text: str) -> str:
    """Return a text in a style; its codes end with it."""
    codes = THEMES[theme].get(style, ("", ""))[0]
    return f"\x1b[{codes}m{text}\x1b[0m" if codes and text else text


def prompt_styles(theme: str) -> dict[str, str]:
    """Return the styles of the prompt's text by name, in the words of prompt_toolkit."""
    return {name: style for name, (_, style) in THEMES[theme].items() if style}
