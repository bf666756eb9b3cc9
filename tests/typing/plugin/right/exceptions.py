"""Exceptions that pass no moved handle by, clean-up, and retries."""

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Self, final

from dagpu import DagpuError, MovedError, PartitionError, ShapeError, Tensor, TensorRef, f32, zeros
from tests.typing.plugin.kernels import add, eat, give_up, no, saxpy, total, vector, yes


def moved_in_finally() -> None:
    t = vector()
    try:
        print(t.shape)
    finally:
        eat(t)


def read_in_finally() -> None:
    t = vector()
    try:
        total(t.borrow())
    finally:
        print(t.shape)
    eat(t)


def moved_in_try_alone() -> None:
    t = vector()
    try:
        eat(t)
    except RuntimeError:
        print("failed")


def moved_in_except_that_leaves() -> None:
    t = vector()
    try:
        print(t.shape)
    except RuntimeError:
        eat(t)
        raise
    eat(t)


def moved_in_each_handler() -> None:
    t = vector()
    try:
        if yes():
            give_up()
    except ValueError:
        eat(t)
    except RuntimeError:
        t.share()
    else:
        eat(t)


def made_anew_in_the_handler() -> None:
    t = vector()
    try:
        eat(t)
        give_up()
    except RuntimeError:
        t = vector()
        print(t.shape)


def handler_leaves() -> None:
    t = vector()
    try:
        if no():
            give_up()
    except RuntimeError:
        return
    eat(t)


def retried_with_a_fresh_tensor() -> None:
    for attempt in range(3):
        t = vector()
        try:
            eat(t)
            if attempt < 2:
                give_up()
            break
        except RuntimeError:
            continue


def retried_with_a_loan() -> None:
    y, x = vector(), vector()
    for attempt in range(3):
        try:
            saxpy(y.borrow_mut().partition((4,)), 1.0, x.borrow()).sync()
            if attempt < 2:
                give_up()
        except RuntimeError as error:
            print(error)
        else:
            break
    eat(y)


def retried_with_an_op() -> None:
    op = add(zeros((8,)).partition((4,)), zeros((8,)), zeros((8,)))
    for _ in range(3):
        try:
            op.sync()
            break
        except DagpuError:
            continue


def returned_from_try() -> None:
    def first() -> Tensor[f32]:
        t = vector()
        try:
            return t
        except RuntimeError:
            raise ValueError("other") from None

    eat(first())


def returned_with_clean_up() -> None:
    def first() -> Tensor[f32]:
        t, scratch = vector(), vector()
        try:
            saxpy(t.borrow_mut().partition((4,)), 1.0, scratch.borrow()).sync()
            return t
        finally:
            print(scratch.shape)

    eat(first())


def refused_and_used() -> None:
    t = vector()
    try:
        t = t.reshape((3, 3))
    except ShapeError as error:
        print(error, t.shape)
    eat(t)


def refused_cut_and_used() -> None:
    t = vector()
    try:
        p = t.partition((5,), partial=no())
    except PartitionError:
        p = t.partition((4,))
    eat(p.unpartition())


def refused_run_keeps_what_was_lent() -> None:
    y, x = vector(), vector()
    try:
        saxpy(y.borrow_mut().partition((4,)), 1.0, x.borrow()).sync()
    except DagpuError:
        print(y.shape, x.shape)
    eat(y)
    eat(x)


def in_a_with_block() -> None:
    t = vector()
    with contextlib.suppress(RuntimeError):
        print(t.shape)
        give_up()
    eat(t)


def with_block_moves_at_its_end() -> None:
    t = vector()
    with contextlib.nullcontext(t.shape) as shape:
        print(shape, t.shape)
        eat(t)


def with_block_yields_a_tensor() -> None:
    @contextlib.contextmanager
    def scratch() -> Iterator[Tensor[f32]]:
        t = vector()
        try:
            yield t
        finally:
            print("given back")

    with scratch() as t:
        eat(t)


def with_block_lends_a_tensor() -> None:
    @contextlib.contextmanager
    def lent(t: Tensor[f32]) -> Iterator[TensorRef[f32]]:
        print("lent", t.shape)
        yield t.borrow()
        eat(t)

    with lent(vector()) as read:
        total(read)


@final
class Workspace:
    """Scratch memory for the length of a block."""

    def __init__(self) -> None:
        self.memory: Tensor[f32] | None = None

    def __enter__(self) -> Self:
        self.memory = vector()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.memory = None

    def use(self) -> float:
        assert self.memory is not None
        return total(self.memory.borrow())


def with_block_owns_memory() -> None:
    with Workspace() as workspace:
        print(workspace.use(), workspace.use())


def several_with_blocks() -> None:
    t = vector()
    with Workspace() as a, Workspace() as b:
        print(a.use() + b.use(), t.shape)
    eat(t)


def exit_stack() -> None:
    with contextlib.ExitStack() as stack:
        workspace = stack.enter_context(Workspace())
        t = vector()
        stack.callback(print, t.shape)
        eat(t)
        print(workspace.use())


def error_is_looked_at() -> None:
    t = vector()
    message = ""
    try:
        raise MovedError(f"of shape {t.shape}")
    except MovedError as error:
        message = str(error)
    print(message, t.shape)
    eat(t)


def group_of_errors() -> None:
    t = vector()
    try:
        raise ExceptionGroup("both", [RuntimeError("one"), ValueError("two")])
    except* RuntimeError:
        print(t.shape)
    except* ValueError:
        print(t.ndim)
    eat(t)


def loop_with_finally() -> None:
    for number in range(3):
        t = vector()
        try:
            if number == 1:
                continue
            print(t.shape)
        finally:
            eat(t)


def nested_try() -> None:
    t = vector()
    try:
        try:
            if yes():
                give_up()
        finally:
            print(t.shape)
    except RuntimeError:
        print(t.ndim)
    eat(t)


def try_with_else() -> None:
    t = vector()
    try:
        size = t.size
    except RuntimeError:
        return
    else:
        eat(t)
    print(size)


def out_of_memory_falls_back() -> None:
    try:
        t = zeros((8,)).sync()
    except MemoryError:
        t = zeros((4,)).sync()
    eat(t)


def moved_by_one_of_two_handlers() -> None:
    t = vector()
    try:
        print()
    except ValueError:
        eat(t)
    except KeyError:
        eat(t)
