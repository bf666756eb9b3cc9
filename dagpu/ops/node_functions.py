"""The functions that `Map` and `Then` apply for fluent methods and pipelines: data, so that a plan can be found by the
structure of an op."""

import itertools
from collections.abc import Callable
from typing import Any, Final, Protocol, final

from dagpu.common.errors import ShapeError
from dagpu.common.frozen import frozen, plain
from dagpu.common.origin import Origin, describe
from dagpu.common.wrong_arguments import format_value
from dagpu.handles import HANDLES, partition_handle, reshape_handle, share_tensor, unpartition_handle
from dagpu.ops.base import DeviceOp


class Builtin(Protocol):
    """A built-in function on handles. Its errors name `where`, the place of the user's call."""

    def apply(self, x: Any, where: Origin, /) -> Any: ...


@final
@plain
class Cut:
    """The function `t.partition(tile)`."""

    tile: Any
    partial: bool

    def apply(self, t: Any, where: Origin) -> Any:
        return partition_handle(t, self.tile, self.partial, where)


@final
@plain
class Reshape:
    """The function `t.reshape(shape)`."""

    shape: Any

    def apply(self, t: Any, where: Origin) -> Any:
        return reshape_handle(t, self.shape, where)


@final
@plain
class Uncut:
    """The function `p.unpartition()`."""

    def apply(self, p: Any, where: Origin) -> Any:
        return unpartition_handle(p, where)


@final
@plain
class Share:
    """The function `t.share()`."""

    def apply(self, t: Any, where: Origin) -> Any:
        return share_tensor(t, where)


@final
@plain
class Item:
    """The function that returns one component of a tuple."""

    index: int

    def apply(self, x: Any, where: Origin) -> Any:
        call = "last()" if self.index else "first()"
        if type(x) in HANDLES:
            raise ShapeError(
                f"{call} at {describe(where)}: the result of the op is one {type(x).__name__}, not a tuple. Leave "
                f"{call} out."
            )
        try:
            return x[self.index]
        except (TypeError, LookupError):
            raise ShapeError(
                f"{call} at {describe(where)}: the result of the op is {format_value(x)}, which has no components. "
                f"Leave {call} out, or let the op return a tuple that has some."
            ) from None


@final
@plain
class Outputs:
    """The function that returns the outputs of a launch, its arguments from number `first` on, as whole tensors."""

    first: int

    def apply(self, x: Any, where: Origin) -> Any:
        return tuple([unpartition_handle(each, where) for each in x[self.first :]])


@final
@plain
class Components:
    """The function that returns a tuple itself. The structure of the op shows the number of its components."""

    count: int

    def apply(self, x: Any, where: Origin) -> Any:
        return x


@final
@plain
class Inspect:
    """The function that calls the user's `f` with a value, and returns that value."""

    f: Callable[[Any], object]


@final
@frozen
class Pure:
    """The function of a pipeline. The user promises that its result depends on its arguments alone.

    A trace of the function may be used again for other arguments. A pipeline has one `Pure`, which all its calls share.
    """

    f: Callable[..., DeviceOp[Any, Any, Any]]
    number: int
    """The number of the pipeline. No other pipeline in the process has it."""
    name: str
    """The pipeline in messages: its name and the place of its declaration."""
    plans: Any
    """The plans of the pipeline: a `PlanCache` of dagpu.runtime.plan_cache."""

    def __repr__(self) -> str:
        return self.name

    def __call__(self, arguments: tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]) -> DeviceOp[Any, Any, Any]:
        return self.f(*arguments[0], **dict(arguments[1]))


pipeline_numbers: Final = itertools.count()

FIRST, LAST, UNCUT, SHARE = Item(0), Item(-1), Uncut(), Share()
BUILT_IN = frozenset((Cut, Reshape, Uncut, Share, Item, Outputs, Components))
