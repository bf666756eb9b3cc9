"""Environment variables that every run reads."""

import os
from collections.abc import Container
from typing import Any, Final, final

_variables: Final[Container[Any]] = getattr(os.environ, "_data", os.environ)
"""Where CPython's os.environ keeps them: to find one missing there takes 0.05 us, through os.environ 0.9 us."""


@final
class Variable:
    """One variable, read anew each time: a program may set it at any time."""

    __slots__ = ("_key", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._key: Any = name if _variables is os.environ else os.environ.encodekey(name)

    def get(self) -> str | None:
        """Its value; None if it is not set."""
        return os.environ.get(self._name) if self._key in _variables else None
