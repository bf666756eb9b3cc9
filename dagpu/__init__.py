"""dagpu: typed, functional dataflow for GPUs. Compose ops, run them with `await`, `sync` or `spawn`.

The public names are those of dagpu.entry.public, which is loaded at the first access to one of them. mypy imports this
package to reach `dagpu.mypy_plugin`, and must not wait for NumPy and trio.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dagpu.entry.public import *  # noqa: F403  # reason: its __all__ says which
    from dagpu.entry.public import __all__ as __all__
    from dagpu.entry.public import cut as cut
else:
    import sys
    from importlib import import_module
    from types import ModuleType

    class _Package(ModuleType):
        """The class of this package: a module that loads its names at the first access."""

        def __getattr__(self, name: str) -> object:
            public = import_module("dagpu.entry.public")  # `from dagpu import public` would call this method again
            for each in ("__all__", *public.__all__, *public.BY_NAME_ONLY):
                setattr(self, each, getattr(public, each))
            if name not in vars(self):
                names = import_module("dagpu.arrays.numpy_names")
                names.refuse_name_of_package(name, public.array.__all__)
            return vars(self)[name]

        def __dir__(self) -> list[str]:
            self.__getattr__("__all__")
            return sorted(vars(self))

    sys.modules[__name__].__class__ = _Package
