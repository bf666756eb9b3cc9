"""A handle is moved on one path and used where the paths have met again."""

from dagpu import Tensor, TensorRef, f32
from tests.typing.plugin.kernels import eat, give_up, maybe, no, saxpy, total, vector, yes


def in_an_if() -> None:
    t = vector()
    if yes():
        eat(t)
    print(t.shape)  # E: dagpu-use-after-move


def in_an_else() -> None:
    t = vector()
    if no():
        print("nothing to do")
    else:
        eat(t)
    print(t.shape)  # E: dagpu-use-after-move


def in_both_arms() -> None:
    t = vector()
    if yes():
        eat(t)
    else:
        t.share()
    print(t.shape)  # E: dagpu-use-after-move


def in_an_elif() -> None:
    t = vector()
    if no():
        print("no")
    elif yes():
        eat(t)
    else:
        print("neither")
    total(t.borrow())  # E: dagpu-use-after-move


def before_a_branch() -> None:
    t = vector()
    eat(t)
    if yes():
        print(t.shape)  # E: dagpu-use-after-move


def in_a_nested_if() -> None:
    t = vector()
    if yes():
        if yes():
            eat(t)
        print(t.ndim)  # E: dagpu-use-after-move


def under_the_same_condition_twice() -> None:
    t = vector()
    if yes():
        eat(t)
    if yes():
        eat(t)  # E: dagpu-use-after-move


def made_anew_on_one_path() -> None:
    t = vector()
    eat(t)
    if no():
        t = vector()
    print(t.shape)  # E: dagpu-use-after-move


def only_one_arm_leaves() -> None:
    t = vector()
    if no():
        eat(t)
        return
    if yes():
        eat(t)
    print(t.shape)  # E: dagpu-use-after-move


def one_arm_gives_up() -> None:
    t = vector()
    if yes():
        eat(t)
    else:
        give_up()
    print(t.shape)  # E: dagpu-use-after-move


def conditional_expression() -> None:
    a, b = vector(), vector()
    c = a if yes() else b
    eat(c)
    print(a.shape)  # E: dagpu-use-after-move


def other_arm_of_a_conditional_expression() -> None:
    a, b = vector(), vector()
    c = a if no() else b
    eat(c)
    print(b.shape)  # E: dagpu-use-after-move


def moved_in_one_arm_of_an_expression() -> None:
    t = vector()
    print(eat(t) if yes() else 0)
    print(t.shape)  # E: dagpu-use-after-move


def after_and() -> None:
    t = vector()
    print(yes() and eat(t).ndim)
    print(t.shape)  # E: dagpu-use-after-move


def after_or() -> None:
    t = vector()
    print(no() or eat(t).ndim)
    print(t.shape)  # E: dagpu-use-after-move


def right_of_and() -> None:
    t = vector()
    print(eat(t).ndim == 1 and t.ndim)  # E: dagpu-use-after-move


def moved_in_the_condition() -> None:
    t = vector()
    if eat(t).ndim == 1:
        print(t.shape)  # E: dagpu-use-after-move


def in_an_assertion() -> None:
    t = vector()
    assert eat(t).ndim == 1
    assert t.ndim == 1  # E: dagpu-use-after-move


def in_a_chained_comparison() -> None:
    t = vector()
    print(0 < eat(t).ndim < 2 <= t.ndim)  # E: dagpu-use-after-move


def in_a_match_arm(word: str = "share") -> None:
    t = vector()
    match word:
        case "share":
            eat(t)
        case _:
            print("kept")
    print(t.shape)  # E: dagpu-use-after-move


def in_every_match_arm(number: int = 2) -> None:
    t = vector()
    match number:
        case 1:
            eat(t)
        case 2 | 3:
            t.share()
        case _:
            t.partition((4,))
    t.borrow()  # E: dagpu-use-after-move


def in_a_match_guard(number: int = 1) -> None:
    t = vector()
    match number:
        case 1 if eat(t).ndim == 2:
            print("never")
        case _:
            print(t.shape)  # E: dagpu-use-after-move


def in_the_subject_of_a_match() -> None:
    t = vector()
    match eat(t).ndim:
        case 1:
            print(t.shape)  # E: dagpu-use-after-move
        case _:
            print("other")


def captured_by_a_match() -> None:
    t = vector()
    match t:
        case Tensor() as caught:
            eat(caught)
    print(t.shape)  # E: dagpu-use-after-move


def optional_not_none() -> None:
    t = maybe()
    if t is not None:
        eat(t)
        print(t.shape)  # E: dagpu-use-after-move


def optional_none_leaves() -> None:
    t = maybe()
    if t is None:
        return
    if yes():
        eat(t)
    print(t.shape)  # E: dagpu-use-after-move


def one_of_several_moves() -> None:
    t = vector()
    if yes():
        p = t.partition((4,))
        saxpy(p, 1.0, vector()).sync()
    elif no():
        print(t.reshape((2, 4)).shape)
    total(t.borrow())  # E: dagpu-use-after-move


def union_of_forms(take: bool = True) -> None:
    t, other = vector(), vector()
    lent: TensorRef[f32] | Tensor[f32] = t if take else other.borrow()
    if isinstance(lent, Tensor):
        eat(lent)
    print(t.shape)  # E: dagpu-use-after-move


def walrus_in_a_condition() -> None:
    t = vector()
    if (s := eat(t)).ndim == 1:
        print(s.shape)
    print(t.shape)  # E: dagpu-use-after-move


def walrus_gives_another_name() -> None:
    t = vector()
    if (other := t).ndim == 1:
        eat(other)
    print(t.shape)  # E: dagpu-use-after-move
