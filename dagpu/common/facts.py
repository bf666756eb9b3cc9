"""What a checker of programs must know of the public API and types do not say: what moves a handle, what lends it.

A fact names a class, a function or a method as a program does: `Tensor.partition`, `array.matmul`, `interop.extent`.
dagpu.mypy_plugin reads this module, and a test holds each fact against the library. It imports nothing of dagpu: mypy
loads the plugin, and must not wait for NumPy and trio.
"""

import ast
from functools import cache
from pathlib import Path
from typing import Final

MOVES_SELF: Final = {
    "Tensor.partition": "partition()",
    "Tensor.share": "share()",
    "Tensor.reshape": "reshape()",
    "Tensor.to_host": "to_host()",
    "SharedTensor.try_unwrap": "try_unwrap()",
    "TensorMut.partition": "partition()",
    "TensorMut.reshape": "reshape()",
    "TensorMut.to_host": "to_host()",
    "Partition.unpartition": "unpartition()",
    "Sharded.to_host": "to_host()",
}
"""Methods that move the handle they are called on, each with the words of the run-time error."""

LENDS_SELF: Final = {
    "Tensor.borrow": False,
    "Tensor.view": False,
    "Tensor.slice": False,
    "Tensor.borrow_mut": True,
    "Sharded.borrow": False,
}
"""Methods that borrow the handle they are called on; True for a borrow for writing."""

NEVER_RAISES: Final = ("Tensor.borrow", "Tensor.borrow_mut", "SharedTensor.clone", "SharedTensor.to_host")
"""Methods that raise only `MovedError`."""

RUNS: Final = ("DeviceOp.sync", "DeviceOp.sync_on", "DeviceOp.__await__")
"""Methods that run an op."""

REMEMBERS: Final = ("DeviceOp.shared", "DeviceOp.unzip", "KernelOp.unzip")
"""Methods that return ops which remember: they run their source once, and may themselves run several times."""

RUN_AGAIN: Final = (*REMEMBERS, "source")
"""Functions whose ops may run several times, whatever moves into them."""

USED_AGAIN: Final = (*RUN_AGAIN, "value", "cutoff", "Pipeline.__call__")
"""Functions whose ops may be used several times in one run, or that give back an op of their argument."""

LENDS_FOR_BLOCK: Final = {"lend": False, "lend_mut": True}
"""Functions that lend an array of another library for a block; True for a loan for writing."""

OUTLASTS_FEED: Final = ("Feed.stats", "Feed.origin")
"""Attributes of a feed that remain after its block."""

READS_ONLY: Final = ("interop.extent", "interop.new", "array.zeros_like", "array.ones_like", "array.full_like")
"""Functions that only read their arguments: shapes and element types."""

MAKES_SHAPE: Final = ("empty", "zeros", "ones", "full", "rand", "randn")
"""Functions that make a tensor of the shape that is their first argument."""

COPIES_SHAPE: Final = ("dup", "convert", "fill")
"""Functions that give back a tensor of the shape of their first argument."""

PLAIN: Final = ("Device", "f32", "Tile", "Kernel", "Pending")
"""Classes whose modules have only classes that hold handles through their type arguments, if at all."""


PUBLIC: Final = "dagpu.entry.public"
"""The module whose imports lead to every public name."""
_PACKAGE: Final = Path(__file__).resolve().parents[1]


def full_name(name: str) -> str:
    """Return the full name of what a program calls `Tensor.partition`: `dagpu.handles.tensors.Tensor.partition`.

    The imports of the public module, and those of packages, lead to the module that defines it. So what a fact names
    may move to another module.

    Raises:
        LookupError: nothing of this name is public.
    """
    first, *rest = name.split(".")
    home, found = _imports(PUBLIC).get(first, ("dagpu", first))
    while _is_package(home) and (inner := _imports(home).get(found)) is not None:
        home, found = inner
    whole = f"{home}.{found}"
    if _file(whole) is None:
        if home == "dagpu":
            raise LookupError(f"{name} is not public")
        return ".".join((whole, *rest))
    if not rest:
        return whole
    home, found = _imports(whole).get(rest[0], (whole, rest[0]))
    return ".".join((home, found, *rest[1:]))


def module_of(name: str) -> str:
    """Return the module that defines a public class."""
    return full_name(name).rpartition(".")[0]


def _is_package(module: str) -> bool:
    file = _file(module)
    return file is not None and file.stem == "__init__"


@cache
def _file(module: str) -> Path | None:
    """Return the file of a module of dagpu; None if there is none."""
    path = _PACKAGE.joinpath(*module.split(".")[1:])
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def _imports(module: str) -> dict[str, tuple[str, str]]:
    """Return what a module imports from others: the module and the name there, by the name here."""
    file = _file(module)
    if file is None:
        return {}
    found = [node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in found
        for alias in node.names
        if node.module is not None
    }
