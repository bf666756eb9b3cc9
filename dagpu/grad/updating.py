"""`updated`: parameters that a gradient reads and that are written in place then, in one run; and steps for it."""

from collections.abc import Callable
from typing import Any, TypeVar, overload

import numpy as np

from dagpu import arrays as array
from dagpu.common.errors import GradientError
from dagpu.common.layout import bf16, c64, c128, f16, f32, f64
from dagpu.common.places import Origin, describe, here, leaves_run
from dagpu.common.wrong_arguments import format_value
from dagpu.grad.cotangents import elementwise
from dagpu.grad.parameterized import Parameterized, flattened
from dagpu.grad.record import Saved, Seen
from dagpu.handles import SharedTensor, TensorMut
from dagpu.handles.handle_state import HandleState, live_state, take_state
from dagpu.kernels.annotations import In
from dagpu.kernels.expression_text import tile_of
from dagpu.kernels.operations import type_name
from dagpu.ops.base import Borrowed, DeviceOp
from dagpu.ops.compose import FIRST, UNCUT, ByTrace, Map, Then, Value, Zip, unzip

_T = TypeVar("_T")
_F = TypeVar("_F", f16, bf16, f32, f64)
_E = TypeVar("_E", f16, bf16, f32, f64, c64, c128)
_L = TypeVar("_L", bound=Borrowed)

_TILE = 1024


@leaves_run
def updated(
    model: Parameterized[TensorMut[_E]] | tuple[TensorMut[_E], ...] | TensorMut[_E],
    f: Callable[[Any], DeviceOp[tuple[_T, Any], _L]],
    step: Callable[..., DeviceOp[Any, Any]],
    /,
    *states: Parameterized[TensorMut[Any]] | tuple[TensorMut[Any], ...] | TensorMut[Any],
) -> DeviceOp[_T, Borrowed]:
    """Return the op that reads a lent model by `f`, and then writes each of its tensors by a step. Its result is the
    value that `f` gave.

    It is one run, and one graph in a pipeline; the parameters stay where they are, and need no second memory::

        lent = model.mapped(lambda t: t.borrow_mut())
        updated(lent, lambda m: value_and_grad(loss)(m, x), lambda w, g: sgd(w, g, 0.1)).sync()

    Args:
        model: a tree of lent tensors.
        f: called with the tree of what they hold, as shared tensors, which are void once they are written. Its op gives
            a value and a tree of gradients of the same form: `value_and_grad(loss)` of it.
        step: called with a lent tensor, its gradient, and its part of each state; its op writes them: `sgd`, say.
        states: more trees of the same form, of lent tensors that only the steps read and write.

    Raises:
        GradientError: a step does not write its tensor of the model. It is raised in the trace, before anything runs.
        TypeError: a leaf is not lent for writing, or the trees have different forms.
    """
    where = here()
    trees = [flattened(each) for each in (model, *states)]
    for leaves, _ in trees:
        _check_lent(leaves, len(trees[0][0]), where)
    rebuilt, count = trees[0][1], len(trees[0][0])

    def start(held: Any, _evaluation: Any) -> DeviceOp[Any, Any, Any]:
        saved = Saved()
        readers = [saved.handle(Seen(live_state(lent)), where) for lent in held[:count]]

        def write(found: Any, _evaluation: Any) -> DeviceOp[Any, Any, Any]:
            value, gradients = found
            for reader in readers:
                take_state(reader, "the write of updated()", where)
            parts = [held[number * count : (number + 1) * count] for number in range(len(trees))]
            given = flattened(gradients)[0]
            memory = [live_state(w) for w in parts[0]]
            made = [step(w, g, *rest) for w, g, *rest in zip(parts[0], given, *parts[1:], strict=True)]
            steps = [_writing(op, to, where) for op, to in zip(made, memory, strict=True)]
            return Map(Zip(tuple(steps), where), lambda _: value, where)

        return Then(f(rebuilt(readers)), ByTrace(write, "updated"), where)

    return Then(Value(tuple([leaf for leaves, _ in trees for leaf in leaves]), where), ByTrace(start, "updated"), where)


