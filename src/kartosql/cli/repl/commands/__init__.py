"""The commands of the shell, one module per group."""

from kartosql.cli.repl.commands import cubes, look, output, plans, session, statements, tour

__all__ = ["cubes", "look", "output", "plans", "session", "statements", "tour"]
