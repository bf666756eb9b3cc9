"""A handle is moved in a place that one does not look at twice: indices, formats, defaults, arguments of all kinds."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import trio

from dagpu import SharedTensor, Tensor, dup, f32, value, zeros
from tests.typing.plugin.kernels import add, async_vector, eat, no, saxpy, scale, total, vector, yes


def in_a_format() -> None:
    t = vector()
    print(f"{eat(t).shape}")
    print(t.shape)  # E: dagpu-use-after-move


def in_one_format_twice() -> None:
    t = vector()
    print(f"{eat(t).shape} {t.ndim}")  # E: dagpu-use-after-move


def in_an_index() -> None:
    t = vector()
    print([0, 1][eat(t).ndim])
    print(t.shape)  # E: dagpu-use-after-move


def in_a_slice() -> None:
    t = vector()
    print([0, 1][: eat(t).ndim], t.ndim)  # E: dagpu-use-after-move


def in_an_augmented_assignment() -> None:
    t, n = vector(), 0
    n += eat(t).size
    print(n, t.size)  # E: dagpu-use-after-move


def in_a_unary_expression() -> None:
    t = vector()
    print(-eat(t).size, not t.ndim)  # E: dagpu-use-after-move


def in_a_binary_expression() -> None:
    t = vector()
    print(eat(t).size + t.size)  # E: dagpu-use-after-move


def in_a_key_and_a_value() -> None:
    t = vector()
    print({eat(t).size: t.size})  # E: dagpu-use-after-move


def in_a_set() -> None:
    t = vector()
    print({eat(t).size, t.size})  # E: dagpu-use-after-move


def in_a_starred_argument() -> None:
    t = vector()
    print(*eat(t).shape, t.shape)  # E: dagpu-use-after-move


def in_keyword_arguments() -> None:
    t = vector()
    print("sizes", t, sep=str(eat(t).size), end=str(t.size))  # E: dagpu-use-after-move


def in_nested_calls() -> None:
    t = vector()
    print(max(eat(t).size, abs(t.size)))  # E: dagpu-use-after-move


def in_the_receiver_of_a_call() -> None:
    t = vector()
    print(eat(t).clone().reshape(t.shape))  # E: dagpu-use-after-move


def in_both_arms_of_an_expression() -> None:
    t = vector()
    s = eat(t) if yes() else t.share()
    print(s.shape, t.shape)  # E: dagpu-use-after-move


def in_the_test_of_an_expression() -> None:
    t = vector()
    print(t.size if eat(t).ndim == 1 else 0)  # E: dagpu-use-after-move


def in_a_default() -> None:
    t = vector()

    def show(size: int = eat(t).size) -> None:  # what is shown
        print(size)

    show()
    print(t.size)  # E: dagpu-use-after-move


def in_a_decorator() -> None:
    def sized(size: int) -> Callable[[Callable[[], None]], Callable[[], None]]:
        print(size)
        return lambda f: f

    t = vector()

    @sized(eat(t).size)
    def work() -> None:
        print(t.size)  # E: dagpu-use-after-move

    work()


def in_a_base_class() -> None:
    class Owner:
        def __init__(self, t: Tensor[f32]) -> None:
            self.t = t

    class Careful(Owner):
        def __init__(self, t: Tensor[f32]) -> None:
            super().__init__(t)
            eat(self.t)
            print(t.shape)  # E: dagpu-use-after-move

    Careful(vector())


def in_an_annotated_assignment() -> None:
    t = vector()
    s: SharedTensor[f32] = t.share()
    again: SharedTensor[f32] = t.share()  # E: dagpu-use-after-move
    print(s, again)


def in_a_global_statement() -> None:
    global kept
    kept = vector()
    eat(kept)
    print(kept.shape)  # E: dagpu-use-after-move


kept: Tensor[f32] | None = None


def in_a_return_behind_a_finally() -> None:
    def make() -> int:
        t = vector()
        try:
            print(t.shape)
        finally:
            eat(t)
        return t.size  # E: dagpu-use-after-move

    make()


def in_a_yield() -> None:
    def sizes() -> Iterator[int]:
        t = vector()
        yield eat(t).size
        yield t.size  # E: dagpu-use-after-move

    print(list(sizes()))


def in_a_yield_inside_a_loop() -> None:
    def shared() -> Iterator[SharedTensor[f32]]:
        t = vector()
        for _ in range(2):
            yield t.share()  # E: dagpu-use-after-move

    print(list(shared()))


def over_a_display() -> None:
    a, b = vector(), vector()
    for t in (a, b):
        eat(t)
    print(a.shape)  # E: dagpu-use-after-move


def over_a_display_in_a_comprehension() -> None:
    a, b = vector(), vector()
    print([eat(t).shape for t in (a, b)])
    print(b.shape)  # E: dagpu-use-after-move


def over_a_display_of_moved_tensors() -> None:
    a, b = vector(), vector()
    eat(a)
    for t in (a, b):  # E: dagpu-use-after-move
        print(t.shape)


def in_a_thread_pool() -> None:
    t = vector()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(eat, t)
        print(future.result().shape)
    print(t.shape)  # E: dagpu-use-after-move


async def on_a_worker_thread() -> None:
    t = await async_vector()
    await trio.to_thread.run_sync(eat, t)
    print(t.shape)  # E: dagpu-use-after-move


async def in_an_awaited_argument() -> None:
    t = await async_vector()
    print(await dup(t), t.shape)  # E: dagpu-use-after-move


async def in_the_head_of_an_async_with() -> None:
    t = await async_vector()
    async with trio.open_nursery(strict_exception_groups=eat(t).ndim == 1):
        print(t.shape)  # E: dagpu-use-after-move


def in_a_conversion_of_the_result() -> None:
    t = vector()
    print(float(t.to_host().sync().sum()) / t.size)  # E: dagpu-use-after-move


def in_an_op_that_is_never_run() -> None:
    t = vector()
    op = dup(t)
    print(op, t.shape)  # E: dagpu-use-after-move


def in_a_kernel_call_that_is_tuned() -> None:
    y, x = vector(), vector()
    saxpy.block(64)(y.partition((4,)), 1.0, x).sync()
    print(x.shape)  # E: dagpu-use-after-move


def in_a_kernel_call_that_is_chained() -> None:
    y, x = vector(), vector()
    scale(saxpy(y.partition((4,)), 1.0, x).first(), 2.0).sync()
    print(x.shape)  # E: dagpu-use-after-move


def in_a_partition_inside_a_call() -> None:
    t = vector()
    scale(t.partition((4,)), float(t.size)).sync()  # E: dagpu-use-after-move


def in_a_value_inside_a_zip() -> None:
    t = vector()
    op = add(zeros((8,)).partition((4,)), value(t), value(1).map(lambda _: t.share()))  # E: dagpu-use-after-move
    op.sync()


def moved_and_deleted_on_one_path() -> None:
    t = vector()
    if yes():
        eat(t)
    if no():
        del t
        return
    total(t.borrow())  # E: dagpu-use-after-move
