"""An op that allocates is recorded into a CUDA graph, and mistakes with what a graph hands out."""

# pyright: reportArgumentType=false
# What mypy refuses with a code of ours, pyright refuses as a plain wrong argument.

from dagpu import CudaGraph, DeviceOp, Tensor, current_device, dup, f32, from_host, memcpy, ones, value, zeros, zip_ops
from tests.typing.plugin.kernels import saxpy, scale, vector


def records_an_allocation() -> None:
    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(zeros((8,)))  # E: dagpu-graph-node


def records_a_copy_to_new_memory() -> None:
    t = vector()
    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(dup(t.borrow()))  # E: dagpu-graph-node


def records_an_upload() -> None:
    array = vector().to_host().sync()
    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(from_host(array))  # E: dagpu-graph-node


def records_a_download() -> None:
    t = vector()
    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(t.borrow().to_host())  # E: dagpu-graph-node


def records_a_kernel_on_a_lazy_output() -> None:
    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(scale(zeros((8,)).partition((4,)), 2.0))  # E: dagpu-graph-node


def records_a_kernel_on_a_lazy_input() -> None:
    y = vector()
    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(saxpy(y.borrow_mut().partition((4,)), 1.0, ones((8,))))  # E: dagpu-graph-node


def records_a_branch_that_allocates() -> None:
    y = vector()
    with CudaGraph.scope(current_device().stream()) as scope:
        step = scale(y.borrow_mut().partition((4,)), 2.0)
        scope.record(zip_ops(step, zeros((8,))))  # E: dagpu-graph-node


def records_what_then_allocates() -> None:
    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(value(1).then(lambda _: zeros((8,))))  # E: dagpu-graph-node


def records_an_op_from_a_variable() -> None:
    fresh = zeros((8,))
    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(fresh)  # E: dagpu-graph-node


def records_the_op_of_a_helper() -> None:
    def fresh() -> DeviceOp[Tensor[f32]]:
        return zeros((8,))

    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(fresh())  # E: dagpu-graph-node


def records_in_a_loop() -> None:
    with CudaGraph.scope(current_device().stream()) as scope:
        for _ in range(2):
            scope.record(ones((8,)))  # E: dagpu-graph-node


def updates_with_an_allocation() -> None:
    y = vector()
    graph = scale(y.borrow_mut().partition((4,)), 2.0).graph()
    graph.update(zeros((8,)))  # E: dagpu-graph-node


def updates_with_an_upload() -> None:
    array = vector().to_host().sync()
    y = vector()
    graph = scale(y.borrow_mut().partition((4,)), 2.0).graph()
    graph.update(from_host(array))  # E: dagpu-graph-node


def updates_with_a_copy() -> None:
    y, x = vector(), vector()
    graph = scale(y.borrow_mut().partition((4,)), 2.0).graph()
    graph.update(dup(x.borrow()))  # E: dagpu-graph-node


def launch_is_not_run() -> None:
    y = vector()
    graph = scale(y.borrow_mut().partition((4,)), 2.0).graph()
    graph.launch()  # E: dagpu-unused-op


def output_is_moved_and_used() -> None:
    graph = zeros((8,)).graph()
    t = graph.take_output()
    print(t.to_host().sync())
    print(t.shape)  # E: dagpu-use-after-move


def recorded_handle_is_used_again() -> None:
    p = vector().partition((4,))
    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(scale(p, 2.0))
        scope.record(scale(p, 3.0))  # E: dagpu-use-after-move


def recorded_source_is_moved() -> None:
    y, x = vector(), vector()
    with CudaGraph.scope(current_device().stream()) as scope:
        scope.record(memcpy(y.borrow_mut(), x))
    print(x.shape)  # E: dagpu-use-after-move
