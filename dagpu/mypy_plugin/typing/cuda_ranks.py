"""Parses the ranks of the kernel parameters from a literal CUDA source.

It parses far less than the run time does in `dagpu.kernels.cuda_source.cuda_signature`, which the plugin may not
import. The run time refuses a source that it cannot parse; this module ignores it. Only a parameter that is written out
as `Tile<T, 2>` or `View<const T, 2>` has a known rank. A parameter behind an alias or a macro has none.
"""

import re
from typing import TypeAlias

Ranks: TypeAlias = tuple[int | None, ...]
"""The rank of each parameter in order; None for a scalar and for an unknown rank."""

_SKIPPED = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
_MACRO = re.compile(r"^\s*#\s*define\s+(\w+)", re.MULTILINE)
_KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\s*\([^()]*\)\s*)?(\w+)\s*\(([^()#]*)\)\s*[{;]")
_TENSOR = re.compile(r"(?:const\s+)?(?:(?:::\s*)?dagpu\s*::\s*)?(?:Tile|View)\s*<[^<>]*,\s*([1-9]\d*)\s*>\s*\w*")


def kernel_ranks(source: str) -> dict[str, Ranks]:
    """Return the parameter ranks of each kernel by name. Kernels declared more than once are left out."""
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
    """Split a parameter list at the commas outside `<...>`."""
    parts = [part.strip() for part in re.split(r",(?![^<>]*>)", inside)]
    return [] if parts in ([""], ["void"]) else parts


def _rank(parameter: str) -> int | None:
    whole = _TENSOR.fullmatch(parameter)
    return None if whole is None else int(whole[1])
