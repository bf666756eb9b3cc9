"""Loops that make what they move, give back what they take, or leave after they have moved."""

from itertools import pairwise

from dagpu import Tensor, dup, f32, ones, zeros, zip_ops
from tests.typing.plugin.kernels import add, eat, maybe, no, saxpy, scale, total, vector, yes


def made_in_each_round() -> None:
    for _ in range(3):
        t = vector()
        eat(t)


def comes_back_in_each_round() -> None:
    p, x = vector().partition((4,)), vector().share()
    for _ in range(3):
        p, _, _ = saxpy(p, 1.0, x).sync()
    assert total(p.unpartition().borrow()) == 32


def cut_and_put_together_in_each_round() -> None:
    t, x = vector(), vector().share()
    for _ in range(3):
        p = t.partition((4,))
        t = saxpy(p, 1.0, x).sync()[0].unpartition()
    eat(t)


def lent_in_each_round() -> None:
    y, x = vector(), vector()
    for _ in range(3):
        saxpy(y.borrow_mut().partition((4,)), 1.0, x.borrow()).sync()
    eat(y)
    eat(x)


def named_anew_in_each_round() -> None:
    t = vector()
    for shape in ((2, 4), (4, 2), (8,)):
        t = t.reshape(shape)
    eat(t)


def double_buffer() -> None:
    front, back = ones((8,)).sync(), zeros((8,)).sync()
    for _ in range(4):
        saxpy(back.borrow_mut().partition((4,)), 0.5, front.borrow()).sync()
        front, back = back, front
    eat(front)
    eat(back)


def triple_buffer() -> None:
    a, b, c = vector(), vector(), vector()
    for _ in range(3):
        add(c.borrow_mut().partition((4,)), a.borrow(), b.borrow()).sync()
        a, b, c = b, c, a
    print(total(a.borrow()) + total(b.borrow()) + total(c.borrow()))


def double_buffer_by_move() -> None:
    front, back = vector(), vector()
    for _ in range(4):
        p, _, front = saxpy(back.partition((4,)), 0.5, front).sync()
        front, back = p.unpartition(), front
    eat(front)
    eat(back)


def moved_and_left() -> None:
    t = vector()
    for _ in range(3):
        if yes():
            eat(t)
            break
        print(t.shape)


def moved_and_returned() -> None:
    t = vector()
    for _ in range(3):
        if yes():
            eat(t)
            return
    print(t.shape)


def moved_in_else() -> None:
    t = vector()
    for _ in range(3):
        print(t.shape)
        if no():
            break
    else:
        eat(t)


def moved_before_a_break_or_in_else() -> None:
    t = vector()
    for number in range(3):
        if number == 5:
            eat(t)
            break
    else:
        eat(t)


def moved_and_left_an_endless_loop() -> None:
    t = vector()
    while True:
        if yes():
            eat(t)
            break
        print(t.shape)


def left_both_loops() -> None:
    t = vector()
    for _ in range(2):
        for _ in range(2):
            if yes():
                eat(t)
                break
        else:
            continue
        break


def moved_behind_the_loop() -> None:
    t = vector()
    while no():
        print(t.shape)
    eat(t)


def made_before_it_goes_on() -> None:
    t = vector()
    for number in range(4):
        eat(t)
        t = vector()
        if number % 2:
            continue
        print(t.shape)


def read_in_the_condition() -> None:
    t = vector()
    while t.ndim < 3:
        t = t.reshape((*t.shape, 1))
    eat(t)


def recreated_in_the_condition() -> None:
    left = 3
    while (t := vector()).ndim == 1 and left:
        eat(t)
        left -= 1


def over_a_list() -> None:
    for t in [vector(), vector()]:
        print(t.shape)
        eat(t)


def over_a_list_in_a_variable() -> None:
    tensors = [vector() for _ in range(3)]
    for t in tensors:
        total(t.borrow())
    for t in tensors:
        eat(t)


def over_pairs() -> None:
    for a, b in zip([vector(), vector()], [vector(), vector()], strict=True):
        eat(a)
        eat(b)


def over_neighbours() -> None:
    shared = [vector().share() for _ in range(3)]
    for a, b in pairwise(shared):
        add(zeros((8,)).partition((4,)), a, b).sync()


