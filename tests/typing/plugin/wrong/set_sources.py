"""Tensors are used after they have moved into a source: as its first value, by `set`, `write` or `change`; and sources
of tuples that hold handles."""

from dagpu import SharedTensor, Source, Tensor, TensorRef, batch, f32, source, zeros
from tests.typing.plugin.kernels import vector, yes


def made_of() -> None:
    t = vector()
    s = source(t)
    print(s.revision, t.to_host().sync())  # E: dagpu-use-after-move


def two_sources_of_one_tensor() -> None:
    t = vector()
    a = source(t)
    b = source(t)  # E: dagpu-use-after-move
    print(a.revision, b.revision)


def set_and_read() -> None:
    s, t = source(vector()), vector()
    s.set(t)
    print(t.to_host().sync())  # E: dagpu-use-after-move


def set_twice() -> None:
    s, t = source(vector()), vector()
    s.set(t)
    s.set(t)  # E: dagpu-use-after-move


def set_in_two_sources() -> None:
    a, b, t = source(vector()), source(vector()), vector()
    a.set(t)
    b.set(t)  # E: dagpu-use-after-move


def set_in_a_loop() -> None:
    s, t = source(vector()), vector()
    for _ in range(2):
        s.set(t)  # E: dagpu-use-after-move


def set_in_a_branch() -> None:
    s, t = source(vector()), vector()
    if yes():
        s.set(t)
    s.set(t)  # E: dagpu-use-after-move


def set_twice_in_a_batch() -> None:
    a, b, t = source(vector()), source(vector()), vector()
    with batch():
        a.set(t)
        b.set(t)  # E: dagpu-use-after-move


def read_after_a_batch() -> None:
    s, t = source(vector()), vector()
    with batch():
        s.set(t)
    print(t.to_host().sync())  # E: dagpu-use-after-move


def written_twice() -> None:
    s, t = source(vector()), zeros((4,)).sync()
    s.write((slice(0, 4),), t)
    s.write((slice(4, 8),), t)  # E: dagpu-use-after-move


def written_in_a_loop() -> None:
    s, t = source(vector()), zeros((4,)).sync()
    for begin in (0, 4):
        s.write((slice(begin, begin + 4),), t)  # E: dagpu-use-after-move


def written_in_a_batch_and_set() -> None:
    a, b, t = source(vector()), source(vector()), vector()
    with batch():
        a.write((slice(0, 8),), t)
        b.set(t)  # E: dagpu-use-after-move


def changed_and_read() -> None:
    s, t = source(vector()), vector()
    s.change(lambda _: t.share())
    print(t.to_host().sync())  # E: dagpu-use-after-move


def changed_twice() -> None:
    s, t = source(vector()), vector()
    s.change(lambda _: t.share())
    s.change(lambda _: t.share())  # E: dagpu-use-after-move


def changed_by_a_function() -> None:
    s, t = source(vector()), vector()

    def given(_: SharedTensor[f32]) -> SharedTensor[f32]:
        return t.share()

    s.change(given)
    s.set(t)  # E: dagpu-use-after-move


def set_while_lent() -> None:
    s, t = source(vector()), vector()
    lent = t.borrow()
    s.set(t)  # E: dagpu-conflicting-borrow
    print(lent.to_host().sync())


def made_of_a_tuple_with_a_loan() -> None:
    t = vector()
    s = source((t.borrow(), 1.0))  # E: dagpu-source-value
    print(s.revision)


def made_of_a_tuple_that_was_named() -> None:
    t = vector()
    pair = (2.0, (1, t.borrow_mut()))
    s = source(pair)  # E: dagpu-source-value
    print(s.revision)


def made_of_many_loans() -> None:
    t = vector()
    loans: tuple[TensorRef[f32], ...] = (t.borrow(), t.borrow())
    s = source(loans)  # E: dagpu-source-value
    print(s.revision)


def made_of_a_tuple_with_a_tensor() -> None:
    s = source((vector().share(), 1.0))  # E: dagpu-source-value
    print(s.revision)


def set_to_a_tuple_with_a_loan() -> None:
    t = vector()
    s: Source[object] = source(1)
    s.set((t.borrow(), 1.0))  # E: dagpu-source-value


def returned_in_a_tuple_in_a_source(t: Tensor[f32]) -> Source[tuple[TensorRef[f32], int]]:
    return source((t.borrow(), 1))  # E: dagpu-source-value  # E: dagpu-borrow-escape
