"""Components that are used again under the name of a pattern, a loop or a further target."""

from dataclasses import dataclass
from typing import NamedTuple

from dagpu import Tensor, f32
from tests.typing.plugin.kernels import eat, saxpy, total, vector


class Two(NamedTuple):
    """Two tensors."""

    first: Tensor[f32]
    second: Tensor[f32]


@dataclass
class Box:
    """Two tensors, of which each may be replaced."""

    first: Tensor[f32]
    second: Tensor[f32]


def star_target_first() -> None:
    triple = (vector(), vector(), vector())
    a, *rest = triple
    eat(a)
    print(rest[0].shape)
    print(triple[0].shape)  # E: dagpu-use-after-move


def star_target_rest() -> None:
    triple = (vector(), vector(), vector())
    a, *rest = triple
    eat(rest[0])
    print(a.shape)
    print(triple[1].shape)  # E: dagpu-use-after-move


def star_target_rest_neg() -> None:
    triple = (vector(), vector(), vector())
    *rest, a = triple
    eat(a)
    print(rest[0].shape)
    print(triple[2].shape)  # E: dagpu-use-after-move


def star_target_literal() -> None:
    x, y, z = vector(), vector(), vector()
    a, *rest = x, y, z
    eat(a)
    print(len(rest))
    print(x.shape)  # E: dagpu-use-after-move


def star_target_literal_rest() -> None:
    x, y, z = vector(), vector(), vector()
    a, *rest = x, y, z
    eat(rest[0])
    print(a.shape)
    print(y.shape)  # E: dagpu-use-after-move


def pattern_sequence() -> None:
    pair = (vector(), vector())
    match pair:
        case (a, b):
            eat(a)
            print(b.shape, pair[1].shape)
            print(pair[0].shape)  # E: dagpu-use-after-move


def pattern_sequence_2() -> None:
    pair = (vector(), vector())
    eat(pair[0])
    match pair:
        case (a, b):
            print(b.shape)
            print(a.shape)  # E: dagpu-use-after-move


def pattern_named_positional() -> None:
    two = Two(vector(), vector())
    match two:
        case Two(a, b):
            eat(b)
            print(a.shape, two.first.shape)
            print(two.second.shape)  # E: dagpu-use-after-move


def pattern_keyword() -> None:
    two = Box(vector(), vector())
    match two:
        case Box(first=a):
            eat(a)
            print(two.second.shape)
            print(two.first.shape)  # E: dagpu-use-after-move


def pattern_dataclass_positional() -> None:
    two = Box(vector(), vector())
    match two:
        case Box(a, b):
            eat(b)
            print(a.shape)
            print(two.second.shape)  # E: dagpu-use-after-move


def pattern_star() -> None:
    triple = (vector(), vector(), vector())
    match triple:
        case (a, *rest):
            eat(rest[1])
            print(a.shape)
            print(triple[2].shape)  # E: dagpu-use-after-move


def pattern_literal_subject() -> None:
    x, y = vector(), vector()
    match (x, y):
        case (a, b):
            eat(a)
            print(b.shape)
            print(x.shape)  # E: dagpu-use-after-move


def pattern_mapping() -> None:
    d = {"a": vector(), "b": vector()}
    match d:
        case {"a": a}:
            eat(a)
            print(d["b"].shape)
            print(d["a"].shape)  # E: dagpu-use-after-move
        case _:
            pass


def several_targets() -> None:
    a = b = vector()
    eat(a)
    print(b.shape)  # E: dagpu-use-after-move


def several_targets_three() -> None:
    a = b = c = vector()
    eat(c)
    print(a.shape)  # E: dagpu-use-after-move
    print(b.shape)  # E: dagpu-use-after-move


def several_targets_tuple() -> None:
    pair = a, b = vector(), vector()
    eat(a)
    print(b.shape, pair[1].shape)
    print(pair[0].shape)  # E: dagpu-use-after-move


def several_targets_tuple2() -> None:
    a, b = pair = vector(), vector()
    eat(pair[0])
    print(b.shape)
    print(a.shape)  # E: dagpu-use-after-move


