"""Values inside tuples, lists and dicts, however deep: finding them, and putting others in their places.

One walk for all that looks into a value: what a handle or a stand-in is found in is what it is replaced in. A named
tuple counts as a tuple, of its own class; a subclass of list or dict, or any other object, is a value like a number: it
is not looked into. The walk uses no recursion: zips of zips make tuples as deep as a program is long.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from dagpu.errors import OwnershipError
from dagpu.origin import describe, here

_MUTABLE: Final = frozenset((list, dict))


def is_container(value: Any) -> bool:
    """Is a value looked into?"""
    return type(value) in _MUTABLE or isinstance(value, tuple)


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """`value` with `change` applied to each value in it, from left to right; a dict's keys stay.

    A tuple in which nothing has changed is given back as it is. Lists and dicts are new ones: somebody else may change
    those that were given.

    Raises:
        OwnershipError: a list or dict holds itself.
    """
    if not is_container(value):
        return change(value)
    above: list[tuple[Any, Iterator[Any], list[Any]]] = []
    container, rest, made = value, _inside(value), list[Any]()
    path = _Path()
    path.enter(container)
    while True:
        for item in rest:
            if is_container(item):
                above.append((container, rest, made))
                container, rest, made = item, _inside(item), []
                path.enter(container)
                break
            made.append(change(item))
        else:
            path.leave(container)
            done = _rebuilt(container, made)
            if not above:
                return done
            container, rest, made = above.pop()
            made.append(done)


def values_in(value: Any) -> Iterator[Any]:
    """Each value in `value`, from left to right; `value` itself where it is no container.

    Raises:
        OwnershipError: a list or dict holds itself.
    """
    if not is_container(value):
        yield value
        return
    path = _Path()
    path.enter(value)
    open_containers = [(value, _inside(value))]
    while open_containers:
        container, rest = open_containers[-1]
        for item in rest:
            if is_container(item):
                path.enter(item)
                open_containers.append((item, _inside(item)))
                break
            yield item
        else:
            path.leave(container)
            open_containers.pop()


def _inside(container: Any) -> Iterator[Any]:
    items: Iterable[Any] = container.values() if type(container) is dict else container
    return iter(items)


def _rebuilt(container: Any, items: list[Any]) -> Any:
    """A container with other items."""
    kind = type(container)
    if kind is list:
        return items
    if kind is dict:
        return dict(zip(container, items, strict=True))
    if all(new is old for new, old in zip(items, container, strict=True)):
        return container
    if kind is tuple:
        return tuple(items)
    # Its class is not called: that may want other arguments than the items.
    made = tuple.__new__(kind, items)
    more = getattr(container, "__dict__", None)
    if more:
        made.__dict__.update(more)
    return made


class _Path:
    """The lists and dicts on the way from the outermost container to where the walk is. A tuple can hold itself only by
    way of one of them."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: set[int] = set()

    def enter(self, container: Any) -> None:
        if type(container) in _MUTABLE:
            if id(container) in self._ids:
                raise OwnershipError(
                    f"the value at {describe(here())} has a {type(container).__name__} in it that holds itself, so "
                    "there is no end to what would have to be looked at. Put an object of a class of your own around "
                    "it: such an object is not looked into."
                )
            self._ids.add(id(container))

    def leave(self, container: Any) -> None:
        self._ids.discard(id(container))
