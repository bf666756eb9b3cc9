"""A stand-in for Triton's module: it gives what a version of Triton once gave, and notes what it was asked for."""

import base64
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final, final

import pytest

RECORDED: Final = Path(__file__).with_name("recorded")
TRITON: Final = sorted(RECORDED.glob("triton-*.json"))


@final
class CompilationError(Exception):
    """What Triton raises. Its module has Triton's name."""


CompilationError.__module__ = "triton.compiler.errors"


@final
class Jit:
    """What `@triton.jit` makes: its parameters, and the name of the recorded kernel."""

    def __init__(self, name: str, names: Sequence[str], **defaults: object) -> None:
        self.name = name
        self.params = [_parameter(each, defaults) for each in names]


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


@contextmanager
def installed_triton(recorded: Path) -> Iterator[FakeTriton]:
    """Within the `with` block the module `triton` is a stand-in with these results."""
    fake = FakeTriton(recorded)
    parts = {
        "triton": {"JITFunction": Jit, "__version__": fake.recorded["version"], "compile": fake.compile},
        "triton.compiler": {"ASTSource": SimpleNamespace},
        "triton.backends": {},
        "triton.backends.compiler": {"GPUTarget": lambda *given: given},
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in [each for each in sys.modules if each.partition(".")[0] == "triton"]:
            patch.delitem(sys.modules, name)
        patch.setitem(sys.modules, "triton._C", None)
        for name, members in parts.items():
            module = ModuleType(name)
            module.__path__ = []
            vars(module).update(members)
            patch.setitem(sys.modules, name, module)
        yield fake


AXPY: Final = Jit("axpy", ("y_ptr", "x_ptr", "a", "n", "BLOCK"))
