"""What a literal CUDA source says of its kernels: the rank of each parameter.

Far less than the run time reads of it (`dagpu.cuda_signature`, which the plugin may not import), and with another
duty: there, what cannot be read is refused; here, it is left alone. Only a parameter that is spelt out as `Tile<T, 2>`
or `View<const T, 2>` has a known rank; one behind an alias or a macro has none.
"""

import re
from typing import TypeAlias

Ranks: TypeAlias = tuple[int | None, ...]
"""The rank of each parameter in order; None where it is a scalar or cannot be told."""

_SKIPPED = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
_MACRO = re.compile(r"^\s*#\s*define\s+(\w+)", re.MULTILINE)
_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\s*\([^()]*\)\s*)?(\w+)\s*\(([^()#]*)\)\s*[{;]")
_TENSOR = re.compile(r"(?:const\s+)?(?:(?:::\s*)?dagpu\s*::\s*)?(?:Tile|View)\s*<[^<>]*,\s*([1-9]\d*)\s*>\s*\w*")


def kernel_ranks(source: str) -> dict[str, Ranks]:
    """The kernels of a source by name, with the ranks of their parameters; but those that are declared once."""
    code = _SKIPPED.sub(" ", source)
    macros = frozenset(_MACRO.findall(code))
    found: list[tuple[str, str]] = _KERNEL.findall(code)
    kernels = [name for name, _ in found]
    return {
        name: tuple(map(_rank, _parameters(inside)))
        for name, inside in found
        if kernels.count(name) == 1 and macros.isdisjoint(re.findall(r"\w+", inside))
    }


def _parameters(inside: str) -> list[str]:
    """Cut at the commas outside `<...>`."""
    parts = [part.strip() for part in re.split(r",(?![^<>]*>)", inside)]
    return [] if parts in ([""], ["void"]) else parts


def _rank(parameter: str) -> int | None:
    whole = _TENSOR.fullmatch(parameter)
    return None if whole is None else int(whole[1])
