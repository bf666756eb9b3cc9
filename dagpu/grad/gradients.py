"""`value_and_grad` and its relatives: from a function that builds an op to one that builds the op of its gradient."""

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar, cast, overload

import numpy as np

from dagpu.common.errors import GradientError
from dagpu.common.layout import COMPLEX, FLOATING, bf16, f16, f32, f64
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import format_value
from dagpu.grad.dataflow import Flow
from dagpu.grad.parameterized import Parameterized, flattened
from dagpu.grad.record import Position, Recorder, Saved, Seen, seen
from dagpu.grad.reverse import backward, has_rule, is_rule_of_complex
from dagpu.grad.spread_leaves import SPREAD_LEAVES, checked_replica, gradients_of, handles_of
from dagpu.handles import HANDLES, SharedTensor, Tensor
from dagpu.handles.handle_state import Storage
from dagpu.kernels.annotations import In
from dagpu.meshes.values import SPREAD_VALUES, Partials, Replicated, Sharded, ShardedRef
from dagpu.ops.base import Borrowed, DeviceOp
from dagpu.ops.compose import ByTrace, Map, Then, Value
from dagpu.ops.creation import dup
from dagpu.ops.recording import recorded

_P = ParamSpec("_P")
_F = TypeVar("_F", f16, bf16, f32, f64)
_L = TypeVar("_L", bound=Borrowed)
_N = TypeVar("_N", bound=np.generic)
_Tree: TypeAlias = "Parameterized[SharedTensor[Any]] | SharedTensor[Any] | tuple[_Tree, ...]"
_M = TypeVar("_M", bound=_Tree)
_V = TypeVar(
    "_V",
    Tensor[f16], Tensor[bf16], Tensor[f32], Tensor[f64],
    Replicated[f16], Replicated[bf16], Replicated[f32], Replicated[f64],
)  # fmt: skip


def value_and_grad(
    f: Callable[Concatenate[_M, _P], DeviceOp[_V, _L]], /
) -> Callable[Concatenate[_M, _P], DeviceOp[tuple[_V, _M], _L]]:
    """Return the function whose op gives f's value, of one element, and its gradient by the first argument.

    The first argument is a shared tensor, or a tree of them (a tuple, or a `Parameterized`); the gradient is a tree of
    the same class. The value is a tensor, or the `Replicated` of an `all_reduce`. `f` is called once in each trace,
    with the same arguments, and builds an op as ever. What the pass back reads of the pass forward stays in the memory
    of the run, and the op owns nothing after it. Derivatives follow memory: a leaf that `f` reaches in another way, by
    a variable of its scope say, counts too. A tensor that was computed from a leaf before `f` is called is a constant.
    The gradient by a complex z = x + iy is d/dx + i d/dy, so a step against it lowers the value, as for real numbers.

    Raises (when the op is traced, before anything runs):
        GradientError: something on the way has no derivative (a kernel without a rule, a function of the host), has
            been written over before the pass back reads it, or the value has several elements. Names both places.
        TypeError: a leaf is no shared tensor, or its elements are integers.
    """
    origin = here()

    @leaves_run
    def with_gradient(model: Any, /, *args: Any, **kwargs: Any) -> Any:
        where, (leaves, rebuilt) = here(), flattened(model)
        _check_leaves("value_and_grad", leaves, where)

        def paired(found: Any, gradients: tuple[Any, ...]) -> Any:
            return found, rebuilt(list(gradients))

        return _differentiated(f, (model, *args), kwargs, leaves, 1.0, paired, where or origin)

    return with_gradient


def grad(f: Callable[Concatenate[_M, _P], DeviceOp[_V, _L]], /) -> Callable[Concatenate[_M, _P], DeviceOp[_M, _L]]:
    """Return the function whose op gives the gradient of f's value by the first argument. See `value_and_grad`."""
    origin = here()

    @leaves_run
    def gradient(model: Any, /, *args: Any, **kwargs: Any) -> Any:
        where, (leaves, rebuilt) = here(), flattened(model)
        _check_leaves("grad", leaves, where)

        def alone(_found: Any, gradients: tuple[Any, ...]) -> Any:
            return rebuilt(list(gradients))

        return _differentiated(f, (model, *args), kwargs, leaves, 1.0, alone, where or origin)

    return gradient


