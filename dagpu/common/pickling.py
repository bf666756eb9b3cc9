"""`PickledByName`: objects that a pickle holds by the name under which a module has them, as it holds functions."""

import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pickle import PicklingError
from types import ModuleType
from typing import Any, Final, Self

from dagpu.common.places import describe, here_outside, leaves_run

COPIERS: Final = ("copy", "copyreg", "pickle")
"""The modules that call `__reduce_ex__`."""
_BY_VALUE: Final = "cloudpickle"
"""The package that pickles by value what a process at the other end cannot import."""


def _sent_by_value() -> frozenset[str]:
    """Return the modules whose contents cloudpickle was told to pickle by value."""
    registered: Callable[[], Iterable[str]] = sys.modules[_BY_VALUE].list_registry_pickle_by_value
    return frozenset(registered())


_ABOVE: Final = 2
"""The frames between `__reduce_ex__` and what pickles: that of the decorator."""
_MAINS: Final = ("__main__", "__mp_main__")
"""The names of the module that is run as a program."""


class PickledByName:
    """An object that never changes, so that a copy is the object itself.

    A pickle contains its module and its name there. Where a process at the other end cannot import that, cloudpickle
    pickles it by value, as it pickles functions.
    """

    __slots__ = ()

    @property
    def made_of(self) -> tuple[object, ...] | None:
        """What the object is made of, if another object that is made of the same cannot be told from it; else None."""
        return None

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: object) -> Self:
        return self

    @leaves_run
    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return how a pickle finds the object.

        Raises:
            PicklingError: no module has it under a name.
        """
        found = _declared_name(self) or _name_in_a_module(self)
        by_value = sys._getframe(_ABOVE).f_globals.get("__name__", "").partition(".")[0] == _BY_VALUE
        if by_value and (found is None or found[0] == "__main__" or found[0] in _sent_by_value()):
            return super().__reduce_ex__(protocol)
        if found is None:
            raise PicklingError(
                f"{self!r} was to be pickled at {describe(here_outside(*COPIERS))}, and no module has it under a "
                "name, by which another process would find it. Assign it to a name at the top level of a module."
            )
        return find_named, found


def find_named(module: str, path: str) -> Any:
    """Return the object that a module has under a name, or under the name of an attribute of one."""
    found: Any = import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _declared_name(thing: object) -> tuple[str, str] | None:
    """Return the module and the name under which a function was declared, if the object is found there."""
    module, path = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if type(module) is not str or type(path) is not str or module not in sys.modules:
        return None
    try:
        return (module, path) if find_named(module, path) is thing else None
    except AttributeError:  # it was declared in a function, or has another name by now
        return None


def _name_in_a_module(thing: object) -> tuple[str, str] | None:
    """Return the first module that has the object, with its name there; `__main__` if no other module has it."""
    others = [name for name in list(sys.modules) if name not in _MAINS]
    for name in [*others, *_MAINS]:
        module = sys.modules.get(name)
        if isinstance(module, ModuleType):
            for key, value in list(vars(module).items()):
                if value is thing:
                    return name, key
    return None