def _check_lent(leaves: list[Any], count: int, where: Origin) -> None:
    for leaf in leaves:
        if type(leaf) is not TensorMut:
            raise TypeError(
                f"updated at {describe(where)}: a leaf is {format_value(leaf)}, but tensors lent for writing are "
                "wanted. Lend each: model.mapped(lambda t: t.borrow_mut())."
            )
    if len(leaves) != count:
        raise TypeError(
            f"updated at {describe(where)}: a state has {len(leaves)} leaves, and the model {count}. Pass trees of one "
            "form."
        )


def _writing(op: DeviceOp[Any, Any, Any], to: HandleState, where: Origin) -> DeviceOp[Any, Any, Any]:
    """Return the op of a step. It raises a `GradientError` in the trace if no instruction of it writes its tensor."""
    begin: list[tuple[Any, int, int]] = []

    def start(_: None, evaluation: Any) -> DeviceOp[Any, Any, Any]:
        begin.append((evaluation.builder, len(evaluation.builder.instructions), evaluation.stage))
        return op

    def check(result: Any, evaluation: Any) -> DeviceOp[Any, Any, Any]:
        first, at, stage = begin.pop()
        # A step that waits for the host has several stages. Of three and more those between are gone.
        unknown = not to.layout.size or evaluation.stage > stage + 1
        later = evaluation.stage > stage and _writes(evaluation.builder, 0, to)
        if not (unknown or later or _writes(first, at, to)):
            raise GradientError(
                f"updated at {describe(where)}: the step at {describe(op.origin)} does not write the tensor of "
                f"{to.layout.dtype.name} with the shape {to.layout.shape} that it got, so the model would stay as it "
                "is. Write it in place: sgd(w, g, rate), or f.update(w.partition(tile), g) of an expression f."
            )
        return Value(result, where)

    began: DeviceOp[Any, Any, Any] = Then(Value(None, where), ByTrace(start, "updated"), where)
    return Then(began, ByTrace(check, "updated"), where)


def _writes(builder: Any, at: int, to: HandleState) -> bool:
    """True if an instruction of a stage writes to the memory of a handle, from instruction number `at` on."""
    memory = builder.storages()
    return any(memory.get(buffer) is to.storage for each in builder.instructions[at:] for buffer in each.writes)


# ---- steps
def _changed(expression: Any, outs: tuple[TensorMut[Any], ...], *args: Any) -> DeviceOp[Any, Any, Any]:
    """Return the op that changes lent tensors in place, by one launch, and gives them back: one, or the tuple of
    several."""
    where, count = here(), len(outs)
    parts = [out.partition(tile_of(out.shape, _TILE), partial=True) for out in outs]
    launch = expression.write((*parts, *args), where, updates=True)
    if count == 1:
        return Map(Map(launch, FIRST, where), UNCUT, where)
    given_back: list[DeviceOp[Any, Any, Any]] = [Map(part, UNCUT, where) for part in unzip(launch, None, where)[:count]]
    return Zip(tuple(given_back), where)


@leaves_run
def sgd(w: TensorMut[_E], g: In[_E], rate: float, /) -> DeviceOp[TensorMut[_E], Borrowed]:
    """Return the op that writes `w - rate * g` over a lent tensor, by one launch."""
    return _changed(elementwise(lambda w, g, rate: w - rate * g, "sgd", *[w.dtype] * 3), (w,), g, rate)


@leaves_run
def momentum(
    w: TensorMut[_E], g: SharedTensor[_E], v: TensorMut[_E], /, rate: float, beta: float = 0.9
) -> DeviceOp[tuple[TensorMut[_E], TensorMut[_E]], Borrowed]:
    """Return the op of a step with momentum: `v = beta * v + g`, and then `w = w - rate * v`. Both are lent."""
    return _changed(elementwise(_momentum_step, "momentum", *[w.dtype] * 5), (w, v), g, rate, beta)


