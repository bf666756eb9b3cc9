"""Stand-ins for the arguments of a pipeline while its function is traced.

A trace is kept for calls with other arguments, so it may not depend on their values. Handles never reveal their
contents. Numbers and NumPy arrays would, so the function gets stand-ins for them.

A stand-in may outlive its trace: a helper with a cache keeps it, or an object in the result. So it reveals its argument
to its own trace alone (`index_in`). In any other trace, and outside of traces, it acts as its number or array.
"""

import operator
import sys
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import numpy as np

from dagpu.common.containers import mapped
from dagpu.common.errors import NotReadyError
from dagpu.common.origin import describe, here_but_for


@final
class SymbolicNumber:
    """An `int` or `float` argument. Passed to a kernel it may differ from call to call.

    Any other use needs its value, and is noted in `reads`: then the trace holds for that value alone. It is not a
    subclass of `float`, because C code (`math.sqrt`, `struct.pack`) reads the value of such a subclass directly; for
    other objects it calls `__float__` or `__index__`.
    """

    __slots__ = ("_index", "_reads", "number")

    def __init__(self, index: int, number: float, reads: set[int]) -> None:
        self._index = index
        self.number = number
        """Its value, for those who only check or pass it on."""
        self._reads = reads
        """The set in which its trace notes reads. Each trace has a set of its own, so the set identifies the trace."""

    def index_in(self, reads: set[int]) -> int | None:
        """The number of its leaf in the trace that notes reads in this set; None in any other trace."""
        return self._index if self._reads is reads else None

    def read(self) -> int | float:
        """Its value, for those who make something else of it."""
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

        # Of an array NumPy would take the type for granted, where a number adapts itself to that of its neighbours.

        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
            return getattr(ufunc, method)(*map(value_of, inputs), **options)

        def __array_function__(self, function: Any, _types: Any, arguments: Any, options: Any) -> Any:
            return function(*with_values(arguments), **with_values(options))

        def __reduce_ex__(self, protocol: Any) -> Any:
            return type(self.number), (self.read(),)

        def __hash__(self) -> int:
            number = self.read()
            found = hash(number)
            # Of what is no int in C, `Random` takes the hash for a seed, where an int's own seed is its magnitude.
            if type(number) is int and found != abs(number) and sys._getframe(1).f_code is Random.seed.__code__:
                raise TypeError(
                    f"a random.Random was given {number}, a number among the arguments of a pipeline, for a seed at "
                    f"{describe(here_but_for('random'))}. It would take another seed for it than for that number "
                    "itself. Write Random(int(a)): the plan is then one for that value."
                )
            return found


def value_of(x: Any) -> Any:
    """The number itself, where a stand-in for one is given, which is noted as read."""
    return x.read() if type(x) is SymbolicNumber else x


def with_values(x: Any) -> Any:
    """A value with the numbers themselves in place of their stand-ins, which are all noted as read."""
    return mapped(SymbolicNumber.read, x, _NUMBERS)


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
    """Python looks special methods up on the class, past `__getattr__`: each that numbers have is set here."""

    def unary(change: Callable[[Any], Any]) -> Callable[..., Any]:
        return lambda self: change(self.read())

    def binary(combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        return lambda self, other: combine(self.read(), value_of(other))

    def reflected(combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        return lambda self, other: combine(value_of(other), self.read())

    for name, change in _UNARY.items():
        setattr(SymbolicNumber, f"__{name}__", unary(change))
    for name, combine in _BINARY.items():
        setattr(SymbolicNumber, f"__{name}__", binary(combine))
        setattr(SymbolicNumber, f"__r{name}__", reflected(combine))
    for name in _COMPARISONS:
        setattr(SymbolicNumber, f"__{name}__", binary(getattr(operator, name)))
    setattr(SymbolicNumber, "__pow__", lambda self, other, modulo=None: pow(self.read(), value_of(other), modulo))  # noqa: B010  # a checker would refuse it
    setattr(SymbolicNumber, "__round__", lambda self, digits=None: round(self.read(), digits))  # noqa: B010  # a checker would refuse it
    setattr(SymbolicNumber, "__format__", lambda self, spec: format(self.read(), spec))  # noqa: B010  # a checker would refuse it


_install()


@final
class SymbolicArray:
    """A NumPy array among the arguments. Its shape and element type are known; its contents are not.

    It is not a subclass of `ndarray`: C code would read the memory of that past every method. Strides may differ from
    call to call, so it has none.
    """

    __slots__ = ("_index", "_reads", "dtype", "shape", "source")

    def __init__(self, index: int, source: "np.ndarray[Any, Any]", reads: set[int]) -> None:
        self._index = index
        self._reads = reads
        """The set in which its trace notes reads, as for a number."""
        self.source = source
        """The array itself, which is copied to a device when the run begins."""
        self.shape = source.shape
        self.dtype = source.dtype

    def index_in(self, reads: set[int]) -> int | None:
        """The number of its leaf in the trace that notes reads in this set; None in any other trace."""
        return self._index if self._reads is reads else None

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return self.source.size

    @property
    def nbytes(self) -> int:
        return self.source.nbytes

    def __repr__(self) -> str:
        return f"<array argument of shape {self.shape}, {self.dtype.name}>"

    def __len__(self) -> int:
        return len(self.source)

    def _no_contents(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise NotReadyError(
            f"a NumPy array of shape {self.shape} and type {self.dtype.name} was read while a pipeline's function was "
            "traced: its plan serves other arrays too. Copy it to the device with from_host(x) and let kernels work "
            "on it, or compute with it before the call."
        )

    if not TYPE_CHECKING:  # as for handles: a checker need not know

        @property
        def __class__(self) -> type:
            return np.ndarray  # so that isinstance(x, np.ndarray) holds

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("__"):  # a protocol that somebody looks for
                raise AttributeError(name)
            self._no_contents()

        __array__ = __array_ufunc__ = __array_function__ = __buffer__ = _no_contents
        __getitem__ = __setitem__ = __iter__ = __contains__ = __hash__ = __reduce_ex__ = _no_contents
        __bool__ = __float__ = __int__ = __complex__ = __index__ = _no_contents
        __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __abs__ = __invert__ = _no_contents
        __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = __matmul__ = _no_contents
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = _no_contents
        __rmatmul__ = __iadd__ = __isub__ = __imul__ = __itruediv__ = _no_contents


def without_standins(value: Any) -> Any:
    """A value with the arguments themselves in place of their stand-ins, also in sets and among the keys of dicts.

    Objects of the user's classes are not searched. Stand-ins in them stay, and only their own trace knows them.
    """
    return mapped(_meant, value, _LOOKED_INTO, without_standins)


_NUMBERS: Final = frozenset((SymbolicNumber,))
_LOOKED_INTO: Final = frozenset((SymbolicNumber, SymbolicArray, set, frozenset))


def _meant(value: Any) -> Any:
    kind = type(value)
    if kind is SymbolicNumber:
        return value.number
    if kind is SymbolicArray:
        return value.source
    items = [(item, without_standins(item)) for item in value]
    return kind(new for _, new in items) if any(new is not old for old, new in items) else value