@overload
def vjp(
    f: Callable[[SharedTensor[_F]], DeviceOp[_V, _L]], by: SharedTensor[_F], /, *, cotangent: In[Any] | None = None
) -> DeviceOp[tuple[_V, SharedTensor[_F]], _L]: ...
@overload
def vjp(
    f: Callable[[_M], DeviceOp[_V, _L]], by: _M, /, *, cotangent: In[Any] | None = None
) -> DeviceOp[tuple[_V, _M], _L]: ...
@overload
def vjp(
    f: Callable[[ShardedRef[_N]], DeviceOp[_V, _L]], by: ShardedRef[_N], /, *, cotangent: In[Any] | None = None
) -> DeviceOp[tuple[_V, Sharded[_N]], _L]: ...
@overload
def vjp(
    f: Callable[[Replicated[_N]], DeviceOp[_V, _L]], by: Replicated[_N], /, *, cotangent: In[Any] | None = None
) -> DeviceOp[tuple[_V, Partials[_N]], _L]: ...
@overload
def vjp(
    f: Callable[[tuple[ShardedRef[_N], ShardedRef[_N]]], DeviceOp[_V, _L]],
    by: tuple[ShardedRef[_N], ShardedRef[_N]],
    /,
    *,
    cotangent: In[Any] | None = None,
) -> DeviceOp[tuple[_V, tuple[Sharded[_N], Sharded[_N]]], _L]: ...
@overload
def vjp(
    f: Callable[[tuple[ShardedRef[_N], ShardedRef[_N], ShardedRef[_N]]], DeviceOp[_V, _L]],
    by: tuple[ShardedRef[_N], ShardedRef[_N], ShardedRef[_N]],
    /,
    *,
    cotangent: In[Any] | None = None,
) -> DeviceOp[tuple[_V, tuple[Sharded[_N], Sharded[_N], Sharded[_N]]], _L]: ...
@leaves_run
def vjp(f: Any, by: Any, /, *, cotangent: Any = None) -> Any:
    """Return the op of `f(by)`, a tensor of any shape, and of the product of a cotangent with the Jacobian of it.

    By values on several devices the gradient has the dual type, for mypy too: by a `ShardedRef` it is a `Sharded`, and
    by a `Replicated` it is `Partials`, a summand for each device.

    Args:
        f: a function of a shared tensor, or of a tree of them, that builds an op.
        by: that tensor or tree.
        cotangent: a tensor of the shape of f's value, or an op of one: what the gradient of the value is taken to be.
            None is for 1, and a value of one element.

    Raises:
        GradientError: as for `value_and_grad`; or the cotangent has another shape than the value.
        TypeError: as for `value_and_grad`.
    """
    where, (leaves, rebuilt) = here(), flattened(by)
    _check_leaves("vjp", leaves, where)

    def paired(found: Any, gradients: tuple[Any, ...]) -> Any:
        return found, rebuilt(list(gradients))

    if cotangent is None:
        return _differentiated(f, (by,), {}, leaves, 1.0, paired, where)
    given = cotangent if isinstance(cotangent, DeviceOp) else Value(cotangent, where)

    def of_shared(seed: Any) -> Any:
        return _differentiated(f, (by,), {}, leaves, seed, paired, where)

    def of_seed(seed: Any, _evaluation: Any) -> Any:
        if type(seed) is SharedTensor or type(seed) is Tensor:
            return of_shared(seed.share() if type(seed) is Tensor else seed)
        return Then(dup(seed).share(), ByTrace(lambda copy, _: of_shared(copy), "vjp"), where)

    return Then(given, ByTrace(of_seed, "vjp"), where)


def stop_gradient(x: In[_F], /) -> DeviceOp[SharedTensor[_F], Any]:
    """Return x as a constant: nothing is differentiated by way of it. What reads it may be anything, the host too.

    Where nothing is differentiated it is x itself. Within a gradient it is a copy, made on the device: derivatives
    follow memory.
    """
    return cast("DeviceOp[SharedTensor[_F], Any]", _stopped(x))


@leaves_run
def _stop(x: Any) -> Any:
    return dup(x).share()


_stop.__name__ = "stop_gradient"
_stopped = recorded(_stop)


# ---- the transformation
def _check_leaves(name: str, leaves: list[Any], where: Origin) -> None:
    """Raise unless the leaves are shared tensors of floats, or such values on several devices."""
    for leaf in leaves:
        if type(leaf) not in (SharedTensor, *SPREAD_LEAVES):
            cure = "Share it: t.share(), or from_host(x).sync().share()"
            raise TypeError(
                f"{name} at {describe(where)}: a leaf of the first argument is {format_value(leaf)}, but shared "
                f"tensors are wanted. {cure}."
            )
        if leaf.dtype not in FLOATING | COMPLEX:
            raise TypeError(
                f"{name} at {describe(where)}: a leaf has elements of {np.dtype(leaf.dtype).name}, which has no "
                "derivative. Differentiate by the others: pass it as an argument after the first, or convert it."
            )


