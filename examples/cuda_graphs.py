"""CUDA graphs, three ways: capture an op, record into a scope, and a module that owns
its graph.

A graph is made once and launched any number of times, for less than half the cost of
launching its kernels one by one. Its kernels keep the addresses that they were captured
with: to give a graph another input, copy it into the tensor that it reads. `@pipeline`
(see examples/decode) does all of this automatically; this example does it explicitly.
On the host, everything is the same, except that the kernels are launched one by one.
"""

from typing import Any, final

import numpy as np
import trio
from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    CaptureError,
    CudaGraph,
    DeviceOp,
    In,
    Module,
    Out,
    SharedTensor,
    Tensor,
    TensorRef,
    Tile,
    current_device,
    f32,
    from_host,
    kernel,
    memcpy,
    zeros,
)

WIDTH, ROWS = 256, 32

RMS_NORM_CU = """
__global__ void rms_norm(
    Tile<float, 1> y, View<const float, 1> x, View<const float, 1> gain
) {
    float squares = 0.0f;
    for (int i = 0; i < x.extent(0); ++i) squares += x[i] * x[i];
    const float scale = rsqrtf(squares / x.extent(0) + 1e-5f);
    for (auto i : y) y[i] = x[i] * gain[i] * scale;
}
"""

MATVEC_CU = """
__global__ void matvec(
    Tile<float, 1> y, View<const float, 1> x, View<const float, 2> w
) {
    for (auto i : y) {
        float sum = 0.0f;
        for (int k = 0; k < x.extent(0); ++k) sum += w(i, k) * x[k];
        y[i] = sum;
    }
}
"""


@kernel(cuda=RMS_NORM_CU, block=256)
def rms_norm(y: Out[f32], x: In[f32], gain: In[f32]) -> None:
    """y = x * gain / rms(x), all (n,)."""


@rms_norm.host
def _(y: Tile[f32], x: NDArray[f32], gain: NDArray[f32]) -> None:
    y[:] = (x * gain / np.sqrt(np.mean(x * x) + 1e-5))[y.at]


@kernel(cuda=MATVEC_CU, block=ROWS)
def matvec(y: Out[f32], x: In[f32], w: In[f32]) -> None:
    """y (m,) = w x, for x (n,) and w (m, n)."""


@matvec.host
def _(y: Tile[f32], x: NDArray[f32], w: NDArray[f32]) -> None:
    y[:] = w[y.at[0]] @ x


@final
class Weights:
    """The weights of one layer, (WIDTH,) and (WIDTH, WIDTH), on the device, and the
    layer in NumPy as a reference."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._gain = random.normal(1, 0.1, WIDTH).astype(np.float32)
        self._matrix = (random.normal(0, 1, (WIDTH, WIDTH)) / WIDTH**0.5).astype(
            np.float32
        )
        self.gain = from_host(self._gain).sync().share()
        self.matrix = from_host(self._matrix).sync().share()

    def expected(self, x: NDArray[f32]) -> NDArray[np.float64]:
        wide = x.astype(np.float64)
        return np.asarray(
            self._matrix @ (wide * self._gain / np.sqrt(np.mean(wide * wide) + 1e-5))
        )


def forward(weights: Weights, x: TensorRef[f32]) -> DeviceOp[Tensor[f32], Borrowed]:
    """Return one layer as an op, which allocates its own tensors."""
    norm = rms_norm.new((WIDTH,), (WIDTH,))(x, weights.gain)
    return matvec.new((WIDTH,), (ROWS,))(norm, weights.matrix)


def inputs(count: int) -> list[NDArray[f32]]:
    random = np.random.default_rng(5)
    return [random.normal(size=WIDTH).astype(np.float32) for _ in range(count)]


# ---- capturing an op --------------------------------------------------------


def capture() -> None:
    """Capture an op:

    `op.graph()` runs it once and keeps its plan as a graph, with the memory of all its
    tensors.
    """
    weights, x = Weights(1), zeros((WIDTH,)).sync()
    graph = forward(weights, x.borrow()).graph()
    # the output of the first run; every launch overwrites it
    output = graph.take_output()
    for given in inputs(4):
        fresh = from_host(given).sync()
        # on the graph's stream: before the next launch
        graph.update(memcpy(x.borrow_mut(), fresh.borrow()))
        graph.launch().sync()
        found = output.borrow().to_host().sync()
        np.testing.assert_allclose(found, weights.expected(given), rtol=1e-4, atol=1e-5)
    print(
        "capture: 4 launches of one graph, the last one's output begins "
        f"{found[:3].round(3)}"
    )


# ---- recording into a scope -------------------------------------------------


def record() -> None:
    """In a scope, each op is recorded and ends its borrows at once, so the next op may
    read its outputs.

    All memory exists before the scope begins, so an op that allocates is refused: by a
    type checker, and at run time.
    """
    weights = Weights(2)
    x, norm, y = (zeros((WIDTH,)).sync() for _ in range(3))
    allocating: Any = zeros((WIDTH,))  # Any hides the mistake from the type checker
    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(
            rms_norm(norm.borrow_mut().partition((WIDTH,)), x.borrow(), weights.gain)
        )
        scope.record(
            matvec(y.borrow_mut().partition((ROWS,)), norm.borrow(), weights.matrix)
        )
        try:
            scope.record(allocating)
        except CaptureError as error:
            print(f"record: {error}")
        else:
            raise AssertionError("an op that allocates was recorded")
    graph = scope.graph
    for given in inputs(3):
        graph.update(memcpy(x.borrow_mut(), from_host(given).sync()))
        graph.launch().sync()
        found = y.borrow().to_host().sync()
        np.testing.assert_allclose(found, weights.expected(given), rtol=1e-4, atol=1e-5)
    print(
        "record:  3 launches of one graph, the last one's output begins "
        f"{found[:3].round(3)}"
    )


# ---- a module ---------------------------------------------------------------


@final
class Layer(Module[SharedTensor[f32], NDArray[f32]]):
    """A model that owns its graph.

    The constructor captures the graph, and each `forward` launches it.
    """

    def __init__(self, weights: Weights) -> None:
        self._input = zeros((WIDTH,)).sync()
        self._graph = forward(weights, self._input.borrow()).graph()
        self._output = self._graph.take_output()

    def forward(self, given: SharedTensor[f32], /) -> DeviceOp[NDArray[f32], Borrowed]:
        """Copy the input, launch the graph, and copy the output to the host: one run,
        without a wait in between."""
        copied = memcpy(self._input.borrow_mut(), given)
        launched = copied.then(lambda _: self._graph.launch())
        return launched.then(lambda _: self._output.borrow().to_host())


async def run_module(
    layer: Module[SharedTensor[f32], NDArray[f32]], weights: Weights
) -> None:
    """Await a launch.

    `launch()` returns an op like any other: it composes, and other tasks run while it
    is awaited.
    """
    for given in inputs(3):
        found = await layer.forward((await from_host(given)).share())
        np.testing.assert_allclose(found, weights.expected(given), rtol=1e-4, atol=1e-5)
    print(
        "module:  3 launches of one graph, the last one's output begins "
        f"{found[:3].round(3)}"
    )


def main() -> None:
    capture()
    record()
    weights = Weights(3)
    trio.run(run_module, Layer(weights), weights)


if __name__ == "__main__":
    main()
