"""A tensor is moved while it is lent, or lent anew in the rounds of a loop."""

from dagpu import Borrowed, DeviceOp, dup, zeros, zip_ops
from tests.typing.plugin.kernels import add, eat, saxpy, total, vector, yes


def moved_while_it_is_lent() -> None:
    t = vector()
    read = t.borrow()
    t.share()  # E: dagpu-conflicting-borrow
    total(read)


def passed_on_while_it_is_lent() -> None:
    t = vector()
    read = t.borrow()
    eat(t)  # E: dagpu-conflicting-borrow
    print(read.shape)


def cut_up_while_it_is_lent() -> None:
    t = vector()
    read = t.borrow()
    p = t.partition((4,))  # E: dagpu-conflicting-borrow
    saxpy(p, 1.0, read).sync()


def moved_into_a_kernel_while_it_is_lent() -> None:
    t = vector()
    part = t.slice(slice(0, 8))
    add(zeros((8,)).partition((4,)), t, part).sync()  # E: dagpu-conflicting-borrow


def moved_into_the_call_that_it_is_lent_to() -> None:
    t = vector()
    add(zeros((8,)).partition((4,)), t.borrow(), t).sync()  # E: dagpu-conflicting-borrow


def copied_to_the_host_while_it_is_lent() -> None:
    t = vector()
    op = t.borrow().to_host()
    t.to_host().sync()  # E: dagpu-conflicting-borrow
    op.sync()


def moved_while_it_is_lent_for_writing() -> None:
    t = vector()
    p = t.borrow_mut().partition((4,))
    t.share()  # E: dagpu-conflicting-borrow
    saxpy(p, 1.0, vector()).sync()


def moved_on_one_path_while_it_is_lent() -> None:
    t = vector()
    read = t.borrow()
    if yes():
        eat(t)  # E: dagpu-conflicting-borrow
    total(read)


def reshaped_while_it_is_lent() -> None:
    t = vector()
    read = t.borrow()
    op = dup(read)
    t.reshape((2, 4)).share()  # E: dagpu-conflicting-borrow
    op.sync()


def lent_in_the_round_before() -> None:
    t, x = vector(), vector().share()
    ops: list[DeviceOp[object, Borrowed]] = []
    for _ in range(2):
        op = saxpy(t.borrow_mut().partition((4,)), 1.0, x)  # E: dagpu-conflicting-borrow
        ops.append(op)
    zip_ops(*ops).sync()


def lent_in_a_comprehension() -> None:
    t, x = vector(), vector().share()
    ops = [saxpy(t.borrow_mut().partition((4,)), 1.0, x) for _ in range(2)]  # E: dagpu-conflicting-borrow
    zip_ops(*ops).sync()


def reader_of_the_round_before() -> None:
    t, x, other = vector(), vector().share(), vector()
    last = dup(other.borrow())
    for _ in range(2):
        write = saxpy(t.borrow_mut().partition((4,)), 1.0, x)  # E: dagpu-conflicting-borrow
        zip_ops(last, write).sync()
        last = dup(t.borrow())


async def moved_before_it_is_awaited() -> None:
    x = await zeros((8,))
    op = x.borrow().to_host()
    await x.to_host()  # E: dagpu-conflicting-borrow
    await op
