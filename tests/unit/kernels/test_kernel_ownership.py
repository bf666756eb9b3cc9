"""Kernel calls and ownership: a call moves its arguments, and a refused call moves nothing."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpu.common.errors import MovedError
from dagpu.common.layout import f32, f64
from dagpu.handles import Partition, SharedTensor, Tensor, TensorMut, TensorRef
from dagpu.kernels.call_arguments import arguments_fit, check_arguments
from dagpu.ops.compose import Launch, value
from tests.unit.kernels.kernel_cases import add, alive, cut, lazily, lazy, refused, saxpy, split, tensor

# ---- calls: ownership


def test_aliases() -> None:
    """Memory that an output writes, or that a `Tensor` owns, is one argument's alone."""
    t = tensor((8,))
    y = t.borrow_mut().partition((4,))
    message = refused(add, y, t.borrow(), lazy(1))
    assert "argument 'a': output 'y' is on the same memory as input 'a'." in message
    assert "or read a copy that was made before: dup(t.borrow()).sync()." in message
    assert "argument 'a': output 'y' is on the same memory as input 'a'." in refused(add, y, t, lazy(1))
    x = tensor((8,))
    assert "argument 'b': the same Tensor is argument 'a' already" in (message := refused(add, lazy(1), x, x))
    assert "Share it: t = t.share()." in message
    message = refused(add, lazy(1), x, x.borrow())
    assert "argument 'b': it is on the same memory as argument 'a', and a Tensor moves when it is passed." in message
    assert "Pass .borrow() for both, or share it" in message
    y = cut((8,), (4,))
    assert "argument 'z': the same Partition is argument 'y' already" in refused(split, y, y, lazy(1))


def test_outputs_on_the_same_memory() -> None:
    """Two different partitions of one tensor are no two outputs."""
    t = tensor((8,))
    first, second = t.borrow_mut().partition((4,)), t.borrow_mut().partition((4,))
    assert "two outputs, 'y' and this one, are on the same memory." in refused(split, first, second, lazy(1))


def test_refused_call_moves_nothing() -> None:
    """A call that is refused for its last argument leaves all before it usable."""
    y, x = cut(), tensor((8,))
    refused(saxpy, y, 2.0, x)
    refused(saxpy, y, "2", tensor())
    assert alive(y)
    assert alive(x)
    assert isinstance(saxpy(y, 2.0, tensor()), Launch)


def test_moved_handle() -> None:
    """A handle that has been moved raises `MovedError`, and the others stay as they are."""
    y, x = cut(), tensor()
    saxpy(lazy(1), 2.0, x)
    with pytest.raises(MovedError, match="moved by being passed to a kernel"):
        saxpy(y, 2.0, x)
    assert alive(y)
    other = tensor()
    saxpy(y, 2.0, lazy(1))
    with pytest.raises(MovedError):
        saxpy(y, 2.0, other)
    assert alive(other)


def test_dead_borrow() -> None:
    """A borrow whose tensor has been moved is refused before anything moves."""
    y, lender = cut(), tensor()
    borrow = lender.borrow()
    lender.share()
    with pytest.raises(MovedError, match="TensorRef borrowed at"):
        saxpy(y, 2.0, borrow)
    assert alive(y)


def test_check_of_a_launch() -> None:
    """The results of ops are checked by the same rules, and an op is not a value any more."""
    origin = here_origin()
    check_launch = partial(check_arguments, ops=False)
    check_launch(saxpy.spec, (cut(), 2.0, tensor()), origin)
    for args, what in (
        ((tensor(), 2.0, tensor()), "Cut it into tiles"),
        ((cut(), 2.0, tensor((4,))), "of rank 1"),
        ((cut(), "2", tensor()), "argument 'a': got str"),
        ((cut(), 2.0, lazy(1)), "argument 'x': got the op <value at "),
        ((cut(), value(2.0), tensor()), "argument 'a': got the op <value at "),
    ):
        assert what in refused(check_launch, saxpy.spec, args, origin)


