"""Stand-ins for the modules of Triton, Numba and cuTile.

They give what a version of the library once gave, and note what they were asked for.
"""

import base64
import ctypes
import inspect
import json
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final, final

import numpy as np
import pytest

RECORDED: Final = Path(__file__).with_name("recorded")
TRITON: Final = sorted(RECORDED.glob("triton-*.json"))
NUMBA: Final = max(RECORDED.glob("numba-*.json"))
CUTILE: Final = max(RECORDED.glob("cutile-*.json"))


@final
class CompilationError(Exception):
    """What Triton raises. Its module has Triton's name."""


CompilationError.__module__ = "triton.compiler.errors"


@final
class Jit:
    """What `@triton.jit` makes: its parameters, and the name of the recorded kernel."""

    def __init__(self, name: str | Callable[..., None], names: Sequence[str] = (), **defaults: object) -> None:
        self.name = name
        named = inspect.signature(name).parameters if callable(name) else names
        self.params = [_parameter(each, defaults) for each in named]


def _parameter(name: str, defaults: dict[str, object]) -> Any:
    return SimpleNamespace(
        name=name, is_constexpr=name.isupper(), do_not_specialize=False, do_not_specialize_on_alignment=False,
        annotation_type="", has_default=name in defaults, default=defaults.get(name),
    )  # fmt: skip


@final
class FakeTriton:
    """The module, and its notes."""

    def __init__(self, recorded: Path) -> None:
        self.recorded: dict[str, Any] = json.loads(recorded.read_text())
        self.sources: list[tuple[Any, Any, dict[str, Any]]] = []
        """Source, target and options of each compilation."""
        self.refuses = ""
        """The message with which the next compilations are refused."""
        self.about: dict[str, object] = {}
        """Changes of the metadata that compilations give."""

    def compile(self, source: Any, target: Any, options: dict[str, Any]) -> Any:
        if self.refuses:
            raise CompilationError(self.refuses)
        self.sources.append((source, target, options))
        axpy = self.recorded["axpy"]
        about = {key: axpy[key] for key in ("name", "num_warps", "shared")} | {"num_warps": options["num_warps"]}
        asm = {"ttir": self.recorded["kernels"][source.fn.name]["ttir"], "cubin": base64.b64decode(axpy["cubin"])}
        return SimpleNamespace(asm=asm, metadata=SimpleNamespace(**about | self.about))


@final
class InterpreterError(Exception):
    """What Triton's interpreter raises for an error in a kernel."""


@final
class InterpretedFunction:
    """What `@triton.jit` makes under TRITON_INTERPRET=1: it calls the function for each program."""

    def __init__(self, fn: Callable[..., None]) -> None:
        self.fn = fn

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            for place in np.ndindex(*grid):
                sys.modules["triton.runtime.interpreter"].interpreter_builder.grid_idx = place
                try:
                    self.fn(**given)
                except Exception as error:
                    raise InterpreterError(repr(error)) from error

        return run


