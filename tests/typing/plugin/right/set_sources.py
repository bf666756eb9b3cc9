"""Tensors that move into sources once, and handles that may be set any number of times."""

import numpy as np

from dagpu import SharedTensor, batch, f32, source
from tests.typing.plugin.kernels import vector, yes


def set_once() -> None:
    s, t = source(vector()), vector()
    print(t.shape)
    s.set(t)
    print(s.get().shape)


def set_to_a_new_tensor_in_each_round() -> None:
    s = source(vector())
    for _ in range(2):
        t = vector()
        s.set(t)


def set_in_one_of_two_branches() -> None:
    a, b, t = source(vector()), source(vector()), vector()
    if yes():
        a.set(t)
    else:
        b.set(t)


def set_and_replaced() -> None:
    s, t = source(vector()), vector()
    s.set(t)
    t = vector()
    print(t.to_host().sync())


def shared_handle_in_two_sources() -> None:
    shared = vector().share()
    a, b = source(shared), source(shared)
    with batch():
        a.set(shared)
        b.set(shared)
    print(shared.to_host().sync())


def shared_handle_written_twice() -> None:
    s, part = source(vector()), vector().share()
    s.write((slice(0, 8),), part)
    s.write((slice(0, 8),), part)


def array_set_and_changed() -> None:
    array = np.zeros(8, f32)
    s = source(array)
    s.set(array)
    array[0] = 1
    s.write((slice(0, 4),), array[:4])
    s.change(lambda old: old + array)


def changed_to_a_tensor_made_in_the_function() -> None:
    s = source(vector())
    s.change(lambda _: vector().share())
    s.change(lambda old: old)


def changed_to_a_kept_handle() -> None:
    s, shared = source(vector()), vector().share()

    def given(_: SharedTensor[f32]) -> SharedTensor[f32]:
        return shared

    s.change(given)
    s.change(given)
    print(shared.shape)


def lent_before_it_is_set() -> None:
    s, t = source(vector()), vector()
    lent = t.borrow()
    print(lent.to_host().sync())
    s.set(t)


def ops_of_a_source_run_twice() -> None:
    s = source(vector())
    contents = s.to_host()
    print(contents.sync(), contents.sync())
    print(s.to_host().sync(), s.sync().shape)
