"""The parts of an exchange with PyTorch and CuPy, and of a call of a foreign op, that are the libraries' and the
driver's own: what remains of a row of `benchmarks.interop` is dagpu's.

    python -m benchmarks.peers.exchange_floor      prints a table; needs a GPU, PyTorch and CuPy

A row of a graph is one launch and the wait for it: ten kernels as ten nodes, as ten child graphs, and as one; and once
more after the device has been idle for as long as a call of a pipeline takes in Python.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.interop import CALLS, SHAPE, SMALL, TEN, chain_of, times
from benchmarks.support.table import Span, Table, machine, measure, now, show
from dagpu import In, Tensor, device, f32, foreign, use_device
from dagpu.handles.device_handles import driver_of
from dagpu.interop import Lane, View, new

IDLE_US = 20.0


def times_after_idleness(name: str, call: Callable[[], object], count: int) -> dict[str, Span]:
    """Return the seconds of one call, each of `count` made when nothing has run for `IDLE_US`."""
    wall = cpu = 0.0
    for _ in range(count):
        before = now()
        while now().since(before).wall * 1e6 < IDLE_US:
            pass
        begin = now()
        call()
        spent = now().since(begin)
        wall, cpu = wall + spent.wall, cpu + spent.cpu
    return {name: Span(wall / count, cpu / count)}


def exchange_rows(torch: Any, cupy: Any) -> dict[str, Callable[[], object]]:
    """Return what an import asks of the array's library."""
    exchange: Any = driver_of(device("cuda:0")).exchange
    stream = exchange.arrival_stream()
    x, y = torch.ones(SHAPE, device="cuda"), cupy.ones(SHAPE, "f4")

    def attributes_of_torch() -> object:
        kept = x.untyped_storage()
        torch._C._cuda_getCurrentRawStream(x.get_device())  # noqa: SLF001  # as Triton's launcher asks
        return x.requires_grad, x.is_neg(), x.layout, x.dtype, x.shape, x.stride(), x.data_ptr(), kept

    def attributes_of_cupy() -> object:
        data = y.data
        index = data.device_id
        return y.dtype, y.shape, y.strides, data.ptr, cupy.cuda.get_current_stream(index).ptr

    block = exchange.wrap(x.data_ptr(), 1024, x, 1)
    gpu = exchange._gpu  # noqa: SLF001  # below the functions that are measured
    legacy = gpu.foreign_stream(1)
    with gpu.current():
        event = gpu.new_event()
    return {
        "PyTorch: __dlpack__ for a stream": lambda: x.__dlpack__(stream=stream, max_version=(1, 0)),
        "PyTorch: __dlpack__ for no stream": lambda: x.__dlpack__(stream=-1, max_version=(1, 0)),
        "PyTorch: attributes, storage, stream": attributes_of_torch,
        "CuPy: __dlpack_device__": y.__dlpack_device__,
        "CuPy: __dlpack__ for a stream": lambda: y.__dlpack__(stream=stream, max_version=(1, 0)),
        "CuPy: __dlpack__ for no stream": lambda: y.__dlpack__(stream=-1, max_version=(1, 0)),
        "CuPy: __cuda_array_interface__": lambda: y.__cuda_array_interface__,
        "CuPy: attributes, stream": attributes_of_cupy,
        "dagpu: an event behind a foreign stream, and a look at it": lambda: exchange.await_work(block, 1),
        "dagpu: an event behind a foreign stream": lambda: gpu.record(event, legacy),
    }


def run_rows() -> dict[str, Callable[[], object]]:
    """Return runs of foreign ops that do nothing: what dagpu itself takes for them."""

    def nothing(x: In[f32], by: float) -> Tensor[f32]:
        return new(x)

    op = foreign(capture="never")(nothing)

    @op.raw
    def _(lane: Lane, x: View[f32], by: float, out: View[f32]) -> None: ...

    return {f"dagpu: {n} foreign of an empty body, through streams": chain_of(op, n, None) for n in (1, TEN)}


