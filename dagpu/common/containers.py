"""Search and replacement of values inside tuples, lists and dicts that are nested to any depth.

Search and replacement share one traversal, so both find the same handles and stand-ins. A named tuple counts as a tuple
and keeps its class, and so does a `Composite`, a class of dagpu's own. A subclass of list or dict is a value, like any
other object: it is not searched. The traversal is iterative, because zips of zips build tuples as deep as a program is
long.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from operator import attrgetter
from typing import Any, ClassVar, Final, NoReturn

from dagpu.common.errors import OwnershipError
from dagpu.common.places import describe, here


class Composite:
    """A value of dagpu's own that consists of other values. It is searched and replaced like a tuple of its items."""

    __slots__ = ("_about", "_items")

    _has_own_fields: ClassVar[bool] = True
    """True if values of the class are these two fields and nothing else, which the compiled reader reads and sets. A
    class that computes them, or makes its values in another way, says False."""

    def __init__(self, about: Any, items: tuple[Any, ...]) -> None:
        self._about = about
        """The rest of the value. It is immutable, and contains no handles."""
        self._items = items

    @classmethod
    def _made(cls, about: Any, items: tuple[Any, ...]) -> Any:
        """Return a value of this class with other items."""
        return cls(about, items)

    def _tokens(self, identity: Callable[[object], int]) -> tuple[Hashable, ...]:
        """Return tokens for a cache key, equal for two values exactly if no program can distinguish them apart from
        their items. `identity` returns the token of an immutable object that is compared by identity."""
        return (identity(self._about),)


about_of: Final[Callable[[Composite], Any]] = attrgetter("_about")
items_of: Final[Callable[[Composite], tuple[Any, ...]]] = attrgetter("_items")
own_fields_of: Final[Callable[[type[Composite]], bool]] = attrgetter("_has_own_fields")
tokens_of: Final[Callable[[Composite], Callable[..., tuple[Hashable, ...]]]] = attrgetter("_tokens")
"""Return the method of a value that returns its tokens."""

made_by: Final[Callable[[type[Composite]], Callable[[Any, tuple[Any, ...]], Any]]] = attrgetter("_made")
"""Return the function that makes a value of a class of what it is about and its items."""

_MUTABLE: Final = frozenset((list, dict))
"""The container types through which a container can contain itself."""
_SEARCHED: Final = (tuple, Composite)
"""The classes of the other containers."""


def is_container(value: Any) -> bool:
    """Return true for a container that is searched. It asks the type: a stand-in has the `__class__` of another one."""
    kind = type(value)
    return kind in _MUTABLE or issubclass(kind, _SEARCHED)


def map_values(
    change: Callable[[Any], Any],
    value: Any,
    kinds: Collection[type[Any]] | None = None,
    change_key: Callable[[Any], Any] | None = None,
) -> Any:
    """Return `value` with `change` applied to each value in it, from left to right.

    With `kinds`, only values of these types change. The keys of a dict stay, unless `change_key` is given.

    An unchanged tuple is returned itself. Lists and dicts are always copied, because the caller may mutate the
    originals.

    Raises:
        OwnershipError: a list or dict contains itself.
    """
    if not is_container(value):
        return change(value) if kinds is None or type(value) in kinds else value
    above: list[tuple[Any, Iterator[Any], list[Any]]] = []
    path: set[int] = set()
    made: list[Any] = []
    container, rest = value, _iterate_items(value, path)
    while True:
        for item in rest:
            kind = type(item)
            if kind is tuple or kind in _MUTABLE or issubclass(kind, _SEARCHED):
                above.append((container, rest, made))
                container, rest, made = item, _iterate_items(item, path), []
                break
            made.append(change(item) if kinds is None or kind in kinds else item)
        else:
            if type(container) in _MUTABLE:
                path.discard(id(container))
            if type(container) is dict and change_key is not None:
                container = dict.fromkeys(map(change_key, container))
            done = rebuild(container, made)
            if not above:
                return done
            container, rest, made = above.pop()
            made.append(done)


_COPIED: Final = frozenset((set, bytearray))
"""The types of values beside lists and dicts that can be changed in place, and that are copied."""


def own_containers(value: Any) -> Any:
    """Return a value for one of several that are given it, with lists, dicts, sets and bytearrays of its own.

    So what one of them changes in place, no other one sees. Objects of other classes are the same for all.
    """
    if type(value) in _COPIED or is_container(value):
        return map_values(_own_copy, value, _COPIED)
    return value


def _own_copy(item: Any) -> Any:
    return type(item)(item)


def values_in(value: Any) -> Iterator[Any]:
    """Yield each value in `value`, from left to right; `value` itself if it is not a container.

    Raises:
        OwnershipError: a list or dict contains itself.
    """
    if not is_container(value):
        yield value
        return
    path: set[int] = set()
    open_containers = [(value, _iterate_items(value, path))]
    while open_containers:
        container, rest = open_containers[-1]
        for item in rest:
            if is_container(item):
                open_containers.append((item, _iterate_items(item, path)))
                break
            yield item
        else:
            path.discard(id(container))
            open_containers.pop()


def contents_of(container: Any) -> Iterator[Any]:
    """Yield everything by which two containers of one type can differ: the keys of a dict, and the items."""
    if type(container) is dict:
        yield from container
        yield from container.values()
    elif isinstance(container, Composite):
        yield about_of(container)
        yield from items_of(container)
    else:
        yield from container


def _iterate_items(container: Any, path: set[int]) -> Iterator[Any]:
    """Return an iterator over the items of a container.

    `path` holds the ids of the lists and dicts that enclose the container; its own id is added.
    """
    if type(container) in _MUTABLE:
        if id(container) in path:
            _refuse_cycle(container)
        path.add(id(container))
    items: Iterable[Any] = container
    if type(container) is dict:
        items = container.values()
    elif isinstance(container, Composite):
        items = items_of(container)
    return iter(items)


def rebuild(container: Any, items: list[Any]) -> Any:
    """Return a container of the same class with other items."""
    kind = type(container)
    if kind is list:
        return items
    if kind is dict:
        return dict(zip(container, items, strict=True))
    for new, old in zip(items, items_of(container) if isinstance(container, Composite) else container, strict=True):
        if new is not old:
            break
    else:
        return container
    if kind is tuple:
        return tuple(items)
    if isinstance(container, Composite):
        return made_by(kind)(about_of(container), tuple(items))
    # The class is not called, because its constructor may take other arguments than the items.
    made = tuple.__new__(kind, items)
    more = getattr(container, "__dict__", None)
    if more:
        made.__dict__.update(more)
    return made


def _refuse_cycle(container: Any) -> NoReturn:
    """Raise the `OwnershipError` for a list or dict that contains itself."""
    raise OwnershipError(
        f"the value at {describe(here())} has a {type(container).__name__} in it that contains itself, so a search of "
        "it would not end. Wrap it in an object of a class of your own: dagpu does not search such objects."
    )
