"""Foreign ops: a declaration with its bodies, and the ops of its calls."""

from collections.abc import Callable, Sequence
from typing import (
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    cast,
    final,
)

import numpy as np
from typing_extensions import TypeVar

from dagpu.common.layout import Layout
from dagpu.common.origin import Origin, describe, here
from dagpu.common.pickling import PickledByName
from dagpu.common.tracebacks import leaves_run
from dagpu.handles import Tensor
from dagpu.interop.foreign_ops.bodies import BodyDecorators, BodyList
from dagpu.interop.foreign_ops.shape_rules import Declared, DeclaredOperand, run_declaration
from dagpu.interop.foreign_ops.user_bodies import DeclaredBody
from dagpu.kernels.annotations import PySignature
from dagpu.kernels.argument_binding import bind_arguments
from dagpu.kernels.declaration import declared_param
from dagpu.kernels.generated.generated_launch import (
    AnyOp,
    check_call,
    move_arguments,
    new_output,
    output,
    with_layouts,
)
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import Map, arity
from dagpu.ops.kernel_spec import KernelSpec
from dagpu.ops.launch import KernelOp, Launch
from dagpu.ops.node_functions import UNCUT, Components, Item, Outputs

_P = ParamSpec("_P")
_T_co = TypeVar("_T_co", bound=Tensor[Any] | tuple[Tensor[Any], ...], covariant=True)

Capture = Literal["auto", "never", "required"]
Verify = Literal["audit", "none"]
_NUMBERS: Final = {"int": np.dtype(np.int64), "float": np.dtype(np.float64), "bool": np.dtype(np.bool_)}


@final
class DeclaredOptions(NamedTuple):
    """The options of a declaration."""

    capture: Capture
    verify: Verify
    cost: float | None
    checked: bool


@final
class ForeignDeclaration:
    """A declaration: its parameters, its bodies, and the kernels that calls of it launch."""

    def __init__(
        self, function: Callable[..., object], signature: PySignature, results: int | None, options: DeclaredOptions
    ) -> None:
        self.name = function.__name__
        self.origin: Origin = (function.__code__, 0)
        self.bodies = BodyList(self.name, self.origin, signature.names, results)
        self.params = tuple(
            [
                declared_param(name, a, a.dtype or _NUMBERS.get(a.scalar or ""), self.name)
                for name, a in zip(signature.names, signature.annotations, strict=True)
            ]
        )
        self._function = function
        self._signature = signature
        self._options = options
        self._specs: dict[tuple[int, int], KernelSpec] = {}
        """The kernels, by the number of new tensors and the bytes of scratch memory."""
        self._checked = self._spec(0, 0)

    def build(
        self,
        args: Sequence[object],
        kwargs: dict[str, Any],
        origin: Origin,
        make: Callable[[tuple[Any, ...], Declared], AnyOp],
    ) -> AnyOp:
        """Return the op that `make` makes of the moved arguments and of what the declaration gives for them."""
        given = tuple(bind_arguments(self._checked, self._signature, args, kwargs, origin))

        def check(seen: tuple[Any, ...]) -> tuple[Any, ...]:
            return check_call(self.name, self.params, seen, self.origin, origin)

        def built(arguments: tuple[Any, ...], layouts: tuple[Layout | None, ...]) -> AnyOp:
            declared = self._declared(arguments, layouts, origin)
            return make(move_arguments(self.name, arguments, origin), declared)

        return with_layouts(self.name, given, check, built, origin)

    def kernel(self, declared: Declared) -> KernelSpec:
        """Return the kernel that does the work."""
        return self._spec(len(declared.results), declared.scratch)

    def _declared(self, arguments: Sequence[Any], layouts: Sequence[Layout | None], origin: Origin) -> Declared:
        operands = [
            arg if layout is None else DeclaredOperand(layout, param.name)
            for param, arg, layout in zip(self.params, arguments, layouts, strict=True)
        ]
        return run_declaration(self._function, self.name, operands, self.origin, origin)

    def _spec(self, results: int, scratch: int) -> KernelSpec:
        found = self._specs.get((results, scratch))
        if found is None:
            made = [output(f"result{number}", cast(Any, None), None) for number in range(results)]
            params = (*self.params, *made)
            options = self._options
            audit = options.verify == "audit"
            forms = [param.form for param in params]
            body = DeclaredBody(self.bodies, forms, scratch, capture=options.capture, audit=audit)
            spec = KernelSpec(
                name=self.name, params=params, cuda="", source_name="", abi="views", block=None, options=(),
                checked=options.checked, origin=self.origin, host=self.bodies.host, grid=(1,), library=body,
                seconds=options.cost, results=results,
            )  # fmt: skip
            found = self._specs.setdefault((results, scratch), spec)
        return found

    def __repr__(self) -> str:
        return f"<foreign op {self.name}({', '.join(self._signature.names)}) declared at {describe(self.origin)}>"


@final
class Foreign(BodyDecorators, PickledByName, Generic[_P]):
    """A foreign op whose outputs are partitions, as a kernel's. A call yields a tuple of all arguments."""

    def __init__(self, declaration: ForeignDeclaration) -> None:
        self._declaration = declaration
        self._bodies = declaration.bodies

    @leaves_run
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> KernelOp:
        """Return the op of a call. Handles among the arguments move into it. The body gets whole tensors, whatever the
        tiles of the partitions are.

        Raises:
            KernelArgumentError: an argument is missing, has a wrong form, element type or range, or shares memory with
                an output. No handle has been moved.
            ShapeError: the declaration requires something that does not hold.
            MovedError: a handle has been moved before.
        """
        origin, declaration = here(), self._declaration

        def make(arguments: tuple[Any, ...], declared: Declared) -> AnyOp:
            return Launch(declaration.kernel(declared), arguments, origin)

        return cast(KernelOp, declaration.build(args, kwargs, origin, make))

    def __repr__(self) -> str:
        return repr(self._declaration)


@final
class ForeignFunction(BodyDecorators, PickledByName, Generic[_P, _T_co]):
    """A foreign op whose outputs are new tensors, those that its declaration makes. A call yields what it returned."""

    def __init__(self, declaration: ForeignDeclaration, components: int | None) -> None:
        self._declaration = declaration
        self._bodies = declaration.bodies
        self._components = components
        """The number of components of the tuple that a call yields; None if it yields a tensor, or is not known."""

    @leaves_run
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> DeviceOp[_T_co, Any]:
        """Return an op whose result is the new tensor, or a tuple of them. Handles among the arguments move into it.

        Raises:
            KernelArgumentError: an argument is missing, or has a wrong form, element type or range. No handle has been
                moved.
            ShapeError: the declaration requires something that does not hold.
            MovedError: a handle has been moved before.
        """
        origin, declaration = here(), self._declaration

        def make(arguments: tuple[Any, ...], declared: Declared) -> AnyOp:
            made = [
                new_output(layout.shape, layout.dtype, tuple([max(n, 1) for n in layout.shape]), origin)
                for layout in declared.results
            ]
            launch = Launch(declaration.kernel(declared), (*arguments, *made), origin)
            if declared.single:
                return Map(Map(launch, Item(len(arguments)), origin), UNCUT, origin)
            return Map(launch, Outputs(len(arguments)), origin)

        op = declaration.build(args, kwargs, origin, make)
        count = self._components
        return op if count is None or arity(op) is not None else Map(op, Components(count), origin)

    def __repr__(self) -> str:
        return repr(self._declaration)
