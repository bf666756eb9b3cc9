"""Variables of the module that are bound more than once, or in a function, are no constants."""

from dagpu import zeros

N, TILE = 1024, (256,)
changed = (10,)
changed = (8,)
added = 10
added -= 2
set_later = (10,)
in_a_loop = 10
for in_a_loop in (8, 12):
    print(in_a_loop)
walrus = 10
print(walrus := 8)
if N:
    chosen = (10,)
else:
    chosen = (8,)
try:
    tried = (10,)
    raise ValueError
except ValueError:
    tried = (8,)


def set_it() -> None:
    """Bind a variable of the module."""
    global set_later
    set_later = (8,)


set_it()
chosen = (8,)


def divides() -> None:
    zeros((N,)).partition(TILE).sync()


def bound_twice() -> None:
    zeros(changed).partition((4,)).sync()


def bound_in_a_function() -> None:
    zeros(set_later).partition((4,)).sync()


def bound_otherwise() -> None:
    zeros((added, in_a_loop)).partition((4, 4)).sync()
    zeros((walrus,)).partition((4,)).sync()
    zeros(chosen).partition((4,)).sync()
    zeros(tried).partition((4,)).sync()


def a_parameter_of_its_name(changed: tuple[int, ...] = (8,)) -> None:
    zeros(changed).partition((4,)).sync()


def decided_by_a_constant() -> None:
    if N == 10:
        zeros((N,)).partition((3,)).sync()
