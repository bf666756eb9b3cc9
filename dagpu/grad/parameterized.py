"""`Parameterized`, a base class for trees of tensors, and the leaves of a tree."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar, cast

from dagpu.common.containers import Composite
from dagpu.common.places import describe, here, leaves_run
from dagpu.common.wrong_arguments import format_value
from dagpu.handles import HANDLES
from dagpu.ops.base import DeviceOp

_T = TypeVar("_T")
_U = TypeVar("_U")
_Leaf_co = TypeVar("_Leaf_co", covariant=True)


def _form(tree: Any) -> Any:
    """Return a tree with None in place of each leaf."""
    return tree.mapped(lambda _: None)


class Parameterized(Composite, Generic[_Leaf_co]):
    """A base class for a tree of tensors: a frozen dataclass that is generic in its leaves, with one method of one
    line::

        @dataclass(frozen=True)
        class Mlp(Parameterized[T]):
            w: T
            b: T

            def mapped(self, f: Callable[[T], U], /) -> "Mlp[U]":
                return Mlp(f(self.w), f(self.b))

    The gradient by an `Mlp[SharedTensor[f32]]` is one. `mapped` calls `f` once with each leaf, in one order; a part
    that is a `Parameterized` itself is mapped by its own: `self.block.mapped(f)`.
    """

    def mapped(self, f: Callable[[_Leaf_co], _U], /) -> "Parameterized[_U]":
        """Return the tree with `f(leaf)` in place of each leaf."""
        raise NotImplementedError(
            f"{type(self).__name__} has no mapped(f). Return the class itself of f(leaf) for each."
        )

    # What `Composite` asks for: leaves are found, moved and lent within values as in tuples.
    vars().update(
        _has_own_fields=False, _items=property(lambda self: tuple(flattened(self)[0])), _about=property(_form)
    )

    @classmethod
    def _made(cls, about: Any, items: tuple[Any, ...]) -> Any:
        rest = iter(items)
        return about.mapped(lambda _: next(rest))

    def _tokens(self, identity: Callable[[object], int]) -> tuple[Hashable, ...]:
        return _form_of(_form(self), identity)


def _form_of(part: object, identity: Callable[[object], int]) -> tuple[Hashable, ...]:
    """Return tokens of all that a tree has beside its leaves, which are None here."""
    if part is None or type(part) in (bool, int, float, str):
        return type(part).__name__, repr(part)
    found: list[Hashable] = [identity(type(part))]
    items: Iterable[object]
    if isinstance(part, tuple | list):
        items = part
    elif isinstance(part, Parameterized) and is_dataclass(part):
        items = [getattr(part, each.name) for each in fields(part)]
    else:
        return (*found, identity(part))
    for item in items:
        found.append(_form_of(item, identity))  # noqa: PERF401  # reason: a list of tuples of several types
    return tuple(found)


@leaves_run
def parameters(model: "Parameterized[_T] | Sequence[_T]") -> list[_T]:
    """Return the leaves of a tree, in the order in which `mapped` visits them."""
    found, _ = flattened(model)
    return found


@leaves_run
def zip_parameters(a: "Parameterized[_T]", b: "Parameterized[_U]") -> list[tuple[_T, _U]]:
    """Return the leaves of two trees of one form, in pairs.

    Raises:
        ValueError: they have different numbers of leaves.
    """
    first, second = parameters(a), parameters(b)
    if type(a) is not type(b) or len(first) != len(second):
        raise ValueError(
            f"zip_parameters at {describe(here())}: a {type(a).__name__} of {len(first)} leaves, and a "
            f"{type(b).__name__} of {len(second)}. Pass two of one class and form."
        )
    return list(zip(first, second, strict=True))


def flattened(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Return the leaves of a tree, and the function that makes a tree of that form of other leaves."""
    if isinstance(tree, Parameterized):
        leaves: list[Any] = []

        def keep(leaf: Any) -> Any:
            leaves.append(leaf)
            return leaf

        tree.mapped(keep)

        def mapped(others: list[Any]) -> Any:
            rest = iter(others)
            return tree.mapped(lambda _: next(rest))

        return leaves, mapped
    if isinstance(tree, tuple | list) and type(tree) not in HANDLES:
        parts = [flattened(each) for each in tree]
        made = cast("Callable[[Iterable[Any]], Any]", getattr(type(tree), "_make", type(tree)))

        def joined(others: list[Any]) -> Any:
            rest, found = list(others), []
            for inner, build in parts:
                found.append(build(rest[: len(inner)]))
                del rest[: len(inner)]
            return made(found)

        return [leaf for inner, _ in parts for leaf in inner], joined
    if is_dataclass(tree) and not isinstance(tree, type | DeviceOp):
        names = ", ".join(each.name for each in fields(tree))
        raise TypeError(
            f"{type(tree).__name__} at {describe(here())}, with the fields {names}, is no tree of tensors: "
            f"{format_value(tree)}. Derive it from Parameterized, and write its method mapped."
        )
    return [tree], lambda others: others[0]
