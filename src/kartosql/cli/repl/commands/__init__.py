"""The commands of the shell, one module per group."""

from kartosql.cli.repl.commands import cubes, look, output, plans, settings, statements, tour

__all__ = ["cubes", "look", "output", "plans", "settings", "statements", "tour"]