def enumerated() -> None:
    for number, t in enumerate([vector(), vector()]):
        print(number, t.shape)
        eat(t)


def over_a_dictionary() -> None:
    weights = {"hidden": vector(), "output": vector()}
    for name, t in weights.items():
        print(name, t.shape, total(t.borrow()))
    for t in weights.values():
        eat(t)


def popped_until_empty() -> None:
    stack = [vector(), vector()]
    while stack:
        t = stack.pop()
        eat(t)


def collected() -> None:
    tensors: list[Tensor[f32]] = []
    for _ in range(3):
        t = vector()
        print(t.shape)
        tensors.append(t)
    for t in tensors:
        eat(t)


def comprehension_of_fresh_tensors() -> None:
    print([eat(vector()).shape for _ in range(3)])


def comprehension_of_reads() -> None:
    t = vector()
    print([total(t.borrow()) for _ in range(3)], {t.ndim for _ in range(3)}, sum(t.size for _ in range(3)))
    eat(t)


def comprehension_of_moves() -> None:
    tensors = [vector(), vector()]
    shared = [t.share() for t in tensors]
    print([s.shape for s in shared], {str(i): s.to_host().sync() for i, s in enumerate(shared)})


def comprehension_over_the_shape() -> None:
    t = vector()
    print([extent for extent in t.shape if extent > t.ndim])
    eat(t)


def generator_of_ops() -> None:
    tensors = [vector() for _ in range(3)]
    print(len(zip_ops(*(t.to_host() for t in tensors)).sync()))


def same_name_in_a_comprehension() -> None:
    t = vector()
    print([t.shape for t in [vector(), vector()]])
    eat(t)


def same_name_in_a_loop() -> None:
    t = vector()
    eat(t)
    for t in [vector(), vector()]:
        print(t.shape)


def accumulated() -> None:
    total_so_far = zeros((8,)).sync()
    for number in range(4):
        part = vector()
        scale(part.borrow_mut().partition((4,)), float(number)).sync()
        saxpy(total_so_far.borrow_mut().partition((4,)), 1.0, part).sync()
    assert total(total_so_far.borrow()) == 48


def accumulated_by_move() -> None:
    so_far = zeros((8,)).sync().partition((4,))
    for _ in range(4):
        so_far = saxpy(so_far, 1.0, vector()).sync()[0]
    eat(so_far.unpartition())


def last_of_a_loop() -> None:
    last = vector()
    for _ in range(3):
        t = vector()
        saxpy(t.borrow_mut().partition((4,)), 1.0, last).sync()
        last = t
    eat(last)


def best_of_a_loop() -> None:
    best = vector()
    for _ in range(3):
        t = vector()
        if total(t.borrow()) > total(best.borrow()):
            best = t
    eat(best)


def optional_in_a_loop() -> None:
    best: Tensor[f32] | None = None
    for _ in range(3):
        t = vector()
        if best is None or total(t.borrow()) > total(best.borrow()):
            best = t
    assert best is not None
    eat(best)


def filled_once() -> None:
    cached: Tensor[f32] | None = None
    for _ in range(3):
        if cached is None:
            cached = vector()
        total(cached.borrow())


def until_there_is_one() -> None:
    while (t := maybe()) is None:
        print("once more")
    eat(t)


def copies_in_each_round() -> None:
    t = vector()
    copies = [dup(t.borrow()).sync() for _ in range(3)]
    copies.append(t)
    print(len(copies))


def nested() -> None:
    for _ in range(2):
        t = vector()
        for _ in range(2):
            print(t.shape)
        eat(t)


def nested_and_named_anew() -> None:
    t = vector()
    for _ in range(2):
        for _ in range(2):
            t = t.reshape((2, 4))
        t = t.reshape((8,))
    eat(t)


def runs_of_one_op() -> None:
    op = add(zeros((8,)).partition((4,)), ones((8,)), ones((8,)))
    for _ in range(3):
        p, *_ = op.sync()
        eat(p.unpartition())


def popped_in_a_condition() -> None:
    ts = [vector(), vector()]
    while ts and (t := ts.pop()).size:
        eat(t)
    while not (not ts or (t := ts.pop()).size == 0):
        eat(t)
