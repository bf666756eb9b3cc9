"""Loans that closures, containers and contexts hold while somebody else wants the tensor."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dagpu import Tensor, TensorRef, dup, f32, memcpy, value, zip_ops
from tests.typing.plugin.kernels import eat, saxpy, scale, total, vector


def closures_that_write_and_read() -> None:
    t = vector()
    write = value(2.0).then(lambda by: scale(t.borrow_mut().partition((4,)), by))
    read = value(1).then(lambda _: dup(t.borrow()))  # E: dagpu-conflicting-borrow
    zip_ops(write, read).sync()


def closures_that_both_write() -> None:
    t = vector()
    first = value(2.0).then(lambda by: scale(t.borrow_mut().partition((4,)), by))
    second = value(3.0).then(lambda by: scale(t.borrow_mut().partition((4,)), by))  # E: dagpu-conflicting-borrow
    zip_ops(first, second).sync()


def closure_that_reads_what_is_moved_later() -> None:
    t = vector()
    op = value(1).then(lambda _: dup(t.borrow()))
    t.share()  # E: dagpu-conflicting-borrow
    op.sync()


def closure_that_writes_what_is_moved_later() -> None:
    t = vector()
    op = value(2.0).then(lambda by: scale(t.borrow_mut().partition((4,)), by))
    eat(t)  # E: dagpu-conflicting-borrow
    op.sync()


def closure_that_measures_what_is_moved_later() -> None:
    t = vector()
    op = value(1).map(lambda number: number + t.size)
    eat(t)  # E: dagpu-conflicting-borrow
    op.sync()


def loan_in_a_closure() -> None:
    t = vector()
    read = t.borrow()
    later: Callable[[], float] = lambda: total(read)  # noqa: E731
    eat(t)  # E: dagpu-conflicting-borrow
    later()


def loan_in_an_object() -> None:
    class Request:
        def __init__(self, source: TensorRef[f32]) -> None:
            self.source = source

    t = vector()
    request = Request(t.borrow())
    eat(t)  # E: dagpu-conflicting-borrow
    total(request.source)


def loan_in_a_list_that_grows() -> None:
    t = vector()
    reads: list[TensorRef[f32]] = []
    reads.append(t.borrow())
    eat(t)  # E: dagpu-conflicting-borrow
    total(reads[0])


def loan_in_a_dictionary_that_grows() -> None:
    t = vector()
    reads: dict[str, TensorRef[f32]] = {}
    reads["t"] = t.borrow()
    t.partition((4,))  # E: dagpu-conflicting-borrow
    total(reads["t"])


def loan_in_a_loop_variable() -> None:
    t = vector()
    for piece in [t.slice(slice(0, 4)), t.slice(slice(4, 8))]:
        memcpy(t.borrow_mut(), t.borrow()).sync()  # E: dagpu-conflicting-borrow # E: dagpu-conflicting-borrow
        total(piece)


def loan_through_a_context() -> None:
    @contextmanager
    def reading(x: TensorRef[f32]) -> Iterator[TensorRef[f32]]:
        yield x

    t = vector()
    with reading(t.borrow()) as read:
        eat(t)  # E: dagpu-conflicting-borrow
        total(read)


def loan_through_a_generator() -> None:
    def pieces(x: TensorRef[f32]) -> Iterator[TensorRef[f32]]:
        for start in (0, 4):
            yield x.slice(slice(start, start + 4))

    t = vector()
    source = pieces(t.borrow())
    eat(t)  # E: dagpu-conflicting-borrow
    total(next(source))


def loan_through_a_walrus() -> None:
    t = vector()
    if (read := t.borrow()).ndim == 1:
        eat(t)  # E: dagpu-conflicting-borrow
    total(read)


def loan_through_a_conditional() -> None:
    t, other = vector(), vector()
    read = t.borrow() if t.ndim == 1 else other.borrow()
    eat(t)  # E: dagpu-conflicting-borrow
    total(read)


def loan_through_or() -> None:
    t = vector()
    cached: list[TensorRef[f32]] = []
    reads = cached or [t.borrow()]
    eat(t)  # E: dagpu-conflicting-borrow
    total(reads[0])


def loan_that_was_unpacked() -> None:
    t, other = vector(), vector()
    first, second = t.borrow(), other.borrow()
    eat(t)  # E: dagpu-conflicting-borrow
    print(total(first), total(second))


def loan_that_was_swapped() -> None:
    t, other = vector(), vector()
    first, second = t.borrow(), other.borrow()
    first, second = second, first
    total(first)
    eat(t)  # E: dagpu-conflicting-borrow
    total(second)


def loan_that_is_read_in_finally() -> None:
    t = vector()
    read = t.borrow()
    try:
        eat(t)  # E: dagpu-conflicting-borrow
    finally:
        total(read)


def loan_that_is_read_in_the_next_round() -> None:
    t = vector()
    read = t.borrow()
    for _ in range(2):
        total(read)
        saxpy(t.borrow_mut().partition((4,)), 1.0, read).sync()  # E: dagpu-conflicting-borrow


def loan_that_was_read_but_not_for_the_last_time() -> None:
    t = vector()
    read = t.borrow()
    total(read)
    eat(t)  # E: dagpu-conflicting-borrow
    if read.ndim == 1:
        print("a vector")


def loan_of_a_partition_that_comes_back() -> None:
    t, x = vector(), vector().share()
    p, _, _ = saxpy(t.borrow_mut().partition((4,)), 1.0, x).sync()
    eat(t)  # E: dagpu-conflicting-borrow
    saxpy(p, 1.0, x).sync()


def loan_that_a_kernel_gives_back() -> None:
    t = vector()
    _, _, read = saxpy(vector().partition((4,)), 1.0, t.borrow()).sync()
    eat(t)  # E: dagpu-conflicting-borrow
    total(read)


def loan_of_an_attribute_that_moves() -> None:
    class Model:
        def __init__(self) -> None:
            self.weights = vector()

        def spend(self) -> float:
            read = self.weights.borrow()
            eat(self.weights)  # E: dagpu-conflicting-borrow
            return total(read)

    Model().spend()


def loan_that_a_helper_gives_in_a_tuple() -> None:
    def halves(x: TensorRef[f32]) -> tuple[TensorRef[f32], TensorRef[f32]]:
        return x.slice(slice(0, 4)), x.slice(slice(4, 8))

    t = vector()
    low, high = halves(t.borrow())
    eat(t)  # E: dagpu-conflicting-borrow
    print(total(low), total(high))


def moved_into_a_helper_with_its_own_loan() -> None:
    def use(t: Tensor[f32], read: TensorRef[f32]) -> float:
        eat(t)
        return total(read)

    t = vector()
    read = t.borrow()
    use(t, read)  # E: dagpu-conflicting-borrow