def _loaded(pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
    size = np.dtype(dtype).itemsize
    found = [np.frombuffer(ctypes.string_at(int(at), size), dtype)[0] for at in pointers[mask]]
    result = np.array(other, dtype)
    result[mask] = found
    return result


def _stored(pointers: Any, values: Any, mask: Any) -> None:
    for at, value in zip(pointers[mask], values[mask], strict=True):
        ctypes.memmove(int(at), value.tobytes(), values.itemsize)


def interpreter() -> dict[str, Any]:
    """Return the members of `triton.runtime.interpreter`: tensors, and functions that access memory."""
    return {
        "tl": SimpleNamespace(
            str_to_ty=lambda name, _: name, tensor=lambda handle, kind: SimpleNamespace(handle=handle, type=kind)
        ),
        "TensorHandle": lambda data, kind: SimpleNamespace(data=data, dtype=kind),
        "interpreter_builder": SimpleNamespace(grid_idx=(0, 0, 0)),
        "_interpreter": SimpleNamespace(
            load=_loaded, store=_stored, RMW_OP="its operations",
            atomic_rmw=lambda _operation, pointers, values, mask, _order: _stored(pointers, values, mask),
            atomic_cas=lambda pointers, _compared, values, _order: _stored(pointers, values, values == values),
        ),
    }  # fmt: skip


@contextmanager
def installed_triton(recorded: Path) -> Iterator[FakeTriton]:
    """Within the `with` block the module `triton` is a stand-in with these results."""
    fake = FakeTriton(recorded)
    parts = {
        "triton": {"JITFunction": Jit, "__version__": fake.recorded["version"], "compile": fake.compile},
        "triton.compiler": {"ASTSource": SimpleNamespace},
        "triton.runtime": {},
        "triton.runtime.interpreter": interpreter(),
        "triton.backends": {},
        "triton.backends.compiler": {"GPUTarget": lambda *given: given},
    }
    with _modules(parts):
        yield fake


@contextmanager
def _modules(parts: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Within the `with` block these modules, and none else of their packages, can be imported."""
    packages = {name.partition(".")[0] for name in parts}
    with pytest.MonkeyPatch.context() as patch:
        for name in [each for each in sys.modules if each.partition(".")[0] in packages]:
            patch.delitem(sys.modules, name)
        for name, members in parts.items():
            module: Any = ModuleType(name)
            module.__path__ = []
            vars(module).update(members)
            patch.setitem(sys.modules, name, module)
        yield


@final
class Refusal(Exception):
    """What Numba and cuTile raise, under the name of their modules."""


@contextmanager
def installed_numba(recorded: Path) -> Iterator[list[tuple[Any, ...]]]:
    """Within the `with` block the modules of Numba, and of NVIDIA's linker, are stand-ins with these results. Gives the
    signatures that were compiled."""
    axpy = json.loads(recorded.read_text())["axpy"]
    cubin, signatures = base64.b64decode(axpy["cubin"]), []
    Refusal.__module__ = "numba.core.errors"

    def compiled(function: Any, signature: tuple[Any, ...], **options: Any) -> tuple[str, None]:
        if "refused" in function.__name__:
            raise Refusal("No implementation of function setitem")
        if "outdated" in function.__name__:
            raise AttributeError("module 'numpy' has no attribute 'row_stack'")  # 0.30.4 with NumPy 2.5
        assert (options["device"], options["abi"], options["cc"]) == (False, "numba", (9, 0))
        signatures.append(signature)
        return f".visible .entry {axpy['name']}(\n", None

    def give(handle: int, target: bytearray) -> None:
        target[:] = cubin

    linker = {
        "create": lambda count, options: 1, "add_data": lambda *given: None, "complete": lambda handle: None,
        "get_linked_cubin_size": lambda handle: len(cubin), "get_linked_cubin": give,
        "destroy": lambda handle: None, "InputType": SimpleNamespace(PTX=1),
    }  # fmt: skip

    def array(dtype: str, rank: int, layout: str, *, readonly: bool) -> str:
        return f"{'readonly ' if readonly else ''}{dtype}[{rank}{layout}]"

    numba = {"types": SimpleNamespace(Array=array), "from_dtype": lambda dtype: dtype.name}
    parts: dict[str, dict[str, Any]] = {
        "numba": numba,
        "numba.cuda": {"compile": compiled},
        "cuda": {},
        "cuda.bindings": {},
    }
    parts["cuda.bindings.nvjitlink"] = linker
    with _modules(parts):
        yield signatures


def need_numba() -> None:
    """Skip a test where Numba is missing, or knows an older NumPy, as numba-cuda 0.30.4 does where NumPy is 2.5."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import_module("numba.cuda.np.arrayobj")
        except (ImportError, AttributeError) as error:
            pytest.skip(f"Numba cannot be imported: {error}")


def need_cutile() -> None:
    """Skip a test where cuTile or its compiler is missing."""
    pytest.importorskip("cuda.tile")
    wheels = find_spec("nvidia")
    folders = [] if wheels is None else wheels.submodule_search_locations or []
    places = [None, *[f"{folder}/cu13/bin" for folder in folders]]
    if not any(shutil.which("tileiras", path=place) for place in places):
        pytest.skip("cuTile's compiler, tileiras, is not installed")


@final
class Tile:
    """What `@cuda.tile.kernel` makes."""

    def __init__(self, function: Any, constants: Sequence[str]) -> None:
        self._pyfunc = function
        signature = inspect.signature(function)
        nodes = [SimpleNamespace(constant=name in constants) for name in signature.parameters]
        self._annotated_function = SimpleNamespace(pysig=signature, parameter_annotations=nodes)


Tile.__module__ = "cuda.tile._execution"


@contextmanager
def installed_cutile(recorded: Path) -> Iterator[list[Any]]:
    """Within the `with` block the modules of cuTile are stand-ins with these results. Gives the signatures that were
    compiled: for each parameter what its constraint was made of."""
    axpy = json.loads(recorded.read_text())["axpy"]
    signatures: list[Any] = []
    Refusal.__module__ = "cuda.tile._exception"

    def export(kernel: Any, given: Sequence[Any], output: Any, *, gpu_code: str, output_format: str) -> None:
        if "refused" in kernel._pyfunc.__name__:  # noqa: SLF001  # as cuTile names it
            raise Refusal("tile is not a power of two")
        if "no_compiler" in kernel._pyfunc.__name__:  # noqa: SLF001
            raise FileNotFoundError("'tileiras' compiler not found")
        assert (gpu_code, output_format, given[0][2]) == ("sm_90", "cubin", axpy["name"])
        signatures.append(given[0][0])
        output.write(base64.b64decode(axpy["cubin"]))

    def array(dtype: str, rank: int, **about: Any) -> tuple[Any, ...]:
        return dtype, rank, about["stride_constant"], about["stride_lower_bound_incl"], about["base_addr_divisible_by"]

    compilation = {
        "export_kernel": export, "ConstantConstraint": lambda value: value, "ScalarConstraint": lambda dtype: dtype,
        "ArrayConstraint": array, "CallingConvention": SimpleNamespace(cutile_python_v2=lambda: "v2"),
        "KernelSignature": lambda constraints, convention, symbol: (constraints, convention, symbol),
    }  # fmt: skip
    types = {name: name for name in ("float32", "int32", "int64", "bool_")}
    with _modules({"cuda": {}, "cuda.tile": types, "cuda.tile.compilation": compilation}):
        yield signatures


AXPY: Final = Jit("axpy", ("y_ptr", "x_ptr", "a", "n", "BLOCK"))
