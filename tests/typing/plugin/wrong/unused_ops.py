"""An op is built and dropped: nothing runs, and nothing fails."""

# What a statement drops is what is tested.
# pyright: reportUnusedExpression=false

from collections.abc import Callable

import trio

from dagpu import (
    Borrowed,
    DeviceOp,
    Flow,
    Tensor,
    TensorRef,
    convert,
    dup,
    every,
    f32,
    f64,
    fill,
    flow,
    from_host,
    memcpy,
    merge,
    observe,
    ones,
    source,
    spawn,
    value,
    zeros,
    zip_flows,
    zip_ops,
)
from tests.typing.plugin.kernels import add, gemm, matrix, no, saxpy, scale, vector, yes


def kernel_call() -> None:
    saxpy(vector().partition((4,)), 1.0, vector())  # E: dagpu-unused-op


def kernel_call_on_a_loan() -> None:
    y, x = vector(), vector()
    saxpy(y.borrow_mut().partition((4,)), 1.0, x.borrow())  # E: dagpu-unused-op
    print(y.to_host().sync())


def lazy_kernel_call() -> None:
    scale(ones((8,)).partition((4,)), 2.0)  # E: dagpu-unused-op


def second_of_two_kernel_calls() -> None:
    y = vector()
    scale(y.borrow_mut().partition((4,)), 2.0).sync()
    scale(y.borrow_mut().partition((4,)), 3.0)  # E: dagpu-unused-op


def allocation() -> None:
    zeros((8,))  # E: dagpu-unused-op


def copy_of_a_tensor() -> None:
    dup(vector())  # E: dagpu-unused-op


def copy_of_a_borrow() -> None:
    t = vector()
    dup(t.borrow())  # E: dagpu-unused-op


def copy_into_a_tensor() -> None:
    target, source = vector(), vector()
    memcpy(target.borrow_mut(), source.borrow())  # E: dagpu-unused-op


def conversion() -> None:
    convert(vector(), f64)  # E: dagpu-unused-op


def filling() -> None:
    fill(vector(), 1.0)  # E: dagpu-unused-op


def upload() -> None:
    array = vector().to_host().sync()
    from_host(array)  # E: dagpu-unused-op


def download() -> None:
    vector().to_host()  # E: dagpu-unused-op


def download_of_a_borrow() -> None:
    t = vector()
    t.borrow().to_host()  # E: dagpu-unused-op


def download_of_a_shared_tensor() -> None:
    vector().share().to_host()  # E: dagpu-unused-op


def value_of_a_number() -> None:
    value(1)  # E: dagpu-unused-op


def side_effect_in_map() -> None:
    value(1).map(print)  # E: dagpu-unused-op


def side_effect_in_inspect() -> None:
    zeros((8,)).inspect(lambda t: print(t.shape))  # E: dagpu-unused-op


def side_effect_in_host_map() -> None:
    value(1).host_map(print)  # E: dagpu-unused-op


def composition() -> None:
    zeros((8,)).then(lambda t: scale(t.partition((4,)), 2.0))  # E: dagpu-unused-op


def side_by_side() -> None:
    zip_ops(zeros((8,)), ones((8,)))  # E: dagpu-unused-op


def placement() -> None:
    zeros((8,)).on("host:0")  # E: dagpu-unused-op


def sharing() -> None:
    op = zeros((8,))
    op.shared()  # E: dagpu-unused-op
    op.sync()


def first_of_a_kernel_call() -> None:
    saxpy(vector().partition((4,)), 1.0, vector()).first()  # E: dagpu-unused-op


def output_of_a_kernel_call() -> None:
    saxpy(vector().partition((4,)), 1.0, vector()).first().unpartition()  # E: dagpu-unused-op


def in_a_branch() -> None:
    if yes():
        zeros((8,))  # E: dagpu-unused-op
    else:
        zeros((8,)).sync()


def in_a_loop() -> None:
    y, x = vector(), vector()
    for _ in range(2):
        saxpy(y.borrow_mut().partition((4,)), 1.0, x.borrow())  # E: dagpu-unused-op


def in_a_try_block() -> None:
    try:
        zeros((8,))  # E: dagpu-unused-op
    finally:
        print("done")


def in_a_handler() -> None:
    try:
        raise RuntimeError("for a test")
    except RuntimeError:
        fill(vector(), 0.0)  # E: dagpu-unused-op


def in_a_with_block() -> None:
    with memoryview(b""):
        zeros((8,))  # E: dagpu-unused-op


def in_a_match_arm() -> None:
    match yes():
        case True:
            zeros((8,))  # E: dagpu-unused-op
        case False:
            print("no")


def in_an_else_of_a_loop() -> None:
    for _ in range(2):
        if no():
            break
    else:
        ones((8,))  # E: dagpu-unused-op


def by_a_conditional_expression() -> None:
    zeros((8,)) if no() else ones((8,))  # E: dagpu-unused-op