def body_rows(torch: Any, cupy: Any) -> dict[str, Callable[[], object]]:
    """Return what a call of a body asks of PyTorch."""
    x, out, stream = torch.ones(SMALL, device="cuda"), torch.empty(SMALL, device="cuda"), torch.cuda.Stream()
    inner: Any = torch._C  # noqa: SLF001  # what PyTorch's own compiled code calls

    def by_context() -> None:
        with torch.cuda.stream(stream), torch.no_grad():
            pass

    def by_functions() -> None:
        before, records = torch.cuda.current_stream(), torch.is_grad_enabled()
        torch.cuda.set_stream(stream)
        torch.set_grad_enabled(False)
        torch.set_grad_enabled(records)
        torch.cuda.set_stream(before)

    def by_numbers() -> None:
        before, records = inner._cuda_getCurrentStream(0), torch.is_grad_enabled()  # noqa: SLF001
        inner._cuda_setStream(stream.stream_id, stream.device_index, stream.device_type)  # noqa: SLF001
        inner._set_grad_enabled(False)  # noqa: SLF001
        inner._set_grad_enabled(records)  # noqa: SLF001
        inner._cuda_setStream(*before)  # noqa: SLF001

    y, z, lane = cupy.ones(SMALL, "f4"), cupy.ones(SMALL, "f4"), cupy.cuda.Stream(non_blocking=True)
    pool, memory = cupy.get_default_memory_pool(), cupy.cuda.memory

    def by_cupy() -> None:
        with cupy.cuda.Device(0), lane, cupy.cuda.using_allocator(pool.malloc):
            pass

    def by_its_functions() -> None:
        cupy.cuda.runtime.getDevice()
        before = memory._get_thread_local_allocator()  # noqa: SLF001
        with lane:
            memory._set_thread_local_allocator(pool.malloc)  # noqa: SLF001
            memory._set_thread_local_allocator(before)  # noqa: SLF001

    return {
        "PyTorch: stream and no_grad contexts": by_context,
        "PyTorch: set_stream and set_grad_enabled": by_functions,
        "PyTorch: the same by its C functions": by_numbers,
        "PyTorch: mul(x, 1.0, out=out)": lambda: torch.mul(x, 1.0, out=out),
        "PyTorch: x * 1.0": lambda: x * 1.0,
        "PyTorch: two detach()": lambda: (x.detach(), out.detach()),
        "PyTorch: two .data": lambda: (x.data, out.data),
        "CuPy: device, stream and allocator contexts": by_cupy,
        "CuPy: stream context, the rest by its functions": by_its_functions,
        "CuPy: multiply(x, 1, out=out)": lambda: cupy.multiply(y, f32(1), out=z),
        "CuPy: two view()": lambda: (y.view(), z.view()),
    }


def graph_rows(torch: Any) -> dict[str, Callable[[], object]]:
    """Return launches of graphs of ten of PyTorch's kernels, one after the other."""
    cuda: Any = importlib.import_module("cuda.bindings.driver")
    stream, x = torch.cuda.Stream(), torch.ones(SMALL, device="cuda")
    raw = cuda.CUstream(stream.cuda_stream)

    def checked(returned: tuple[Any, ...]) -> Any:
        assert not returned[0], returned[0]
        return returned[1] if len(returned) > 1 else None

    def captured(count: int) -> Any:
        with torch.cuda.stream(stream):
            checked(cuda.cuStreamBeginCapture(raw, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
            for _ in range(count):
                torch.mul(x, 1.0, out=x)
            return checked(cuda.cuStreamEndCapture(raw))

    def of_children(count: int) -> Any:
        graph = checked(cuda.cuGraphCreate(0))
        child = captured(1)
        before: list[Any] = []
        for _ in range(count):
            before = [checked(cuda.cuGraphAddChildGraphNode(graph, before, len(before), child))]
        return graph

    torch.mul(x, 1.0, out=x)
    made = {
        "a graph of one kernel": captured(1),
        "a graph of one child": of_children(1),
        "a graph of ten kernels": captured(TEN),
        "a graph of ten children": of_children(TEN),
    }

    def launch(executable: Any) -> None:
        cuda.cuGraphLaunch(executable, raw)
        cuda.cuStreamSynchronize(raw)

    return {name: partial(launch, checked(cuda.cuGraphInstantiate(graph, 0))) for name, graph in made.items()}


def main() -> None:
    torch, cupy = importlib.import_module("torch"), importlib.import_module("cupy")
    with use_device("cuda:0"):
        rows = exchange_rows(torch, cupy) | body_rows(torch, cupy) | graph_rows(torch) | run_rows()
        for call in rows.values():
            for _ in range(50):
                call()
        measured = [partial(times, name, call, CALLS) for name, call in rows.items()]
        idle = {f"{name}, after {IDLE_US:g} us": call for name, call in rows.items() if name.startswith("a graph")}
        measured += [partial(times_after_idleness, name, call, CALLS) for name, call in idle.items()]
        samples = measure(measured, 7)
    table = Table("What is the libraries' and the driver's own", "us")
    for name, spans in samples.items():
        table.add(name, spans, 1e6)
    print(show([table], machine(("numpy", "torch", "cupy-cuda13x", "cuda-bindings"))))


if __name__ == "__main__":
    main()