def _differentiated(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: list[Any],
    seed: Any,
    combined: Callable[[Any, tuple[Any, ...]], Any],
    origin: Origin,
) -> DeviceOp[Any, Any, Any]:
    """Return the op of f's value and its gradients, as `combined` puts them together."""

    def start(_: None, evaluation: Any) -> DeviceOp[Any, Any, Any]:
        recorder = evaluation.recorders
        if recorder is None:
            recorder = evaluation.recorders = Recorder(evaluation)
        known = [_seen_leaf(handle, origin) for leaf in leaves for handle in handles_of(leaf)]
        _check_apart([each.storage for each in known], origin)
        first, begin = recorder.enter()
        op = recorder.calling(lambda: f(*args, **kwargs))
        if not isinstance(op, DeviceOp):
            recorder.leave()
            raise TypeError(
                f"the function that is differentiated at {describe(origin)} returned {format_value(op)}, which is not "
                "an op. Return one."
            )
        end = ByTrace(lambda value, state: finish(value, state, first, begin, known), "gradient")
        return Then(op, end, origin)

    def finish(value: Any, evaluation: Any, first: int, begin: Position, known: list[Seen]) -> DeviceOp[Any, Any, Any]:
        recorder: Recorder = evaluation.recorders
        recorded = recorder.recorded(first, begin)
        if recorder.leave():
            evaluation.recorders = None
        flow = Flow(known, recorded, has_rule, is_rule_of_complex)
        root = _checked_root(value, seed, origin)
        op = backward(flow, Saved(), known, root, seed, origin)

        def end(found: Any, _evaluation: Any) -> DeviceOp[Any, Any, Any]:
            if not recorder.depth:  # else the outer gradient reads them too
                for call in recorder.forget():
                    call.args.clear()
                    call.results.clear()
            return Map(gradients_of(leaves, found, origin), lambda gradients: combined(value, gradients), origin)

        return Then(op, ByTrace(end, "gradient"), origin)

    return Then(Value(None, origin), ByTrace(start, "gradient"), origin)


def _seen_leaf(leaf: Any, origin: Origin) -> Seen:
    found = seen(leaf)
    if found is None:
        raise GradientError(f"a leaf of the gradient at {describe(origin)} has been moved. Share it: t.share().")
    return found


def _check_apart(storages: list[Storage], origin: Origin) -> None:
    if len(set(storages)) != len(storages):
        raise GradientError(
            f"two leaves of the gradient at {describe(origin)} are one memory, so neither has a gradient of its own. "
            "Pass it once, or make a copy of it: dup(x)."
        )


def _checked_root(value: Any, seed: Any, origin: Origin) -> Seen:
    """Return the tensor whose gradient is asked for."""
    if type(value) in SPREAD_VALUES:
        value = checked_replica(value, origin)
    root = seen(value) if type(value) in HANDLES else None
    if root is None or root.layout.dtype not in FLOATING:
        what = format_value(value) if root is None else f"a tensor of {root.layout.dtype.name}"
        cure = "Return the op of one, and not what came to the host"
        if root is not None and root.layout.dtype.kind == "c":
            cure = "Make a real number of it: array.real(y), array.imag(y), or array.abs(y)"
        raise GradientError(
            f"the function that is differentiated at {describe(origin)} gives {what}, but a tensor of floats has a "
            f"gradient. {cure}."
        )
    shape = root.layout.shape
    if isinstance(seed, float) and root.layout.size != 1:
        raise GradientError(
            f"the function that is differentiated at {describe(origin)} gives a tensor with the shape {shape}, but a "
            "gradient is that of one element. Add them up, array.sum(y), or pass a cotangent: vjp(f, x, cotangent=g)."
        )
    if not isinstance(seed, float) and (seed.shape != shape or seed.dtype != root.layout.dtype):
        raise GradientError(
            f"vjp at {describe(origin)}: the cotangent is of {seed.dtype.name} with the shape {seed.shape}, but the "
            f"value of {root.layout.dtype.name} with the shape {shape}. Pass one like the value."
        )
    return root
