"""A tensor borrowed for writing is used after a kernel took it as an input, or is lent to two ops at once."""

from dagpu import Borrowed, DeviceOp, TensorMut, TensorRef, dup, empty, f32, fill, value, zip_ops
from tests.typing.plugin.kernels import add, eat, saxpy, scale, total, vector, yes


def used_after_a_kernel_took_it() -> None:
    w, x = vector(), vector()
    lent = w.borrow_mut()
    read = add(empty((8,)).partition((4,)), lent, x.borrow())
    scale(lent.partition((4,)), 2.0).sync()  # E: dagpu-use-after-move
    read.sync()


def passed_twice_to_one_call() -> None:
    w = vector()
    lent = w.borrow_mut()
    add(empty((8,)).partition((4,)), lent, lent).sync()  # E: dagpu-use-after-move


def passed_to_two_calls() -> None:
    w, x = vector(), vector().share()
    lent = w.borrow_mut()
    zip_ops(
        add(empty((8,)).partition((4,)), lent, x),
        add(empty((8,)).partition((4,)), lent, x),  # E: dagpu-use-after-move
    ).sync()


def taken_in_each_round() -> None:
    w, x = vector(), vector().share()
    lent = w.borrow_mut()
    for _ in range(2):
        add(empty((8,)).partition((4,)), lent, x).sync()  # E: dagpu-use-after-move


def taken_on_one_path() -> None:
    w, x = vector(), vector().share()
    lent = w.borrow_mut()
    if yes():
        add(empty((8,)).partition((4,)), lent, x).sync()
    scale(lent.partition((4,)), 2.0).sync()  # E: dagpu-use-after-move


def used_after_it_was_copied() -> None:
    w = vector()
    lent = w.borrow_mut()
    dup(lent).sync()
    fill(lent, 1).sync()  # E: dagpu-use-after-move


def used_after_it_was_read_to_the_host() -> None:
    w = vector()
    lent = w.borrow_mut()
    print(lent.to_host().sync())
    print(lent.shape)  # E: dagpu-use-after-move


def used_after_it_was_reshaped() -> None:
    w = vector()
    lent = w.borrow_mut()
    flat = lent.reshape((2, 4))
    print(flat.shape)
    lent.partition((4,))  # E: dagpu-use-after-move


def lent_for_reading_beside_it() -> None:
    w = vector()
    add(empty((8,)).partition((4,)), w.borrow_mut(), w.borrow()).sync()  # E: dagpu-conflicting-borrow


def lent_for_writing_twice_in_one_call() -> None:
    w = vector()
    add(empty((8,)).partition((4,)), w.borrow_mut(), w.borrow_mut()).sync()  # E: dagpu-conflicting-borrow


def read_and_written_by_two_loans() -> None:
    w, x = vector(), vector()
    g = add(empty((8,)).partition((4,)), w.borrow(), x.borrow()).first().unpartition()
    saxpy(w.borrow_mut().partition((4,)), -0.1, g).sync()  # E: dagpu-conflicting-borrow


def written_by_one_call_and_read_by_the_next() -> None:
    w, x = vector(), vector()
    saxpy(w.borrow_mut().partition((4,)), 1.0, w.borrow_mut()).sync()  # E: dagpu-conflicting-borrow
    eat(x)


def lent_anew_while_the_op_has_it() -> None:
    w, x = vector(), vector()
    read = add(empty((8,)).partition((4,)), w.borrow_mut(), x.borrow())
    write = scale(w.borrow_mut().partition((4,)), 2.0)  # E: dagpu-conflicting-borrow
    zip_ops(read, write).sync()


def lent_anew_while_a_part_of_the_op_has_it() -> None:
    w, x = vector(), vector()
    _, lent, _ = add(empty((8,)).partition((4,)), w.borrow_mut(), x.borrow()).unzip()
    read = w.borrow().to_host()  # E: dagpu-conflicting-borrow
    zip_ops(lent, read).sync()


def lent_anew_while_the_result_has_it() -> None:  # R: runs
    w, x = vector(), vector()
    _, lent, _ = add(empty((8,)).partition((4,)), w.borrow_mut(), x.borrow()).sync()
    print(total(w.borrow()))  # E: dagpu-conflicting-borrow
    scale(lent.partition((4,)), 2.0).sync()


def moved_while_the_result_has_it() -> None:
    w, x = vector(), vector()
    _, lent, _ = add(empty((8,)).partition((4,)), w.borrow_mut(), x.borrow()).sync()
    eat(w)  # E: dagpu-conflicting-borrow
    scale(lent.partition((4,)), 2.0).sync()


def lazily_beside_another_loan() -> None:
    w, x = vector(), vector()
    lazy = value(w.borrow_mut())
    read = w.borrow().to_host()  # E: dagpu-conflicting-borrow
    zip_ops(add(empty((8,)).partition((4,)), lazy, x.borrow()), read).sync()


def run_twice() -> None:
    w, x = vector(), vector().share()
    op = add(empty((8,)).partition((4,)), w.borrow_mut(), x)
    op.sync()
    op.sync()  # E: dagpu-use-after-move


def escapes_in_the_result() -> None:
    def step() -> TensorMut[f32]:
        w, x = vector(), vector()
        _, lent, _ = add(empty((8,)).partition((4,)), w.borrow_mut(), x.borrow()).sync()
        return lent  # E: dagpu-borrow-escape

    scale(step().partition((4,)), 2.0).sync()


def handed_to_a_function_beside_another_loan() -> None:
    def step(w: TensorMut[f32], x: TensorRef[f32]) -> DeviceOp[object, Borrowed]:
        return add(empty((8,)).partition((4,)), w, x)

    w = vector()
    step(w.borrow_mut(), w.borrow()).sync()  # E: dagpu-conflicting-borrow
