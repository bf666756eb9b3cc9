"""Symbolic numbers and arrays: stand-ins for the arguments of a pipeline while its function is traced.

A trace serves later calls with other arguments, so it must not depend on the values of arguments. Handles never reveal
their contents. Numbers and NumPy arrays would, so the traced function receives stand-ins for them.

A stand-in may outlive its trace, in the cache of a helper or in an object in the result. So only its own trace gets its
index (`index_in`). In other traces, and outside of traces, it behaves like its number or array.
"""

import operator
import sys
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import numpy as np

from dagpu.common.containers import map_values
from dagpu.common.errors import NotReadyError
from dagpu.common.places import describe, here_outside
from dagpu.handles.operators import Operators


@final
class SymbolicNumber:
    """A stand-in for an `int` or `float` argument. A number that is passed to a kernel may differ from call to call.

    Any other use reads the value, and is recorded in `reads`: the trace is then valid for this value only. The class is
    not a subclass of `float`, because C code (`math.sqrt`, `struct.pack`) reads the value of a subclass directly. For
    other objects it calls `__float__` or `__index__`.
    """

    __slots__ = ("_index", "_reads", "number")

    def __init__(self, index: int, number: float, reads: set[int]) -> None:
        self._index = index
        self.number = number
        """The value, for code that only checks it or passes it on. Access to it is not recorded."""
        self._reads = reads
        """The set in which its trace records reads. Each trace has its own set, so the set identifies the trace."""

    def index_in(self, reads: set[int]) -> int | None:
        """Return its index among the arguments of the trace that records reads in this set; None in other traces."""
        return self._index if self._reads is reads else None

    def read(self) -> int | float:
        """Record a read and return the value."""
        self._reads.add(self._index)
        return self.number

    if not TYPE_CHECKING:

        @property
        def __class__(self) -> type:
            return type(self.number)  # so that isinstance(x, float) holds

        def __getattr__(self, name: str) -> Any:
            return getattr(self.read(), name)

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.asarray(self.read(), dtype)

        # NumPy keeps the type of an array, but adapts the type of a number to the other operands.

        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
            return getattr(ufunc, method)(*map(read_value, inputs), **options)

        def __array_function__(self, function: Any, _types: Any, arguments: Any, options: Any) -> Any:
            return function(*read_values(arguments), **read_values(options))

        def __reduce_ex__(self, protocol: Any) -> Any:
            return type(self.number), (self.read(),)

        def __hash__(self) -> int:
            number = self.read()
            found = hash(number)
            # `Random` seeds an int by its magnitude. For an object that is not an int in C it would use the hash.
            if type(number) is int and found != abs(number) and sys._getframe(1).f_code is Random.seed.__code__:
                raise TypeError(
                    f"a random.Random was given {number}, a number among the arguments of a pipeline, for a seed at "
                    f"{describe(here_outside('random'))}. Its seed would differ from the seed for that number "
                    "itself. Write Random(int(a)): the plan then serves that value alone."
                )
            return found


def read_value(x: Any) -> Any:
    """Return the number of a stand-in, and record the read; return any other value itself."""
    return x.read() if type(x) is SymbolicNumber else x


def read_values(x: Any) -> Any:
    """Return a value with the numbers in place of their stand-ins, and record the reads."""
    return map_values(SymbolicNumber.read, x, _NUMBERS)


_UNARY: Final[dict[str, Callable[[Any], Any]]] = {
    "abs": abs, "bool": bool, "ceil": lambda x: x.__ceil__(), "complex": complex, "float": float,
    "floor": lambda x: x.__floor__(), "index": operator.index, "int": int, "invert": operator.invert,
    "neg": operator.neg, "pos": operator.pos, "repr": repr, "str": str, "trunc": lambda x: x.__trunc__(),
}  # fmt: skip
_BINARY: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": operator.add, "and": operator.and_, "divmod": divmod, "floordiv": operator.floordiv,
    "lshift": operator.lshift, "mod": operator.mod, "mul": operator.mul, "or": operator.or_, "pow": pow,
    "rshift": operator.rshift, "sub": operator.sub, "truediv": operator.truediv, "xor": operator.xor,
}  # fmt: skip
_COMPARISONS: Final = ("eq", "ge", "gt", "le", "lt", "ne")


