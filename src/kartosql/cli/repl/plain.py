"""The front for terminals that can do no more than lines."""

from __future__ import annotations

from kartosql.cli.repl.start import Behind, greeting

PROMPT, MORE = "kartosql> ", "     ...> "


def run(behind: Behind, told: list[str]) -> None:
    """Read lines until there are no more."""
    for text in told:
        behind.screen.say(text, "hint")
    shell = behind.shell()
    behind.screen.say(greeting(behind.place))
    goes_on = False
    while True:
        try:
            behind.screen.write(MORE if goes_on else PROMPT)
            line = input()
        except EOFError:
            behind.screen.line()
            return
        except KeyboardInterrupt:
            behind.screen.line()
            shell.forget_input()
            goes_on = False
            continue
        except UnicodeDecodeError:
            behind.screen.say("That is no text in the encoding of the terminal.", "error")
            continue
        try:
            goes_on = shell.feed(line)
        except SystemExit:
            return
        if shell.draft is not None:
            behind.screen.say(shell.draft)
            for written in shell.draft.split("\n"):
                goes_on = shell.feed(written)
            shell.draft = None