def test_what_fits_is_not_refused() -> None:
    """The quick look at a launch says yes only to what the whole check lets pass, and raises only what that raises."""
    one, shared, gone = tensor((4,)), tensor((4,)).share(), tensor((4,))
    gone.share()
    kinds: list[Any] = [
        cut(), cut((4,), (4,)), cut((8,), (8,)), cut((8,), (4,)), cut((4,), (4,), f64), one, one.borrow(), one.borrow(),
        shared, shared.clone(), shared.reshape((2, 2)), tensor(), gone, tensor((4,)).borrow_mut(), None,
    ]  # fmt: skip
    said = {True: 0, False: 0}
    for k in (saxpy, split, add, lazily, split.grid(2)):
        for tensors in itertools.product(kinds, repeat=len(k.spec.tensors)):
            given = iter(tensors)
            args = [{"a": 1.0, "n": 7}[p.name] if not p.form.is_tensor else next(given) for p in k.spec.params]
            try:
                said[yes := arguments_fit(k.spec, args)] += 1
            except MovedError:
                with pytest.raises(MovedError):
                    check_arguments(k.spec, args, None, ops=False)
            else:
                if yes:
                    check_arguments(k.spec, args, None, ops=False)
    assert min(said.values()) > 20


def test_what_is_usual_fits() -> None:
    """Partitions, tensors, shared tensors and borrows need no more than the quick look."""
    lender = tensor()
    for x in (tensor(), tensor().share(), lender.borrow()):
        assert arguments_fit(saxpy.spec, (cut(), 2.0, x))
    assert arguments_fit(split.spec, (cut((8,), (4,)), cut((4,), (2,)), tensor((4,)), 7))
    assert not arguments_fit(split.spec, (cut((8,), (4,)), cut((4,), (4,)), tensor((4,)), 7))


def here_origin() -> Any:
    return cast(Launch, saxpy(lazy(1), 1.0, lazy(2))).origin


FORMS: dict[str, Callable[[], Any]] = {
    "op": lambda: lazy(1),
    "number": lambda: 1.5,
    "text": lambda: "1",
    "array": lambda: np.zeros((4, 4), f32),
    "tensor": lambda: tensor((4, 4)),
    "tensor f64": lambda: tensor((4, 4), f64),
    "vector": lambda: tensor((4,)),
    "shared": lambda: tensor((4, 4)).share(),
    "cut": lambda: cut((4, 4), (2, 2)),
    "cut f64": lambda: cut((4, 4), (2, 2), f64),
    "cut vector": lambda: cut((4,), (2,)),
    "none": lambda: None,
}
FITS = ({"op", "cut"}, {"number"}, {"op", "tensor", "shared"})


# ---- any arguments, against an oracle


@given(st.tuples(*[st.sampled_from(sorted(FORMS))] * 3), st.integers(0, 3))
def test_any_forms(forms: tuple[str, ...], by_position: int) -> None:
    """A call is let through exactly if each argument fits its parameter, whether by position or by name.

    It then moves the tensors and partitions among them, and else nothing.
    """
    args = [FORMS[form]() for form in forms]
    named = dict(zip(("y", "a", "x"), args, strict=True))
    given_names = list(named)[by_position:]
    call = cast(Callable[..., Any], saxpy)
    fits = all(form in fit for form, fit in zip(forms, FITS, strict=True))
    names = {name: named[name] for name in given_names}
    if fits:
        op = call(*args[:by_position], **names)
        assert [type(arg) for arg in op.args] == [type(arg) for arg in args]
    else:
        wrong = next(name for name, form, fit in zip(named, forms, FITS, strict=True) if form not in fit)
        message = refused(call, *args[:by_position], **names)
        assert message.startswith(f"kernel 'saxpy', argument {wrong!r}: got ")
    for arg in args:
        if isinstance(arg, Tensor | Partition):
            assert alive(arg) is not fits
        elif isinstance(arg, SharedTensor | TensorRef | TensorMut):
            assert alive(arg)
