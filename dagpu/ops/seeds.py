"""Seeds of random numbers: their check, and `fold_in`, which makes further seeds of one."""

from collections.abc import Callable
from typing import Any, TypeAlias, cast, overload

from dagpu.common.errors import ShapeError
from dagpu.common.places import Origin, here, leaves_run
from dagpu.common.wrong_arguments import as_whole_number, wrong_argument
from dagpu.handles.symbolic import SymbolicNumber, read_value
from dagpu.ops.base import DeviceOp
from dagpu.ops.compose import ByResults, Map, Then, Value, Zip
from dagpu.ops.initializers import FOLD_STREAM, SEED_COUNT

AnyOp: TypeAlias = DeviceOp[Any, Any, Any]
Seed: TypeAlias = int | DeviceOp[int, Any, Any]
"""A seed: a whole number, or a source or an op whose value is one."""

_WORD = (1 << 32) - 1


@overload
def fold_in(seed: int, data: int) -> int: ...
@overload
def fold_in(seed: DeviceOp[int, Any, Any], data: Seed) -> DeviceOp[int, Any]: ...
@overload
def fold_in(seed: int, data: DeviceOp[int, Any, Any]) -> DeviceOp[int, Any]: ...
@leaves_run
def fold_in(seed: Any, data: Any) -> Any:
    """Return a seed that is made of another one and a number: of a step, a layer, a device.

    Seeds of one `seed` and different `data` are different, and what is drawn from them is independent of each other and
    of `seed`. So a program has one seed, and each place that draws folds in a number of its own; a seed that was made
    so can be folded again. One pair makes the same seed on every machine.

    The seed is w0 + w1 * 2**32, of the words of Philox 4x32-10 (Salmon et al., SC'11) with the key `seed` and the
    counter (data mod 2**32, data // 2**32 mod 2**32, 0, 4). No function that draws has 4 for the last word.

    Args:
        seed: any whole number, taken modulo 2**64, or a source or an op whose value is one.
        data: as `seed`.

    Returns:
        A whole number from 0 to 2**64 - 1; of a source or an op, an op whose value it is. In a pipeline an argument is
        read for it, so that the plan serves this argument alone: fold before the call, and pass what it makes.

    Raises:
        ShapeError: one of them is not a whole number.
    """
    origin = here()
    if not isinstance(seed, DeviceOp) and not isinstance(data, DeviceOp):
        return _folded(_whole(seed, "seed", "fold_in", origin), _whole(data, "data", "fold_in", origin))

    def fold(both: tuple[Any, Any]) -> Any:
        return fold_in(*both)

    sources = tuple([each if isinstance(each, DeviceOp) else Value(each, origin) for each in (seed, data)])
    return Map(Zip(sources, origin), fold, origin)


def _folded(seed: int, data: int) -> int:
    """Return `fold_in` of whole numbers from 0 to 2**64 - 1."""
    w0, w1, w2, w3 = data & _WORD, data >> 32, 0, FOLD_STREAM
    k0, k1 = seed & _WORD, seed >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * w0, 0xCD9E8D57 * w2
        w0, w1, w2, w3 = p1 >> 32 ^ w1 ^ k0, p1 & _WORD, p0 >> 32 ^ w3 ^ k1, p0 & _WORD
        k0, k1 = k0 + 0x9E3779B9 & _WORD, k1 + 0xBB67AE85 & _WORD
    return w0 | w1 << 32


def check_seed(seed: Any, what: str, origin: Origin) -> int | None:
    """Return a seed for a recipe, modulo 2**64. A symbolic seed is returned as it is: each run has its own value."""
    given: Any = seed
    if seed is None or (type(seed) is SymbolicNumber and isinstance(given, int)):
        return cast("int | None", seed)
    return _whole(seed, "seed", what, origin)


def with_seed(seed: Any, what: str, build: Callable[[int | None], AnyOp], origin: Origin) -> AnyOp:
    """Return the op that `build` makes of a checked seed. If the seed is a source or an op, its run chooses it.

    Raises:
        ShapeError: it is not a whole number.
    """
    if not isinstance(seed, DeviceOp):
        return build(check_seed(seed, what, origin))

    def chosen(value: Any) -> AnyOp:
        return build(check_seed(value, what, origin))

    return Then(seed, ByResults(chosen, what), origin)


def _whole(given: Any, name: str, what: str, origin: Origin) -> int:
    number = as_whole_number(read_value(given))
    if number is None:
        cure = "Write seed=17, say, or leave it out: each run draws one then"
        if what == "fold_in":
            cure = "Pass it, fold_in(17, 3), say, or a source or an op whose value it is"
        raise wrong_argument(what, origin, name, given, "a whole number", cure, ShapeError)
    return number % SEED_COUNT
