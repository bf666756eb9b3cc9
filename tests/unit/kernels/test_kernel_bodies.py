"""Overrides of a launch, host bodies, and compiling ahead of a run."""

import re
from collections.abc import Callable
from typing import Any, cast

import pytest

from dagpu.common.errors import NoDeviceError
from dagpu.common.layout import f32
from dagpu.kernels.declaration import COMPILER
from dagpu.kernels.decorator import In, Kernel, Out, kernel
from dagpu.ops.compose import Launch
from tests.unit.kernels import kernel_cases
from tests.unit.kernels.kernel_cases import SAXPY, lazy, refused, saxpy

FILE = __file__


def test_overrides_make_copies() -> None:
    """`grid`, `block` and `shared_memory` give changed copies and leave the kernel as it was."""
    changed = saxpy.grid(2, 3).block(32, 4).shared_memory(1024)
    assert (changed.spec.grid, changed.spec.block, changed.spec.shared_bytes) == ((2, 3), (32, 4), 1024)
    assert (saxpy.spec.grid, saxpy.spec.block, saxpy.spec.shared_bytes) == (None, None, 0)
    assert changed.spec.host is saxpy.spec.host
    assert cast(Launch, changed(lazy(1), 1.0, lazy(2))).kernel is changed.spec


def test_overrides_are_checked() -> None:
    """Overrides are held to the same limits as the declaration, and refused with the place of the call."""

    def said(change: Callable[..., object], *given: object) -> str:
        return re.sub(rf" at {re.escape(kernel_cases.__file__)}:\d+", "", refused(change, *given))

    assert "grid(0). Give 1 to 3 whole numbers, each 1 or more." in said(saxpy.grid, 0)
    assert "grid(). Give 1 to 3" in said(saxpy.grid)
    assert "block(1025) has 1025 threads." in said(saxpy.block, 1025)
    assert "shared_memory(-1). Give a number of bytes, 0 or more." in said(saxpy.shared_memory, -1)
    assert "shared_memory(True)" in said(saxpy.shared_memory, True)
    assert "shared_memory(1.5)" in said(saxpy.shared_memory, 1.5)


def fresh() -> Kernel[Any]:
    @kernel(cuda=SAXPY)
    def saxpy(y: Out[f32], a: float, x: In[f32]) -> None: ...

    return cast(Kernel[Any], saxpy)


def test_host_body() -> None:
    """A host body is set once, with or without `whole`, and copies share it."""

    def body(y: object, a: object, x: object) -> None: ...

    k = fresh()
    copy = k.block(32)
    k.host(body)
    assert (copy.spec.host.function, copy.spec.host.whole) == (body, False)
    k = fresh()
    k.host(whole=True)(body)
    assert (k.spec.host.function, k.spec.host.whole) == (body, True)
    line = body.__code__.co_firstlineno
    message = refused(k.host, body)
    assert f"a second host body is set at {FILE}:{line}; the first is at {FILE}:{line}. Keep one of them." in message


@pytest.mark.parametrize(
    "body", [lambda y, _a, x: None, lambda _, a, x: None, lambda *args: None, lambda y, *rest: None]
)
def test_host_body_may_ignore_arguments(body: Callable[..., None]) -> None:
    """A parameter that the body does not use may be called `_` or `_name`, and `*args` takes the rest."""
    fresh().host(body)


@pytest.mark.parametrize(
    "body", [lambda y, a: None, lambda y, x, a: None, lambda y, a, x, z: None, lambda y, a, *, x: None]
)
def test_host_body_refused(body: Callable[..., None]) -> None:
    """A body with other parameters than the kernel's is refused."""
    k = fresh()
    message = refused(k.host, body)
    assert f"its host body at {FILE}:" in message
    assert "but it is called with (y, a, x) by position." in message
    assert k.spec.host.function is None


def test_host_body_that_is_no_function() -> None:
    """An object that cannot be called, or hides its parameters, is refused as a host body."""
    assert "its host body is of type int. Decorate a function" in refused(fresh().host, 3)
    assert "cannot be read. Wrap it in a Python function." in refused(fresh().host, max)


def test_compile() -> None:
    """Compiling needs a backend that can; it is handed the spec."""
    with pytest.raises(NoDeviceError, match=re.escape("kernel 'saxpy', declared at")) as caught:
        saxpy.compile()
    assert "because no CUDA backend is loaded here. Leave compile() out on the host" in str(caught.value)
    compiled: list[object] = []
    COMPILER.set(compiled.append)
    try:
        saxpy.compile()
    finally:
        COMPILER.set(None)
    assert compiled == [saxpy.spec]
