"""The first time round moves a handle, the second uses it; and what is moved in a loop is used behind it."""

from dagpu import zip_ops
from tests.typing.plugin.kernels import eat, no, saxpy, total, vector, yes


def shared_in_each_round() -> None:
    t = vector()
    for _ in range(2):
        eat(t)  # E: dagpu-use-after-move


def passed_to_a_kernel_in_each_round() -> None:
    y, x = vector(), vector()
    for _ in range(2):
        saxpy(y.borrow_mut().partition((4,)), 0.5, x).sync()  # E: dagpu-use-after-move


def read_before_it_is_moved() -> None:
    t = vector()
    for _ in range(2):
        print(t.shape)  # E: dagpu-use-after-move
        eat(t)


def moved_and_used_behind_the_loop() -> None:
    t = vector()
    for _ in range(1):
        t.share()  # E: dagpu-use-after-move
    print(t.shape)


def moved_before_a_break() -> None:
    t = vector()
    for _ in range(2):
        if yes():
            eat(t)
            break
    print(t.shape)  # E: dagpu-use-after-move


def moved_before_a_continue() -> None:
    t = vector()
    for number in range(2):
        print(number, t.shape)  # E: dagpu-use-after-move
        if number == 0:
            eat(t)
            continue
        print("last")


def the_inner_loop_goes_on() -> None:
    t = vector()
    for _ in range(2):
        for number in range(2):
            eat(t)  # E: dagpu-use-after-move
            if number == 0:
                continue
            break
        break


def the_inner_break_ends_the_wrong_loop() -> None:
    t = vector()
    for _ in range(2):
        for _ in range(2):
            eat(t)  # E: dagpu-use-after-move
            break


def in_a_while() -> None:
    t, left = vector(), 2
    while left:
        eat(t)  # E: dagpu-use-after-move
        left -= 1


def in_the_condition_of_a_while() -> None:
    t = vector()
    while eat(t).ndim == 1:  # E: dagpu-use-after-move
        print("once more")


def read_in_the_condition_of_a_while() -> None:
    t = vector()
    while t.ndim == 1:  # E: dagpu-use-after-move
        eat(t)


def in_an_endless_loop() -> None:
    t = vector()
    while True:
        eat(t)  # E: dagpu-use-after-move
        if no():
            break


def in_the_else_of_a_loop() -> None:
    t = vector()
    for _ in range(2):
        if no():
            break
    else:
        eat(t)
    print(t.shape)  # E: dagpu-use-after-move


def in_the_else_and_before_a_break() -> None:
    t = vector()
    for _ in range(2):
        if no():
            eat(t)
            break
    else:
        eat(t)
    t.borrow()  # E: dagpu-use-after-move


def made_anew_in_some_rounds_only() -> None:
    t = vector()
    for _ in range(2):
        eat(t)  # E: dagpu-use-after-move
        if no():
            t = vector()


def made_anew_after_a_use() -> None:
    t = vector()
    for _ in range(2):
        eat(t)
        print(t.shape)  # E: dagpu-use-after-move
        t = vector()


def made_anew_unless_it_goes_on() -> None:
    t = vector()
    for number in range(2):
        eat(t)  # E: dagpu-use-after-move
        if number == 0:
            continue
        t = vector()


def the_source_of_the_loop() -> None:
    t = vector()
    for extent in eat(t).shape:
        print(extent, t.ndim)  # E: dagpu-use-after-move


def the_variable_of_the_loop() -> None:
    for t in [vector(), vector()]:
        eat(t)
        print(t.shape)  # E: dagpu-use-after-move


def the_variable_behind_the_loop() -> None:
    t = vector()
    for t in [vector(), vector()]:
        eat(t)
    print(t.shape)  # E: dagpu-use-after-move


def a_handle_of_the_round_before() -> None:
    last = vector()
    for _ in range(2):
        print(last.shape)  # E: dagpu-use-after-move
        t = vector()
        last = t
        eat(last)


def pairs() -> None:
    for a, b in [(vector(), vector())]:
        eat(a)
        eat(b)
        zip_ops(a.to_host(), b.to_host()).sync()  # E: dagpu-use-after-move # E: dagpu-use-after-move


def enumerated() -> None:
    for number, t in enumerate([vector(), vector()]):
        if number == 0:
            eat(t)
        print(number, t.shape)  # E: dagpu-use-after-move


def in_nested_loops() -> None:
    t = vector()
    for _ in range(2):
        t = vector()
        for _ in range(2):
            eat(t)  # E: dagpu-use-after-move


def in_a_list_comprehension() -> None:
    t = vector()
    print([eat(t).ndim for _ in range(2)])  # E: dagpu-use-after-move


def in_a_generator_expression() -> None:
    t = vector()
    print(sum(eat(t).ndim for _ in range(2)))  # E: dagpu-use-after-move


def in_a_dictionary_comprehension() -> None:
    t = vector()
    print({number: eat(t) for number in range(2)})  # E: dagpu-use-after-move


def in_the_condition_of_a_comprehension() -> None:
    t = vector()
    print([number for number in range(2) if eat(t).ndim == 1])  # E: dagpu-use-after-move


def behind_a_comprehension() -> None:
    t = vector()
    print([extent for extent in eat(t).shape])  # noqa: C416
    print(t.shape)  # E: dagpu-use-after-move


def in_a_nested_comprehension() -> None:
    t = vector()
    print([[eat(t).ndim for _ in range(2)] for _ in range(1)])  # E: dagpu-use-after-move


def element_of_a_comprehension() -> None:
    print([(eat(t).ndim, total(t.borrow())) for t in [vector(), vector()]])  # E: dagpu-use-after-move


def in_a_set_comprehension_behind_a_move() -> None:
    t = vector()
    eat(t)
    print({t.ndim + number for number in range(2)})  # E: dagpu-use-after-move


def walrus_in_a_while() -> None:
    t = vector()
    while (s := eat(t)).ndim == 1:  # E: dagpu-use-after-move
        print(s.shape)
