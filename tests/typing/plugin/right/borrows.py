"""Loans that have ended: at their last use, not at the end of the block. And loans of different tensors."""

from dagpu import dup, memcpy, value, zeros, zip_ops
from tests.typing.plugin.kernels import add, eat, gemm, matrix, no, saxpy, scale, split, total, vector, yes


def many_readers() -> None:
    t = vector()
    a, b, c = t.borrow(), t.borrow(), t.view((2, 4))
    print(total(a), total(b), total(c), total(a))


def both_inputs_of_one_call() -> None:
    x = vector()
    add(zeros((8,)).partition((4,)), x.borrow(), x.borrow()).sync()
    a = matrix()
    gemm(zeros((4, 4)).partition((2, 2)), a.borrow(), a.slice(slice(0, 4))).sync()


def reader_twice_in_one_call() -> None:
    x = vector()
    read = x.borrow()
    add(zeros((8,)).partition((4,)), read, read).sync()


def writer_after_the_last_read() -> None:
    y, x = vector(), vector()
    read = y.borrow()
    total(read)
    saxpy(y.borrow_mut().partition((4,)), 1.0, x).sync()


def reader_after_the_last_write() -> None:
    y = vector()
    p = y.borrow_mut().partition((4,))
    scale(p, 2.0).sync()
    total(y.borrow())


def writer_after_writer() -> None:
    y = vector()
    scale(y.borrow_mut().partition((4,)), 2.0).sync()
    scale(y.borrow_mut().partition((4,)), 3.0).sync()


def two_writers_of_two_tensors() -> None:
    low, high, x = vector(), vector(), vector()
    split(low.borrow_mut().partition((4,)), high.borrow_mut().partition((4,)), x.borrow()).sync()


def moved_after_the_last_read() -> None:
    t = vector()
    read = t.borrow()
    total(read)
    eat(t)


def moved_after_the_op_has_run() -> None:
    t = vector()
    op = t.borrow().to_host()
    print(op.sync())
    eat(t)


def moved_after_the_loan_was_renamed() -> None:
    t, other = vector(), vector()
    read = t.borrow()
    print(read.shape)
    read = other.borrow()
    eat(t)
    total(read)


def moved_after_the_loan_was_deleted() -> None:
    t = vector()
    read = t.borrow()
    del read
    eat(t)


def metadata_while_it_is_lent() -> None:
    t = vector()
    p = t.borrow_mut().partition((4,))
    print(t.shape, t.dtype, t.nbytes, p.grid)
    scale(p, 2.0).sync()


def results_of_a_borrow_are_free() -> None:
    t = vector()
    array = t.borrow().to_host().sync()
    shape = t.borrow().shape
    eat(t)
    print(array, shape)


def copies_are_free() -> None:
    t = vector()
    copy = dup(t.borrow()).sync()
    eat(t)
    eat(copy)


def inputs_come_back_and_are_dropped() -> None:
    y, x = vector(), vector()
    p, _, read = saxpy(y.partition((4,)), 1.0, x.borrow()).sync()
    print(read.shape)
    eat(x)
    eat(p.unpartition())


def outputs_come_back_and_are_dropped() -> None:
    y, x = vector(), vector().share()
    p, _, _ = saxpy(y.borrow_mut().partition((4,)), 1.0, x).sync()
    print(p.unpartition().shape)
    eat(y)


def outputs_come_back_and_go_on() -> None:
    y, x = vector(), vector().share()
    p = y.borrow_mut().partition((4,))
    for _ in range(3):
        p, _, _ = saxpy(p, 1.0, x).sync()
    eat(y)


def lent_again_in_each_round() -> None:
    y, x = vector(), vector()
    for _ in range(3):
        write = saxpy(y.borrow_mut().partition((4,)), 1.0, x.borrow())
        write.sync()
        print(y.borrow().to_host().sync())


def lent_to_one_or_the_other() -> None:
    y, x = vector(), vector()
    if yes():
        scale(y.borrow_mut().partition((4,)), 2.0).sync()
    else:
        total(y.borrow())
    p = (y if yes() else x).borrow_mut().partition((4,))
    scale(p, 2.0).sync()


def lent_on_one_path_and_returned() -> None:
    y = vector()
    read = y.borrow()
    if no():
        total(read)
        return
    scale(y.borrow_mut().partition((4,)), 2.0).sync()


def reader_is_made_anew() -> None:
    y = vector()
    read = y.borrow()
    print(total(read))
    scale(y.borrow_mut().partition((4,)), 2.0).sync()
    read = y.borrow()
    print(total(read))


def tensor_is_made_anew_while_it_was_lent() -> None:
    t = vector()
    read = t.borrow()
    print(read.shape)
    t = vector()
    eat(t)


def many_readers_in_one_run() -> None:
    x = vector()
    zip_ops(x.borrow().to_host(), dup(x.borrow()), value(x.borrow())).sync()
    eat(x)


def writers_of_different_tensors_in_one_run() -> None:
    a, b, x = vector(), vector(), vector()
    zip_ops(
        saxpy(a.borrow_mut().partition((4,)), 1.0, x.borrow()),
        saxpy(b.borrow_mut().partition((4,)), 2.0, x.borrow()),
    ).sync()
    eat(a)
    eat(b)
    eat(x)


def list_of_readers() -> None:
    x = vector()
    ops = [x.borrow().to_host() for _ in range(3)]
    print(len(zip_ops(*ops).sync()))
    ops.clear()
    eat(x)


def list_of_writers_of_different_tensors() -> None:
    tensors, x = [vector() for _ in range(3)], vector()
    ops = [saxpy(t.borrow_mut().partition((4,)), 1.0, x.borrow()) for t in tensors]
    print(len(zip_ops(*ops).sync()))


def copied_between() -> None:
    a, b = vector(), vector()
    memcpy(a.borrow_mut(), b.borrow()).sync()
    memcpy(b.borrow_mut(), a.borrow()).sync()


def copied_from_a_slice() -> None:
    half, whole = zeros((4,)).sync(), vector()
    memcpy(half.borrow_mut(), whole.slice(slice(0, 4))).sync()
    memcpy(half.borrow_mut(), whole.slice(slice(4, 8))).sync()
    eat(whole)


def halves_are_read_by_two() -> None:
    whole = vector()
    low, high = whole.slice(slice(0, 4)), whole.slice(slice(4, 8))
    add(zeros((4,)).partition((2,)), low, high).sync()
    eat(whole)


def put_together_again() -> None:
    y = vector()
    p = y.borrow_mut().partition((4,))
    lent = p.unpartition()
    scale(lent.partition((8,)), 2.0).sync()
    eat(y)
