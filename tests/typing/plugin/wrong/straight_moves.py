"""A handle is moved and used again, with no branch in between."""

from dagpu import DeviceOp, SharedTensor, convert, dup, f32, f64, fill, from_host, memcpy, ones, value, zip_ops
from tests.typing.plugin.kernels import add, eat, gemm, matrix, saxpy, split, total, vector


def shared_and_measured() -> None:
    t = vector()
    t.share()
    print(t.shape)  # E: dagpu-use-after-move


def shared_twice() -> None:
    t = vector()
    first = t.share()
    second = t.share()  # E: dagpu-use-after-move
    print(first, second)


def partitioned_and_lent() -> None:
    t = vector()
    p = t.partition((4,))
    total(t.borrow())  # E: dagpu-use-after-move
    print(p.grid)


def reshaped_under_a_new_name() -> None:
    t = vector()
    square = t.reshape((2, 4))
    print(square.shape, t.shape)  # E: dagpu-use-after-move


def copied_to_the_host_twice() -> None:
    t = vector()
    before = t.to_host().sync()
    after = t.to_host().sync()  # E: dagpu-use-after-move
    print(before, after)


def put_together_twice() -> None:
    p = vector().partition((4,))
    t = p.unpartition()
    print(t.shape)
    print(p.grid)  # E: dagpu-use-after-move


def unwrapped_and_read() -> None:
    s = vector().share()
    t = s.try_unwrap()
    print(t.shape)
    s.to_host().sync()  # E: dagpu-use-after-move


def passed_by_value() -> None:
    t = vector()
    eat(t)
    eat(t)  # E: dagpu-use-after-move


def passed_by_name() -> None:
    t = vector()
    eat(t=t)
    eat(t=t)  # E: dagpu-use-after-move


def passed_to_a_kernel() -> None:
    y, x = vector(), vector()
    saxpy(y.partition((4,)), 2.0, x).sync()
    print(x.nbytes)  # E: dagpu-use-after-move


def passed_to_a_kernel_by_name() -> None:
    y, x = vector(), vector()
    saxpy(y=y.partition((4,)), a=2.0, x=x).sync()
    x.borrow()  # E: dagpu-use-after-move


def output_passed_to_a_kernel() -> None:
    p, x = vector().partition((4,)), vector()
    saxpy(p, 2.0, x).sync()
    p.unpartition()  # E: dagpu-use-after-move


def both_inputs_of_one_call() -> None:
    z, x = vector(), vector()
    add(z.partition((4,)), x, x).sync()  # E: dagpu-use-after-move


def output_and_input_of_one_call() -> None:
    t = vector()
    saxpy(t.partition((4,)), 1.0, t).sync()  # E: dagpu-use-after-move


def output_and_lent_input_of_one_call() -> None:
    t = vector()
    saxpy(t.partition((4,)), 1.0, t.borrow()).sync()  # E: dagpu-use-after-move


def both_outputs_of_one_call() -> None:
    p, x = vector().partition((4,)), vector()
    split(p, p, x).sync()  # E: dagpu-use-after-move


def gathered_matrix() -> None:
    c, a = matrix(), matrix()
    op = gemm(c.partition((2, 2)), a, matrix())
    print(a.dtype)  # E: dagpu-use-after-move
    op.sync()


def aliased() -> None:
    t = vector()
    other = t
    eat(other)
    print(t.shape)  # E: dagpu-use-after-move


def aliased_twice() -> None:
    t = vector()
    first = t
    second = first
    eat(second)
    print(first.shape)  # E: dagpu-use-after-move


def chained_assignment() -> None:
    t = vector()
    eat(t)
    first = second = t  # E: dagpu-use-after-move
    print(first.shape, second.shape)


def put_into_an_op() -> None:
    t = vector()
    op = value(t)
    print(t.size)  # E: dagpu-use-after-move
    op.sync()


def put_into_an_op_in_a_tuple() -> None:
    t = vector()
    op = value((t, 1))
    print(t.size)  # E: dagpu-use-after-move
    op.sync()


def put_into_an_op_in_a_dictionary() -> None:
    t = vector()
    op = value({"weights": t})
    t.view((2, 4))  # E: dagpu-use-after-move
    op.sync()


def copied_on_the_device() -> None:
    t = vector()
    copy = dup(t).sync()
    print(copy.shape, t.shape)  # E: dagpu-use-after-move


def converted() -> None:
    t = vector()
    wide = convert(t, f64).sync()
    print(wide.dtype)
    t.borrow()  # E: dagpu-use-after-move


def filled() -> None:
    t = vector()
    fill(t, 3.0).sync()
    print(t.shape)  # E: dagpu-use-after-move


def source_of_a_copy() -> None:
    target, source = vector(), vector()
    memcpy(target.borrow_mut(), source).sync()
    print(source.shape)  # E: dagpu-use-after-move


def lent_for_writing_and_moved() -> None:
    t = vector()
    lent = t.borrow_mut()
    p = lent.partition((4,))
    lent.partition((4,))  # E: dagpu-use-after-move
    print(p.grid)


def written_through_one_loan_twice() -> None:
    y, x = vector(), vector().share()
    p = y.borrow_mut().partition((4,))
    saxpy(p, 1.0, x).sync()
    saxpy(p, 1.0, x).sync()  # E: dagpu-use-after-move


def printed() -> None:
    t = vector()
    eat(t)
    print(f"{t.shape}")  # E: dagpu-use-after-move


def in_a_call_chain() -> None:
    t = vector()
    t.reshape((2, 4)).reshape((4, 2)).share()
    t.slice(slice(0, 4))  # E: dagpu-use-after-move


def two_tensors_two_mistakes() -> None:
    a, b = vector(), vector()
    eat(a)
    eat(b)
    try:
        print(a.shape)  # E: dagpu-use-after-move
    finally:
        print(b.shape)  # E: dagpu-use-after-move


def moved_by_the_call_it_is_measured_in() -> None:
    t = vector()
    print(eat(t), t.shape)  # E: dagpu-use-after-move


def moved_by_the_first_of_two_branches() -> None:
    t = vector()
    zip_ops(t.to_host(), t.to_host()).sync()  # E: dagpu-use-after-move


def came_from_the_host() -> None:
    array = vector().to_host().sync()
    t = from_host(array).sync()
    eat(t)
    t.strides  # E: dagpu-use-after-move


def result_of_a_kernel() -> None:
    p, _, x = saxpy(vector().partition((4,)), 2.0, vector()).sync()
    print(p.unpartition().shape, p.grid)  # E: dagpu-use-after-move
    print(x.shape)


def its_own_argument() -> None:
    t = vector()
    print(t.partition((t.share().shape[0],)))  # E: dagpu-use-after-move


def shared_is_unwrapped_under_another_name() -> None:
    s: SharedTensor[f32] = vector().share()
    same = s.clone()
    del same
    t = s.try_unwrap()
    print(t.shape)
    dup_of(s).sync()  # E: dagpu-use-after-move


def dup_of(s: SharedTensor[f32]) -> DeviceOp[SharedTensor[f32]]:
    """A helper that reads a shared tensor."""
    return value(s)


def moved_into_a_new_output() -> None:
    t = vector()
    y = add.new((8,), (4,))(t, ones((8,)))
    print(y, t.shape)  # E: dagpu-use-after-move
