"""Properties that are computed once for each object, without a lock; modules that are imported when they are used.

The ones of the standard library have a lock until Python 3.12: a fork while a thread computes one of them leaves it
locked in the child, for all objects of the class.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as memoized
else:

    class memoized:  # noqa: N801 - used like property
        """A property that is computed when it is first asked for, also of a frozen dataclass.

        Threads that ask at the same time may all compute it; the first value is that of all.
        """

        def __init__(self, compute):
            self._compute = compute
            self._name = compute.__name__
            self.__doc__ = compute.__doc__

        def __get__(self, instance, owner):
            if instance is None:
                return self
            # Found there from now on, before this is asked.
            return instance.__dict__.setdefault(self._name, self._compute(instance))


class Late:
    """A module of the package that is imported when something of it is first asked for; type checkers see an import."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(f"kartosql.{self._name}"), name)


__all__ = ["Late", "memoized"]