def by_a_helper() -> None:
    def doubled(t: Tensor[f32]) -> DeviceOp[Tensor[f32]]:
        return scale(t.partition((4,)), 2.0).first().unpartition()

    doubled(vector())  # E: dagpu-unused-op


def by_a_helper_that_borrows() -> None:
    def download(t: TensorRef[f32]) -> DeviceOp[object, Borrowed]:
        return t.to_host()

    t = vector()
    download(t.borrow())  # E: dagpu-unused-op


def by_a_callback() -> None:
    def call(make: Callable[[], DeviceOp[Tensor[f32]]]) -> None:
        make()  # E: dagpu-unused-op

    call(lambda: zeros((8,)))


def inside_a_closure() -> None:
    def use(t: Tensor[f32]) -> DeviceOp[Tensor[f32]]:
        zeros((8,))  # E: dagpu-unused-op
        return dup(t)

    zeros((8,)).then(use).sync()


def in_a_constructor() -> None:
    class Model:
        def __init__(self) -> None:
            zeros((8,))  # E: dagpu-unused-op

    Model()


def by_a_method() -> None:
    class Model:
        def __init__(self) -> None:
            self.weights = vector()

        def forward(self) -> DeviceOp[object, Borrowed]:
            return add(zeros((8,)).partition((4,)), self.weights.borrow(), ones((8,)))

    Model().forward()  # E: dagpu-unused-op


def two_in_one_function() -> None:
    c, a = matrix(), matrix()
    gemm(c.borrow_mut().partition((2, 2)), a.borrow(), matrix())  # E: dagpu-unused-op
    c.to_host()  # E: dagpu-unused-op


async def not_awaited() -> None:
    zeros((8,))  # E: dagpu-unused-op
    await trio.lowlevel.checkpoint()


async def kernel_call_not_awaited() -> None:
    y = await zeros((8,))
    scale(y.borrow_mut().partition((4,)), 2.0)  # E: dagpu-unused-op
    await y.to_host()


async def not_awaited_in_a_nursery() -> None:
    async with trio.open_nursery() as nursery:
        spawn(nursery, zeros((8,)))
        zeros((8,))  # E: dagpu-unused-op


async def awaited_too_early() -> None:
    t = await zeros((8,))
    (await dup(t)).to_host()  # E: dagpu-unused-op


def observed() -> None:
    observe(source(1))  # E: dagpu-unused-op


def flows_made() -> None:
    flow([1])  # E: dagpu-unused-op
    every(1.0)  # E: dagpu-unused-op
    merge(flow([1]), flow([2]))  # E: dagpu-unused-op
    zip_flows(flow([1]), flow(["a"]))  # E: dagpu-unused-op


def host_operators() -> None:
    numbers = flow([1, 2])
    numbers.map(str)  # E: dagpu-unused-op
    numbers.where(bool)  # E: dagpu-unused-op
    numbers.take(1)  # E: dagpu-unused-op
    numbers.window(2)  # E: dagpu-unused-op


def running_operators() -> None:
    numbers = flow([1, 2])
    numbers.run(value)  # E: dagpu-unused-op
    numbers.fold(value(0), lambda s, n: value((s + n, s)))  # E: dagpu-unused-op


def timed_operators() -> None:
    numbers = flow([1, 2])
    numbers.latest()  # E: dagpu-unused-op
    numbers.at_most(30)  # E: dagpu-unused-op
    numbers.batched(2)  # E: dagpu-unused-op
    numbers.switch(lambda n: flow(range(n)))  # E: dagpu-unused-op


def flow_alone() -> None:
    numbers = flow([1])
    numbers  # E: dagpu-unused-op


def flows_in_displays(late: bool = True) -> None:
    numbers = flow([1])
    [numbers.take(n) for n in (1, 2)]  # E: dagpu-unused-op
    numbers.latest() if late else numbers.take(1)  # E: dagpu-unused-op


def flow_of_a_function_of_ones_own() -> None:
    def evens() -> Flow[int]:
        return flow([1, 2]).where(lambda n: n % 2 == 0)

    evens()  # E: dagpu-unused-op


def in_a_dictionary() -> None:
    ops = {"a": zeros((8,))}  # E: dagpu-unused-op  # noqa: F841


def in_a_conditional_expression(late: bool = True) -> None:
    op = zeros((8,)) if late else ones((8,))  # E: dagpu-unused-op  # noqa: F841


def by_a_walrus() -> None:
    (op := zeros((8,)))  # E: dagpu-unused-op  # noqa: F841, PLW0131


def by_operators() -> None:
    s, t = vector().share(), vector()
    s + 1  # E: dagpu-unused-op
    -s  # E: dagpu-unused-op
    s * s < 2  # E: dagpu-unused-op  # noqa: B015
    2 / t  # E: dagpu-unused-op


def by_an_operator_of_ops() -> None:
    x = ones((8,))
    (x - 1) @ ones((8,))  # E: dagpu-unused-op
