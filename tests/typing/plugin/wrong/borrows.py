"""A tensor is lent for writing while somebody else has it, or moved while it is lent.

A run finds what conflicts within one op, and a borrow that is used after its tensor has moved. Where the loans go into
runs of their own, one after the other, nothing fails (`# R: runs`): that is what the rule is stricter about.
"""

from dagpu import Borrowed, DeviceOp, Partition, TensorMut, TensorRef, dup, f32, memcpy, value, zeros, zip_ops
from tests.typing.plugin.kernels import add, gemm, matrix, saxpy, split, total, vector, yes


def output_and_input_of_one_call() -> None:
    x = vector()
    saxpy(x.borrow_mut().partition((4,)), 1.0, x.borrow()).sync()  # E: dagpu-conflicting-borrow


def output_and_view_of_one_call() -> None:
    x = vector()
    saxpy(x.borrow_mut().partition((4,)), 1.0, x.view((8,))).sync()  # E: dagpu-conflicting-borrow


def output_and_slice_of_one_call() -> None:
    x = vector()
    saxpy(x.borrow_mut().partition((4,)), 1.0, x.slice(slice(0, 8))).sync()  # E: dagpu-conflicting-borrow


def both_outputs_of_one_call() -> None:
    x = vector()
    halves = split(
        x.borrow_mut().partition((4,)),
        x.borrow_mut().partition((4,)),  # E: dagpu-conflicting-borrow
        vector(),
    )
    halves.sync()


def both_sides_of_a_copy() -> None:
    t = vector()
    memcpy(t.borrow_mut(), t.borrow()).sync()  # E: dagpu-conflicting-borrow


def two_branches_of_one_run() -> None:
    x, y = vector(), vector()
    zip_ops(
        saxpy(x.borrow_mut().partition((4,)), 1.0, y.borrow()),
        x.borrow().to_host(),  # E: dagpu-conflicting-borrow
    ).sync()


def reader_first() -> None:
    x, y = vector(), vector()
    zip_ops(
        dup(x.borrow()),
        saxpy(x.borrow_mut().partition((4,)), 1.0, y.borrow()),  # E: dagpu-conflicting-borrow
    ).sync()


def two_writers_in_one_run() -> None:
    x, y = vector(), vector().share()
    zip_ops(
        saxpy(x.borrow_mut().partition((4,)), 1.0, y),
        saxpy(x.borrow_mut().partition((4,)), 1.0, y),  # E: dagpu-conflicting-borrow
    ).sync()


def ops_in_variables() -> None:
    x, y = vector(), vector()
    write = saxpy(x.borrow_mut().partition((4,)), 1.0, y.borrow())
    read = x.borrow().to_host()  # E: dagpu-conflicting-borrow
    zip_ops(write, read).sync()


def reader_in_a_variable() -> None:
    x, y = vector(), vector()
    read = x.borrow()
    write = saxpy(x.borrow_mut().partition((4,)), 1.0, y.borrow())  # E: dagpu-conflicting-borrow
    zip_ops(read.to_host(), write).sync()


def input_in_a_variable() -> None:
    x = vector()
    read = x.borrow()
    saxpy(x.borrow_mut().partition((4,)), 1.0, read).sync()  # E: dagpu-conflicting-borrow


def two_loans_for_writing() -> None:
    x = vector()
    first = x.borrow_mut()
    second = x.borrow_mut()  # E: dagpu-conflicting-borrow
    split(first.partition((4,)), second.partition((4,)), vector()).sync()


def partition_in_a_variable() -> None:
    x = vector()
    p = x.borrow_mut().partition((4,))
    read = x.borrow()  # E: dagpu-conflicting-borrow
    saxpy(p, 1.0, read).sync()


def put_together_again() -> None:
    x = vector()
    p = x.borrow_mut().partition((4,))
    lent = p.unpartition()
    read = x.borrow()  # E: dagpu-conflicting-borrow
    memcpy(lent, read).sync()


def view_of_a_slice() -> None:
    x = vector()
    part = x.slice(slice(0, 8)).reshape((8,)).slice(slice(0, 8))
    saxpy(x.borrow_mut().partition((4,)), 1.0, part).sync()  # E: dagpu-conflicting-borrow


def borrow_in_a_tuple() -> None:
    x = vector()
    pair = (x.borrow(), 1.0)
    saxpy(x.borrow_mut().partition((4,)), pair[1], pair[0]).sync()  # E: dagpu-conflicting-borrow


def borrow_in_a_list() -> None:
    x = vector()
    inputs = [x.borrow()]
    saxpy(x.borrow_mut().partition((4,)), 1.0, inputs[0]).sync()  # E: dagpu-conflicting-borrow


def borrow_in_a_dictionary() -> None:
    x = vector()
    inputs = {"x": x.borrow()}
    saxpy(x.borrow_mut().partition((4,)), 1.0, inputs["x"]).sync()  # E: dagpu-conflicting-borrow


def borrow_in_an_op() -> None:
    x = vector()
    lazy = value(x.borrow())
    saxpy(x.borrow_mut().partition((4,)), 1.0, lazy).sync()  # E: dagpu-conflicting-borrow


def borrow_under_another_name() -> None:
    x = vector()
    read = x.borrow()
    same = read
    saxpy(x.borrow_mut().partition((4,)), 1.0, same).sync()  # E: dagpu-conflicting-borrow


