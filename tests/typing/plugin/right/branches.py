"""Moves on paths that do not meet a use, or meet it with a tensor made anew."""

import sys
from enum import Enum
from typing import assert_never

from dagpu import Partition, PartitionError, SharedTensor, Tensor, TensorRef, f32
from tests.typing.plugin.kernels import eat, give_up, maybe, no, saxpy, total, vector, yes


def moved_in_one_arm_used_in_the_other() -> None:
    t = vector()
    if yes():
        eat(t)
    else:
        print(t.shape)


def moved_in_each_arm() -> None:
    t = vector()
    if yes():
        eat(t)
    elif no():
        t.share()
    else:
        t.partition((4,))


def early_return() -> None:
    t = vector()
    if no():
        eat(t)
        return
    print(t.shape)


def early_raise() -> None:
    t = vector()
    if no():
        eat(t)
        raise RuntimeError("for a test")
    print(t.shape)


def early_end() -> None:
    t = vector()
    if no():
        eat(t)
        sys.exit(1)
    print(t.shape)


def gives_up_early() -> None:
    t = vector()
    if no():
        eat(t)
        give_up()
    print(t.shape)


def gives_up_in_an_expression() -> None:
    t = vector()
    s = t.share() if yes() else give_up()
    print(s.shape)


def made_anew_in_the_same_arm() -> None:
    t = vector()
    if yes():
        eat(t)
        t = vector()
    print(t.shape)


def made_anew_in_each_arm() -> None:
    t = vector()
    if yes():
        p = t.partition((4,))
        t = p.unpartition()
    else:
        t = t.reshape((2, 4))
    print(t.shape)


def moved_behind_both() -> None:
    t = vector()
    if yes():
        print(t.shape)
    else:
        total(t.borrow())
    eat(t)


def bound_in_both_arms() -> None:
    if yes():
        t = vector()
    else:
        t = vector().reshape((2, 4))
    eat(t)


def conditional_expression() -> None:
    a, b = vector(), vector()
    c = a if yes() else b
    eat(c)


def conditional_expression_of_reads() -> None:
    a, b = vector(), vector()
    print((a if yes() else b).shape)
    eat(a)
    eat(b)


def conditional_move() -> None:
    t = vector()
    s = eat(t) if yes() else vector().share()
    print(s.shape)


def and_or() -> None:
    t = vector()
    if t.ndim == 1 and t.shape == (8,) and (no() or t.size == 8):
        eat(t)


def guarded_by_the_left() -> None:
    t = vector()
    print(no() and eat(t).ndim)


def match_arms(word: str = "share") -> None:
    t = vector()
    match word:
        case "share":
            eat(t)
        case "cut":
            t.partition((4,))
        case _:
            print(t.shape)


def match_leaves(word: str = "keep") -> None:
    t = vector()
    match word:
        case "spend":
            eat(t)
            return
        case "fail":
            eat(t)
            give_up()
        case _:
            print("kept")
    eat(t)


def match_on_the_form(t: Tensor[f32] | SharedTensor[f32] | None = None) -> None:
    match t if t is not None else vector():
        case Tensor() as own:
            eat(own)
        case SharedTensor() as many:
            print(many.shape)


def match_guard() -> None:
    t = vector()
    match t.ndim:
        case 1 if t.size == 8:
            eat(t)
        case _:
            print(t.shape)


def match_leaves_or_makes_it_anew(number: int = 2) -> None:
    t = vector()
    eat(t)
    match number:
        case 1:
            return
        case _:
            t = vector()
    print(t.shape)


def match_leaves_the_loop_either_way(number: int = 2) -> None:
    t = vector()
    for _ in range(2):
        eat(t)
        match number:
            case 1:
                return
            case _:
                break


class Mode(Enum):
    """Two ways."""

    CUT = "cut"
    KEEP = "keep"


def match_over_an_enumeration(mode: Mode = Mode.CUT) -> None:
    t = vector()
    match mode:
        case Mode.CUT:
            t = t.reshape((2, 4))
        case Mode.KEEP:
            eat(t)
            t = vector()
    print(t.shape)


def match_is_total() -> None:
    kind: bool = yes()
    t = vector()
    match kind:
        case True:
            eat(t)
        case False:
            t.share()
        case other:
            assert_never(other)


def match_on_a_tuple() -> None:
    pair = (vector(), 1)
    match pair:
        case (t, 1):
            eat(t)
        case (t, _):
            print(t.shape)


def optional() -> None:
    t = maybe()
    if t is not None:
        eat(t)


def optional_leaves_early() -> None:
    t = maybe()
    if t is None:
        return
    eat(t)


def optional_with_a_default() -> None:
    t = maybe()
    if t is None:
        t = vector()
    eat(t)


def optional_asserted() -> None:
    t = maybe()
    assert t is not None
    eat(t)


def optional_that_is_spent() -> None:
    t: Tensor[f32] | None = vector()
    if t is not None and yes():
        eat(t)
        t = None
    print(t)


def forms_told_apart(t: Tensor[f32] | TensorRef[f32] | None = None) -> None:
    given = vector() if t is None else t
    if isinstance(given, Tensor):
        eat(given)
    else:
        total(given)


def either_form_read_first() -> None:
    handle: Tensor[f32] | Partition[Tensor[f32]] = vector() if yes() else vector().partition((4,))
    print(handle.shape)
    t = handle.unpartition() if isinstance(handle, Partition) else handle
    eat(t)


def walrus() -> None:
    if (t := maybe()) is not None:
        eat(t)


def walrus_of_a_number() -> None:
    t = vector()
    if (n := t.size) > 4:
        print(n, t.shape)
    eat(t)


def flag_that_goes_along() -> None:
    t = vector()
    spent = yes()
    if spent:
        eat(t)
        t = vector()
    print(spent, t.shape)


def under_a_platform_check() -> None:
    t = vector()
    if sys.platform == "no such platform":
        eat(t)
    print(t.shape)


def behind_a_type_check() -> None:
    t = vector()
    if isinstance(t, SharedTensor):
        eat(t)
    print(t.shape)


def nested_conditions() -> None:
    t = vector()
    if yes():
        if no():
            eat(t)
            return
        print(t.shape)
    else:
        t = t.reshape((2, 4))
    eat(t)


def tries_a_tile_and_then_another() -> None:
    t = vector()
    try:
        p = t.partition((3,))
    except PartitionError:
        p = t.partition((4,))
    saxpy(p, 1.0, vector()).sync()


def comparison_chain() -> None:
    t = vector()
    assert 0 < t.ndim < t.size <= t.nbytes
    eat(t)


def in_an_assertion() -> None:
    t = vector()
    assert t.shape == (8,), f"{t.shape} is not (8,)"
    eat(t)