def _momentum_step(w: Any, v: Any, g: Any, rate: Any, beta: Any) -> tuple[Any, Any]:
    speed = beta * v + g
    return w - rate * speed, speed


@overload
def adam(
    w: TensorMut[_F],
    g: SharedTensor[_F],
    m: TensorMut[_F],
    v: TensorMut[_F],
    /,
    count: float,
    rate: float = ...,
    beta1: float = ...,
    beta2: float = ...,
    epsilon: float = ...,
) -> DeviceOp[Any, Borrowed]: ...
@overload
def adam(
    w: TensorMut[c64],
    g: SharedTensor[c64],
    m: TensorMut[c64],
    v: TensorMut[f32],
    /,
    count: float,
    rate: float = ...,
    beta1: float = ...,
    beta2: float = ...,
    epsilon: float = ...,
) -> DeviceOp[Any, Borrowed]: ...
@overload
def adam(
    w: TensorMut[c128],
    g: SharedTensor[c128],
    m: TensorMut[c128],
    v: TensorMut[f64],
    /,
    count: float,
    rate: float = ...,
    beta1: float = ...,
    beta2: float = ...,
    epsilon: float = ...,
) -> DeviceOp[Any, Borrowed]: ...
@leaves_run
def adam(
    w: TensorMut[Any],
    g: SharedTensor[Any],
    m: TensorMut[Any],
    v: TensorMut[Any],
    /,
    count: float,
    rate: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> DeviceOp[Any, Borrowed]:
    """Return the op of a step of Adam (Kingma and Ba, 2015, algorithm 1), with the means of gradients and of their
    squares in `m` and `v`, which are lent and begin as zeros. `count` is the number of the step, from 1; it may differ
    from call to call of a pipeline.

    Of complex elements, the square is that of the absolute value, as in optax: a step has the direction of the mean,
    and does not depend on where the axes lie. `v` has real elements then, `zeros(w.shape, f32)` for a `w` of c64.
    (PyTorch's Adam takes the real and the imaginary parts as parameters of their own.)

    Raises:
        TypeError: `w` is complex, and `v` has no real elements.
    """
    where, dtype = here(), w.dtype
    is_complex = dtype.kind == "c"
    real = np.dtype(f"f{dtype.itemsize // 2}") if is_complex else dtype
    if is_complex and v.dtype != real:
        raise TypeError(
            f"adam at {describe(where)}: v has elements of {v.dtype.name}, but the squares of the sizes of complex "
            f"numbers are of {real.name}. Begin with real zeros: zeros(w.shape, {type_name(real)})."
        )
    function = _complex_step(dtype) if is_complex else _real_step
    step = elementwise(function, "adam", *[dtype] * 2, real, dtype, *[real] * 5)
    return _changed(step, (w, m, v), g, count, rate, beta1, beta2, epsilon)


def _real_step(w: Any, m: Any, v: Any, g: Any, t: Any, rate: Any, b1: Any, b2: Any, e: Any) -> tuple[Any, Any, Any]:
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    return w - rate * (m / (1 - array.pow(b1, t))) / (array.sqrt(v / (1 - array.pow(b2, t))) + e), m, v


def _complex_step(dtype: "np.dtype[Any]") -> Callable[..., Any]:
    """Return the step of elements of this type. `elementwise` keeps it by the types of its arguments."""

    def step(w: Any, m: Any, v: Any, g: Any, t: Any, rate: Any, b1: Any, b2: Any, e: Any) -> tuple[Any, Any, Any]:
        m = b1.to(dtype.type) * m + (1 - b1).to(dtype.type) * g
        v = b2 * v + (1 - b2) * (g.real * g.real + g.imag * g.imag)
        factor = rate / (1 - array.pow(b1, t)) / (array.sqrt(v / (1 - array.pow(b2, t))) + e)
        return w - factor.to(dtype.type) * m, m, v

    return step
