"""The interactive shell: a core that needs no terminal, and two fronts that feed it."""