def _install() -> None:
    """Set the special methods of numbers on `SymbolicNumber`, because Python looks them up on the class only."""

    def unary(change: Callable[[Any], Any]) -> Callable[..., Any]:
        return lambda self: change(self.read())

    def binary(combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        def operator(self: SymbolicNumber, other: Any) -> Any:
            if isinstance(other, Operators):  # its reflected operator takes the stand-in as an argument of a kernel
                return NotImplemented
            return combine(self.read(), read_value(other))

        return operator

    def reflected(combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        return lambda self, other: combine(read_value(other), self.read())

    for name, change in _UNARY.items():
        setattr(SymbolicNumber, f"__{name}__", unary(change))
    for name, combine in _BINARY.items():
        setattr(SymbolicNumber, f"__{name}__", binary(combine))
        setattr(SymbolicNumber, f"__r{name}__", reflected(combine))
    for name in _COMPARISONS:
        setattr(SymbolicNumber, f"__{name}__", binary(getattr(operator, name)))
    power: Callable[..., Any] = SymbolicNumber.__dict__["__pow__"]
    setattr(  # noqa: B010  # a checker would refuse it
        SymbolicNumber,
        "__pow__",
        lambda self, other, modulo=None: (
            power(self, other) if modulo is None else pow(self.read(), read_value(other), modulo)
        ),
    )
    setattr(SymbolicNumber, "__round__", lambda self, digits=None: round(self.read(), digits))  # noqa: B010  # a checker would refuse it
    setattr(SymbolicNumber, "__format__", lambda self, spec: format(self.read(), spec))  # noqa: B010  # a checker would refuse it


_install()


@final
class SymbolicArray:
    """A stand-in for a NumPy array argument. It has the shape and the element type, but not the contents.

    The class is not a subclass of `ndarray`, because C code would read the memory of a subclass directly. It has no
    strides, because they may differ from call to call.
    """

    __slots__ = ("_index", "_reads", "dtype", "shape", "source")

    def __init__(self, index: int, source: "np.ndarray[Any, Any]", reads: set[int]) -> None:
        self._index = index
        self._reads = reads
        """The set in which its trace records reads of numbers. It identifies the trace."""
        self.source = source
        """The array, which is copied to a device at the start of the run."""
        self.shape = source.shape
        self.dtype = source.dtype

    def index_in(self, reads: set[int]) -> int | None:
        """Return its index among the arguments of the trace that records reads in this set; None in other traces."""
        return self._index if self._reads is reads else None

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.source.size

    @property
    def nbytes(self) -> int:
        """The number of bytes of the elements."""
        return self.source.nbytes

    def __repr__(self) -> str:
        return f"<array argument of shape {self.shape}, {self.dtype.name}>"

    def __len__(self) -> int:
        return len(self.source)

    def _no_contents(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Raise a `NotReadyError`, because the operation needs the contents."""
        raise NotReadyError(
            f"a NumPy array of shape {self.shape} and type {self.dtype.name} was read while a pipeline's function was "
            "traced: its plan serves other arrays too. Copy it to the device with from_host(x) and let kernels work "
            "on it, or compute with it before the call."
        )

    if not TYPE_CHECKING:  # hidden from type checkers, as in `ArrayHandle`

        @property
        def __class__(self) -> type:
            return np.ndarray  # so that isinstance(x, np.ndarray) holds

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("__"):  # the look-up of a protocol
                raise AttributeError(name)
            self._no_contents()

        __array__ = __array_ufunc__ = __array_function__ = __buffer__ = _no_contents
        __getitem__ = __setitem__ = __iter__ = __contains__ = __hash__ = __reduce_ex__ = _no_contents
        __bool__ = __float__ = __int__ = __complex__ = __index__ = _no_contents
        __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __abs__ = __invert__ = _no_contents
        __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = __matmul__ = _no_contents
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = _no_contents
        __rmatmul__ = __iadd__ = __isub__ = __imul__ = __itruediv__ = _no_contents


def standin_of(index: int, value: Any, reads: set[int]) -> Any:
    """Return the stand-in for a number or an array that has this index among the arguments of a trace, which records
    reads in this set."""
    if type(value) is np.ndarray:
        return SymbolicArray(index, value, reads)
    return SymbolicNumber(index, value, reads)


def replace_standins(value: Any) -> Any:
    """Return a value with the arguments in place of their stand-ins, also in sets and in the keys of dicts.

    Objects of the user's classes are not searched: stand-ins inside them stay.
    """
    return map_values(_argument_of, value, _SEARCHED, replace_standins)


def read_standins(value: Any) -> Any:
    """Return a value as `replace_standins` does, and record that the trace has read its numbers."""
    return map_values(_read_argument_of, value, _SEARCHED, read_standins)


_NUMBERS: Final = frozenset((SymbolicNumber,))
_SEARCHED: Final = frozenset((SymbolicNumber, SymbolicArray, set, frozenset))


def _argument_of(value: Any) -> Any:
    """Return the argument of a stand-in, or a set with the arguments in place of stand-ins."""
    kind = type(value)
    if kind is SymbolicNumber:
        return value.number
    if kind is SymbolicArray:
        return value.source
    return _with_items(value, replace_standins)


def _read_argument_of(value: Any) -> Any:
    """Return what `_argument_of` does, and record that a number is read."""
    if type(value) is SymbolicNumber:
        return value.read()
    return value.source if type(value) is SymbolicArray else _with_items(value, read_standins)


def _with_items(items: Any, change: Callable[[Any], Any]) -> Any:
    """Return a set with items that a function has changed; the set itself if it changes none."""
    changed = [(item, change(item)) for item in items]
    return type(items)(new for _, new in changed) if any(new is not old for old, new in changed) else items