def borrow_of_one_of_two() -> None:
    x, y = vector(), vector()
    read = x.borrow() if yes() else y.borrow()
    saxpy(x.borrow_mut().partition((4,)), 1.0, read).sync()  # E: dagpu-conflicting-borrow


def borrow_on_one_path() -> None:
    x, y = vector(), vector()
    read = y.borrow()
    if yes():
        read = x.borrow()
    saxpy(x.borrow_mut().partition((4,)), 1.0, read).sync()  # E: dagpu-conflicting-borrow


def borrow_of_an_attribute() -> None:
    class Model:
        def __init__(self) -> None:
            self.weights = vector()

        def step(self) -> None:
            read = self.weights.borrow()
            saxpy(self.weights.borrow_mut().partition((4,)), 1.0, read).sync()  # E: dagpu-conflicting-borrow

    Model().step()


def borrow_of_an_attribute_in_one_call() -> None:
    class Model:
        def __init__(self) -> None:
            self.weights = vector()

    model = Model()
    saxpy(
        model.weights.borrow_mut().partition((4,)),
        1.0,
        model.weights.borrow(),  # E: dagpu-conflicting-borrow
    ).sync()


def borrow_of_a_parameter() -> None:
    def step(weights: DeviceOp[TensorRef[f32], Borrowed], p: Partition[TensorMut[f32]]) -> None:
        saxpy(p, 1.0, weights).sync()

    x = vector()
    step(value(x.borrow()), x.borrow_mut().partition((4,)))  # E: dagpu-conflicting-borrow


def handed_to_a_function() -> None:
    def step(p: Partition[TensorMut[f32]], x: TensorRef[f32]) -> None:
        saxpy(p, 1.0, x).sync()

    t = vector()
    step(t.borrow_mut().partition((4,)), t.borrow())  # E: dagpu-conflicting-borrow


def comes_back_from_a_function() -> None:
    def front(x: TensorRef[f32]) -> TensorRef[f32]:
        return x.slice(slice(0, 8))

    t = vector()
    part = front(t.borrow())
    saxpy(t.borrow_mut().partition((4,)), 1.0, part).sync()  # E: dagpu-conflicting-borrow


def op_comes_back_from_a_function() -> None:
    def reading(x: TensorRef[f32]) -> DeviceOp[object, Borrowed]:
        return x.to_host()

    t = vector()
    read = reading(t.borrow())
    write = saxpy(t.borrow_mut().partition((4,)), 1.0, vector())  # E: dagpu-conflicting-borrow
    zip_ops(read, write).sync()


def op_that_was_composed() -> None:
    t = vector()
    read = t.borrow().to_host().map(lambda array: array.sum())
    write = saxpy(t.borrow_mut().partition((4,)), 1.0, vector())  # E: dagpu-conflicting-borrow
    zip_ops(read, write).sync()


def op_that_was_placed() -> None:
    t = vector()
    read = dup(t.borrow()).on("host:0")
    write = saxpy(t.borrow_mut().partition((4,)), 1.0, vector())  # E: dagpu-conflicting-borrow
    zip_ops(read, write).sync()


def op_that_was_unzipped() -> None:
    t = vector()
    out, _, _ = saxpy(t.borrow_mut().partition((4,)), 1.0, vector()).unzip()
    read = t.borrow().to_host()  # E: dagpu-conflicting-borrow
    zip_ops(out, read).sync()


def matrices_of_one_call() -> None:
    a = matrix()
    gemm(a.borrow_mut().partition((2, 2)), a.borrow(), matrix()).sync()  # E: dagpu-conflicting-borrow


def inside_then() -> None:
    t = vector()
    zeros((8,)).then(
        lambda x: add(t.borrow_mut().partition((4,)), x, t.borrow())  # E: dagpu-conflicting-borrow
    ).sync()


def captured_by_then() -> None:
    t = vector()
    read = t.borrow()
    op = value(1).then(lambda _: dup(read))
    write = saxpy(t.borrow_mut().partition((4,)), 1.0, vector())  # E: dagpu-conflicting-borrow
    zip_ops(op, write).sync()


def written_in_the_middle_of_reading() -> None:  # R: runs
    t = vector()
    read = t.borrow()
    total(read)
    saxpy(t.borrow_mut().partition((4,)), 1.0, vector()).sync()  # E: dagpu-conflicting-borrow
    total(read)


def read_in_the_middle_of_writing() -> None:  # R: runs
    t = vector()
    p = t.borrow_mut().partition((4,))
    total(t.borrow())  # E: dagpu-conflicting-borrow
    saxpy(p, 1.0, vector()).sync()


def writers_that_take_turns() -> None:  # R: runs
    t, x = vector(), vector().share()
    first = saxpy(t.borrow_mut().partition((4,)), 1.0, x)
    second = saxpy(t.borrow_mut().partition((4,)), 1.0, x)  # E: dagpu-conflicting-borrow
    first.sync()
    second.sync()


def writer_is_built_before_the_reader_is_done() -> None:  # R: runs
    t = vector()
    read = t.borrow().to_host()
    write = saxpy(t.borrow_mut().partition((4,)), 1.0, vector())  # E: dagpu-conflicting-borrow
    read.sync()
    write.sync()


async def awaited_together() -> None:
    x, y = await zeros((8,)), await zeros((8,))
    write = saxpy(x.borrow_mut().partition((4,)), 1.0, y.borrow())
    await zip_ops(write, x.borrow().to_host())  # E: dagpu-conflicting-borrow
