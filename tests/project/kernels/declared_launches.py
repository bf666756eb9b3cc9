"""A launch of each kernel that a module of the project declares, on small arrays: for checks of the CUDA texts."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Final

import numpy as np

from dagpu import DeviceOp, Kernel, from_host
from dagpu.backends.cuda.compile.compiler import declared_kernels
from dagpu.testing import KernelSpec

Arguments = dict[str, Any]
"""What a launch has in place of the usual: arrays, numbers, and by `tile` how its outputs are cut."""

GPU_ALONE: Final = {
    ("benchmarks.support.gpu_kernels", "spin"): "it reads a clock of the GPU by PTX",
    ("benchmarks.support.gpu_kernels", "*saxpy"): "its file has inline assembly",
    ("benchmarks.support.gpu_kernels", "*gemm"): "its file has inline assembly",
    ("tests.gpu.support.gpu_kernels", "spin"): "it reads a clock of the GPU by PTX",
    ("tests.gpu.support.gpu_kernels", "take"): "it reads at an address that no argument has",
    ("tests.gpu.support.gpu_kernels", "give"): "it writes at an address that no argument has",
    ("tests.gpu.support.gpu_kernels", "wild"): "it reads at an address that is nobody's",
    ("benchmarks.decoding", "sum_parts"): "its host body has the sum in other elements than the text",
}
"""The kernels that no check can run, and why. Those on pointers have a star before their names."""

SCRIPTS: Final = ("borrowed", "cuda_graphs", "diamond", "existing_cuda", "heat", "hello", "saxpy", "sgd_in_place")
"""The examples that are short enough to be run as they are."""


def _random(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(len(shape)).random(shape).astype(dtype)


def _bytes(*shape: int, dtype: Any = np.uint8) -> Any:
    return np.random.default_rng(len(shape)).integers(0, 256, shape).astype(dtype)


def _definite(edge: int, dtype: Any = np.float64) -> Any:
    x = _random(edge, edge, dtype=np.float64)
    return np.asarray(x @ x.T / edge + np.eye(edge), dtype)


_heads, _photo = _random(2, 70, 16), _bytes(9, 37, 3)
_row = _random(2, 70, 1)
_attention = {
    "q": _heads, "k": _heads[:, ::-1].copy(), "v": _heads + 1, "scale": 0.25, "causal": True, "tile": (1, 64, 16),
}  # fmt: skip
_slopes = {"g": _heads - 0.5, "sums": _row + 5, "dots": _row, **_attention}
_lower = np.linalg.cholesky(_definite(16))
_edge = np.eye(16, dtype=np.float32) + _random(16, 16) / 16
_square = {"x": _edge.T.copy(), "t": _edge, "tile": (16, 16)}
_product = {"c": np.zeros((64, 64), np.float32), "a": _random(64, 32), "b": _random(32, 64), "tile": (64, 64)}

ARGUMENTS: Final[dict[tuple[str, str], Arguments]] = {
    ("examples.cholesky.kernels", "factor"): {"a": _definite(32), "tile": (32, 32)},
    ("examples.cholesky.kernels", "solve"): {"x": _definite(16), "t": _lower, "tile": (16, 16)},
    ("examples.cholesky.kernels", "update"): {"tile": (16, 16)}
    | {name: _random(16, 16, dtype=np.float64) for name in "abc"},
    ("examples.dashboard", "scores"): {"z": _random(12), "x": _random(12, 40), "tile": (8,)},
    ("examples.decode.layers", "pick"): {
        "token": np.zeros(1, np.int32), "best": _random(50), "where": np.arange(50, dtype=np.int32), "tile": (1,),
    },
    ("examples.digits.kernels", "gemm"): {
        "c": np.zeros((20, 24), np.float32), "a": _random(20, 7), "b": _random(24, 7), "turn_a": False,
        "turn_b": True, "tile": (16, 16),
    },
    ("examples.flash_attention.gradient", "by_queries"): {"dq": _heads, **_slopes},
    ("examples.flash_attention.gradient", "by_keys"): {"dk": _heads, "dv": _heads, **_slopes},
    ("examples.flash_attention.kernels", "attention"): {"o": _heads, "sums": _row, **_attention},
    ("examples.life", "live"): {"now": _bytes(20, 70), "next": _bytes(20, 70), "tile": (16, 64)},
    ("examples.life", "paint"): {"picture": _bytes(20, 70), "board": _bytes(10, 35), "zoom": 2, "tile": (16, 64)},
    ("examples.photo.kernels", "blur_rows"): {"y": _bytes(9, 37, 3, dtype=np.uint16), "x": _photo, "tile": (8, 64, 3)},
    ("examples.photo.kernels", "blur_columns"): {
        "y": _photo, "x": _bytes(9, 37, 3, dtype=np.uint16), "tile": (8, 64, 3),
    },
    ("examples.photo.kernels", "sobel"): {"edges": _bytes(9, 37), "x": _photo, "gain": 6, "tile": (8, 64)},
    ("examples.photo.kernels", "develop"): {
        "y": _photo[3:], "x": _photo, "soft": _photo, "edges": _bytes(9, 37), "curve": _bytes(256), "above": 3,
        "tile": (8, 64, 3),
    },
    ("examples.shards", "clean"): {"y": _random(3, 64), "x": np.round(16 * _random(3, 64)), "tile": (2, 64)},
    ("examples.shards", "total"): {"y": _random(5), "x": _random(7, 5), "tile": (4,)},
    ("examples.shards", "centre"): {"y": _random(7, 5), "x": _random(7, 5), "total": _random(5), "rows": 7},
    ("benchmarks.support.gpu_kernels", "gemm"): _product,
    ("tests.programs.arithmetic", "weighed"): {"weights": _random(2)},
    ("tests.programs.arithmetic", "matmul"): {"z": _random(6, 8), "x": _random(6, 5), "y": _random(5, 8)},
    ("tests.programs.named_kernels", "gemm"): {
        "z": _bytes(6, 8, dtype=np.int32), "x": _bytes(6, 5, dtype=np.int32), "y": _bytes(8, 5, dtype=np.int32),
        "x_turned": False, "y_turned": True,
    },
    ("tests.programs.named_kernels", "potrf"): {"a": _definite(16, np.float32), "tile": (16, 16)},
    ("tests.programs.named_kernels", "getrf"): {"a": _definite(16, np.float32), "tile": (16, 16)},
    ("tests.programs.named_kernels", "trsm_right"): _square,
    ("tests.programs.named_kernels", "trsm_left"): _square,
    ("tests.programs.named_kernels", "subtract"): {"z": 100 * _edge, "x": _edge, "y": _edge.T.copy(), "turned": False},
}  # fmt: skip


def launched(module: str) -> Iterator[tuple[KernelSpec, DeviceOp[Any, Any, Any]]]:
    """Yield a launch of each kernel of a module that a check can run."""
    for kernel in declared_kernels(import_module(module)):
        if isinstance(kernel, Kernel) and (module, name_of(kernel.spec)) not in GPU_ALONE:
            yield kernel.spec, _launch(kernel, ARGUMENTS.get((module, kernel.spec.name), {}))


def name_of(spec: KernelSpec) -> str:
    """Return the name of a kernel in this module: on pointers with a star before it."""
    return "*" * (spec.abi == "pointers") + spec.name


def _launch(kernel: "Kernel[...]", given: Arguments) -> DeviceOp[Any, Any, Any]:
    spec, ops = kernel.spec, list[Any]()
    for param in spec.params:
        value = given.get(param.name)
        if param.dtype is None:
            ops.append(value if value is not None else _number(param.check))
            continue
        tile = given.get("tile", (8, 4, 4)[: param.rank])
        if value is None:
            value = (_random(*(20, 6, 10)[: param.rank or 1]) * 9).astype(param.dtype)
        tensor = from_host(value)
        if not param.form.is_written:
            ops.append(tensor)
        else:
            ops.append(tensor.partition(tile, partial=True))
    return kernel(*ops)


def _number(check: Callable[[object], object] | None) -> Any:
    """Return a number that a parameter takes."""
    for value in (2, True):
        try:
            if check is not None:
                check(value)
        except TypeError:
            continue
        return value
    raise AssertionError