def several_targets_two_tuples() -> None:
    a, b = c, d = vector(), vector()
    eat(a)
    print(b.shape, d.shape)
    print(c.shape)  # E: dagpu-use-after-move


def several_targets_loop() -> None:
    for t in (vector(), vector()):
        a = b = t
        eat(a)
        print(b.shape)  # E: dagpu-use-after-move


def several_attr() -> None:
    box = Box(vector(), vector())
    box.first = box.second = vector()
    eat(box.first)
    print(box.second.shape)  # E: dagpu-use-after-move


def several_name_attr() -> None:
    box = Box(vector(), vector())
    t = box.first = vector()
    eat(t)
    print(box.second.shape)
    print(box.first.shape)  # E: dagpu-use-after-move


def alias_of_tuple() -> None:
    pair = (vector(), vector())
    other = pair
    eat(pair[0])
    print(other[1].shape)
    print(other[0].shape)  # E: dagpu-use-after-move


def nested() -> None:
    nest = ((vector(), vector()), vector())
    (a, b), c = nest
    eat(a)
    print(b.shape, c.shape)
    print(nest[0][0].shape)  # E: dagpu-use-after-move


def nested2() -> None:
    nest = ((vector(), vector()), vector())
    inner, c = nest
    eat(inner[0])
    print(c.shape)
    print(nest[0][0].shape)  # E: dagpu-use-after-move


def slices() -> None:
    triple = (vector(), vector(), vector())
    front = triple[:2]
    eat(front[0])
    print(triple[2].shape)
    print(triple[0].shape)  # E: dagpu-use-after-move


def op_result() -> None:
    p = saxpy(vector().partition((4,)), 1.0, vector()).sync()
    t = p[0].unpartition()
    print(t.shape)
    print(p[-3].grid)  # E: dagpu-use-after-move


def for_over_pairs() -> None:
    pair = (vector(), vector())
    for t in pair:
        eat(t)
    print(pair[0].shape)  # E: dagpu-use-after-move


def for_over_list() -> None:
    ts = [vector(), vector()]
    for t in ts:
        eat(t)
    print(ts[0].shape)  # E: dagpu-use-after-move


def for_over_list_twice() -> None:
    ts = [vector(), vector()]
    for t in ts:
        eat(t)
    for t in ts:
        eat(t)  # E: dagpu-use-after-move


def for_unpack() -> None:
    pairs = [(vector(), vector()), (vector(), vector())]
    for a, b in pairs:
        eat(a)
        print(b.shape)
        print(a.shape)  # E: dagpu-use-after-move


def list_unpack() -> None:
    ts = [vector(), vector()]
    a, b = ts
    eat(a)
    print(b.shape)
    print(ts[0].shape)  # E: dagpu-use-after-move


def borrow_of_component() -> None:  # R: runs
    pair = (vector(), vector())
    r = pair[0].borrow()
    w = pair[-2].borrow_mut()  # E: dagpu-conflicting-borrow
    print(total(r), w.shape)


def borrow_of_component_unpacked() -> None:  # R: runs
    pair = (vector(), vector())
    a, b = pair
    r = a.borrow()
    w = pair[0].borrow_mut()  # E: dagpu-conflicting-borrow
    print(total(r), w.shape, b.shape)


def returned_pair() -> None:
    def make() -> tuple[Tensor[f32], Tensor[f32]]:
        return vector(), vector()

    pair = make()
    a, _ = pair
    eat(a)
    eat(pair[1])
    print(pair[0].shape)  # E: dagpu-use-after-move


def displaced() -> None:
    a, b = vector(), vector()
    pair = (a, b)
    c, d = pair
    eat(c)
    print(d.shape)
    print(a.shape)  # E: dagpu-use-after-move


def star_in_display() -> None:
    pair = (vector(), vector())
    triple = (*pair, vector())
    eat(triple[0])
    print(triple[2].shape, triple[1].shape)
    print(pair[0].shape)  # E: dagpu-use-after-move
