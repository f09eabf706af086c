"""Completion of the command line in bash, zsh and fish: ``kartosql --completion bash`` prints what the shell sources.

The scripts ask ``kartosql --complete WORD ...``, so that they stay right when options change.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from kartosql.cli.config import profile_names
from kartosql.cli.options import ENGINES, FORMATS, SHELLS
from kartosql.settings import SETTINGS

FILES, FOLDERS = ":files", ":folders"  # what the shell completes by itself

_BASH = """\
_kartosql() {
    local line word="${COMP_WORDS[COMP_CWORD]}"
    COMPREPLY=()
    while IFS=$'\\t' read -r line _; do
        case "$line" in
            :files) compopt -o filenames 2>/dev/null; COMPREPLY+=($(compgen -f -- "$word")) ;;
            :folders) compopt -o filenames 2>/dev/null; COMPREPLY+=($(compgen -d -- "$word")) ;;
            *) COMPREPLY+=("$line") ;;
        esac
    done < <("${COMP_WORDS[0]}" --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _kartosql kartosql
"""

_ZSH = """\
#compdef kartosql
_kartosql() {
    local line about
    local -a found
    while IFS=$'\\t' read -r line about; do
        case "$line" in
            :files) _files ;;
            :folders) _files -/ ;;
            *) found+=("${line//:/\\\\:}:${about}") ;;
        esac
    done < <("${words[1]}" --complete "${(@)words[2,CURRENT]}" 2>/dev/null)
    (( ${#found} )) && _describe kartosql found
}
compdef _kartosql kartosql
"""

_FISH = """\
function __kartosql
    set -l words (commandline -opc) (commandline -ct)
    for line in ($words[1] --complete $words[2..-1] 2>/dev/null)
        switch $line
            case ':files'
                __fish_complete_path (commandline -ct)
            case ':folders'
                __fish_complete_directories (commandline -ct)
            case '*'
                echo $line
        end
    end
end
complete -c kartosql -f -a '(__kartosql)'
"""


def script(shell: str) -> str:
    """Return what a shell sources to complete the command."""
    return {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}[shell]


def lines(parser: argparse.ArgumentParser, words: Sequence[str]) -> Iterator[str]:
    """Yield the completions of the last of the words: a word, a tab and what it is; or FILES or FOLDERS."""
    *before, last = words or [""]
    if len(before) == 1 and before[0] == "demo":
        yield FOLDERS
        return
    options = {name: action for action in parser._actions for name in action.option_strings}
    waiting = options.get(before[-1]) if before else None
    if waiting is not None and waiting.nargs != 0:
        yield from _values(before[-1], last)
        return
    if last.startswith("-"):
        for name, action in options.items():
            if name.startswith(last) and action.help != argparse.SUPPRESS:
                yield f"{name}\t{action.help or ''}"
        return
    if not _places(before, options):
        if "demo".startswith(last):
            yield "demo\tbuild a sample cube and query it"
        for name in filter(str.isprintable, profile_names()):
            if name.startswith(last):
                yield f"{name}\tprofile"
            if last.startswith("@") and f"@{name}".startswith(last):
                yield f"@{name}\tprofile"
        yield FOLDERS


def _places(words: Sequence[str], options: dict[str, argparse.Action]) -> list[str]:
    """Return the words that are no options and no values of them."""
    found, waits = [], False
    for word in words:
        action = options.get(word)
        if waits:
            waits = False
        elif action is not None:
            waits = action.nargs != 0
        else:
            found.append(word)
    return found


def _values(option: str, last: str) -> Iterator[str]:
    choices: dict[str, Sequence[str]] = {
        "--format": FORMATS,
        "--engine": ENGINES,
        "--completion": SHELLS,
        "--set": [f"{name}=" for name in SETTINGS],
    }
    if option in ("-f", "-o"):
        yield FILES
    for value in choices.get(option, ()):
        if value.startswith(last):
            name = value.rstrip("=")
            yield f"{value}\t{SETTINGS[name].about if option == '--set' else ''}".rstrip()
