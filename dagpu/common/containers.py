"""Values inside tuples, lists and dicts, however deep: search and replacement.

Search and replacement share one walk, so both find the same handles and stand-ins. A named tuple counts as a tuple, of
its own class; a subclass of list or dict, or any other object, is a value like a number: it is not searched. The walk
uses no recursion: zips of zips make tuples as deep as a program is long.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final, NoReturn

from dagpu.common.errors import OwnershipError
from dagpu.common.origin import describe, here

_MUTABLE: Final = frozenset((list, dict))
"""Only through these types can a container contain itself."""


def is_container(value: Any) -> bool:
    """True for a container that is searched."""
    return type(value) in _MUTABLE or isinstance(value, tuple)


def mapped(
    change: Callable[[Any], Any],
    value: Any,
    kinds: Collection[type[Any]] | None = None,
    change_key: Callable[[Any], Any] | None = None,
) -> Any:
    """`value` with `change` applied to each value in it, or to each of these `kinds`, from left to right; a dict's keys
    stay, unless there is a `change_key` for them.

    A tuple in which nothing has changed is given back as it is. Lists and dicts are new ones, because
    the caller may change those that were given.

    Raises:
        OwnershipError: a list or dict holds itself.
    """
    if not is_container(value):
        return change(value) if kinds is None or type(value) in kinds else value
    above: list[tuple[Any, Iterator[Any], list[Any]]] = []
    path: set[int] = set()
    container, rest, made = value, _inside(value, path), list[Any]()
    while True:
        for item in rest:
            kind = type(item)
            if kind is tuple or kind in _MUTABLE or isinstance(item, tuple):
                above.append((container, rest, made))
                container, rest, made = item, _inside(item, path), []
                break
            made.append(change(item) if kinds is None or kind in kinds else item)
        else:
            if type(container) in _MUTABLE:
                path.discard(id(container))
            if type(container) is dict and change_key is not None:
                container = dict.fromkeys(map(change_key, container))
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
    path: set[int] = set()
    open_containers = [(value, _inside(value, path))]
    while open_containers:
        container, rest = open_containers[-1]
        for item in rest:
            if is_container(item):
                open_containers.append((item, _inside(item, path)))
                break
            yield item
        else:
            path.discard(id(container))
            open_containers.pop()


def _inside(container: Any, path: set[int]) -> Iterator[Any]:
    """The items of a container. `path` has the ids of the lists and dicts on the way from the outermost one to it."""
    if type(container) in _MUTABLE:
        if id(container) in path:
            _refuse_loop(container)
        path.add(id(container))
    items: Iterable[Any] = container.values() if type(container) is dict else container
    return iter(items)


def _rebuilt(container: Any, items: list[Any]) -> Any:
    """A container with other items."""
    kind = type(container)
    if kind is list:
        return items
    if kind is dict:
        return dict(zip(container, items, strict=True))
    for new, old in zip(items, container, strict=True):
        if new is not old:
            break
    else:
        return container
    if kind is tuple:
        return tuple(items)
    # Its class is not called: that may want other arguments than the items.
    made = tuple.__new__(kind, items)
    more = getattr(container, "__dict__", None)
    if more:
        made.__dict__.update(more)
    return made


def _refuse_loop(container: Any) -> NoReturn:
    raise OwnershipError(
        f"the value at {describe(here())} has a {type(container).__name__} in it that holds itself, so there is no end "
        "to what would have to be looked at. Put an object of a class of your own around it: such an object is not "
        "looked into."
    )
