"""Arrays of JAX on a real GPU, in and out without a copy."""

import gc
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from dagpu import (
    Device,
    ExportError,
    InteropError,
    adopt,
    array,
    current_device,
    expr,
    f32,
    from_array,
    full,
    lend,
    lend_mut,
    pipeline,
    share_array,
    unversioned,
    use_device,
)  # fmt: skip

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # it would take three quarters of the memory
jax = pytest.importorskip("jax")

N = 1 << 20


@expr(f32)
def plus_one(x: Any) -> Any:
    return x + 1.0


@pytest.fixture(autouse=True)
def on_gpu(cuda: Device) -> Iterator[None]:
    try:
        jax.devices("gpu")
    except RuntimeError as error:
        pytest.skip(f"JAX has no GPU: {error}")
    with use_device(cuda):
        yield
    gc.collect()


def late(number: float) -> Any:
    """An array that JAX is still computing when this returns."""
    with jax.default_device(jax.devices("gpu")[0]):
        x = jax.numpy.full((1024, 1024), 1.0 / 1024)
        for _ in range(30):
            x = x @ x * 1.0
        return x.reshape(-1) * 0.0 + number


def test_a_late_producer() -> None:
    """A run waits on the device for JAX's stream, and the memory is JAX's own."""
    for _ in range(20):
        x = late(3.0)
        used = current_device().memory_used()
        shared = share_array(x, f32)
        assert current_device().memory_used() == used
        assert shared.__cuda_array_interface__["data"][0] == x.unsafe_buffer_pointer()
        assert_array_equal(plus_one(shared).to_host().sync(), np.full(N, 4, f32))


def test_arrays_are_not_written() -> None:
    """JAX's arrays never change, and two of them may have one memory."""
    x = late(1.0)
    with pytest.raises(InteropError, match="read-only"):
        adopt(x, f32)
    with pytest.raises(InteropError, match="read-only"), lend_mut(x, f32):
        pass


def test_a_pipeline_between_two_functions_of_jax() -> None:
    """A jitted function makes the inputs of a pipeline, and another one takes its results, without a copy: in a graph,
    wherever JAX puts them."""
    made = jax.jit(lambda x: x * 2.0)
    total = jax.jit(lambda x: x.sum())
    step = pipeline(graph_from=2)(lambda x: plus_one(x))
    x = jax.device_put(np.ones(N, f32), jax.devices("gpu")[0])
    for number in range(10):
        result = step(share_array(made(x + number), f32)).sync()
        assert float(total(jax.dlpack.from_dlpack(result))) == (2.0 * (1 + number) + 1) * N


def test_a_copy_and_a_loan() -> None:
    """`from_array` copies on the device; `lend` gives the array for a block."""
    x = late(2.0)
    assert_array_equal(from_array(x, f32).to_host().sync(), np.full(N, 2, f32))
    with lend(x, f32) as r:
        assert array.amax(r).to_host().sync() == 2


def test_arrays_go_out() -> None:
    """A tensor moves, a shared one goes out for readers; both keep their address."""
    tensor = full((N,), 5.0).sync()
    out = jax.dlpack.from_dlpack(tensor)
    assert float(out.sum()) == 5.0 * N
    assert "gone" in repr(tensor)
    shared = full((N,), 2.0).sync().share()
    with pytest.raises(ExportError, match=r"pass unversioned\(t\)"):
        shared.__dlpack__()
    seen = jax.dlpack.from_dlpack(unversioned(shared))
    assert seen.unsafe_buffer_pointer() == shared.__cuda_array_interface__["data"][0]
    assert float(seen.sum()) == 2.0 * N


def test_memory_of_a_late_consumer() -> None:
    """JAX drops an array of ours while its stream still reads it; runs that follow do not overwrite it."""
    for _ in range(5):
        x = jax.dlpack.from_dlpack(full((N,), 7.0).sync())
        y = late(0.0) + x
        del x
        for number in range(4):
            full((N,), float(number)).sync()
        assert bool((y == 7).all())
