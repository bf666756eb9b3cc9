"""Items at an index that a variable has, which is another one by then."""

# ruff: noqa: PLC0206, PERF401  # the index is the form that is checked

from dagpu import TensorMut, f32
from tests.typing.plugin.kernels import eat, vector


def swapped() -> None:
    ts = [vector(), vector()]
    i, j = 0, 1
    ts[i], ts[j] = ts[j], ts[i]
    eat(ts[i])
    print(ts[j].shape)


def assigned_between() -> None:
    ts = [vector(), vector()]
    i = 0
    eat(ts[i])
    i = 1
    eat(ts[i])


def counted_up() -> None:
    ts = [vector(), vector()]
    i = 0
    while i < 2:
        eat(ts[i])
        i += 1


def one_in_each_round() -> None:
    ts = [vector(), vector()]
    for i in range(2):
        print(ts[i].shape)
        eat(ts[i])


def one_in_each_round_of_a_comprehension() -> None:
    ts = [vector(), vector()]
    print([eat(ts[i]) for i in range(2)])


def replaced_in_a_dict() -> None:
    ts = {"a": vector(), "b": vector()}
    for k in ts:
        ts[k] = ts[k].reshape((2, 4))
        print(ts[k].shape)


def lent_in_each_round() -> None:
    ts = [vector(), vector()]
    rs: list[TensorMut[f32]] = []
    for i in range(2):
        rs.append(ts[i].borrow_mut())
    print(len(rs))


def counted_up_by_a_closure() -> None:
    ts = [vector(), vector()]
    i = 0

    def bump() -> None:
        nonlocal i
        i += 1

    eat(ts[i])
    bump()
    eat(ts[i])


def popped_between() -> None:
    ts = [vector(), vector()]
    i = 0
    eat(ts[i])
    ts.pop(i)
    eat(ts[i])


def deleted_between() -> None:
    ts = [vector(), vector()]
    i = 0
    eat(ts[i])
    del ts[i]
    eat(ts[i])


def replaced() -> None:
    ts = [vector(), vector()]
    for i in range(2):
        t = ts[i]
        ts[i] = t.reshape((2, 4))
        print(ts[i].shape)


def named_and_read() -> None:
    ts = [vector(), vector()]
    for i in range(2):
        t = ts[i]
        print(ts[i].shape, t.shape)


def assigned_in_a_condition() -> None:
    ts = [vector(), vector()]
    it = iter(range(2))
    while (i := next(it, None)) is not None:
        eat(ts[i])
