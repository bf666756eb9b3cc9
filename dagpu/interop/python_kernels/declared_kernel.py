"""A declaration of a kernel that another library compiles: its parameters, and the kernel that is made of it."""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, cast, final

import numpy as np

from dagpu.common.errors import KernelArgumentError
from dagpu.common.origin import describe, here
from dagpu.common.wrong_arguments import format_value
from dagpu.kernels.annotations import Annotation, PySignature, declaration_error, declared_at, read_signature
from dagpu.kernels.cuda_scalars import CudaParam
from dagpu.kernels.declaration import ScalarCheck, check_default
from dagpu.kernels.decorator import DECLARED, Kernel
from dagpu.ops.kernel_spec import HostBody, KernelSpec, Param
from dagpu.ops.python_kernel import PythonKernel

_P = ParamSpec("_P")

WORDS: Final = {"int": np.dtype(np.int32), "float": np.dtype(np.float32), "bool": np.dtype(np.bool_)}
"""The types of parameters that are annotated with types of Python, for a library that counts in 32 bits."""


@final
@dataclass(frozen=True, slots=True)
class Declaration:
    """A function that names and types the parameters of a kernel."""

    function: Callable[..., object]
    signature: PySignature
    decorator: str
    """The name of the decorator, for messages."""

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def params(self) -> list[tuple[str, Annotation]]:
        """The parameters in order."""
        return list(zip(self.signature.names, self.signature.annotations, strict=True))

    def error(self, what: str, cure: str) -> KernelArgumentError:
        """Return the error for a wrong declaration. `cure` is a sentence without its full stop."""
        return declaration_error(self.name, declared_at(self.function), what, cure)

    def kernel(self, code: PythonKernel, types: "Mapping[str, np.dtype[Any]]", block: tuple[int, ...]) -> Kernel[Any]:
        """Return the kernel. `types` are the types of the scalars; `block` is empty if the compiler chooses it.

        Raises:
            KernelArgumentError: a default does not fit its type.
        """
        params: list[Param] = []
        for name, annotation in self.params:
            if annotation.form != "scalar":
                params.append(Param(name, annotation.form, annotation.dtype, None, None, False))
                continue
            check = ScalarCheck(CudaParam(name, "scalar", types[name].name, False, None, 0), self.name)
            params.append(Param(name, "scalar", None, None, check, annotation.lazy))
            if name in self.signature.defaults:
                check_default(self.function, check, self.signature.defaults[name])
        spec = KernelSpec(
            name=self.name,
            params=tuple(params),
            cuda="",
            source_name="",
            abi="pointers",
            block=block or None,
            options=(),
            checked=False,
            origin=(self.function.__code__, 0),
            host=HostBody(),
            python=code,
        )
        made: Kernel[Any] = Kernel(spec, self.signature, cast(Any, self.function))
        DECLARED.add(made)
        return made


def declared_by(
    decorator: str, scope: Mapping[str, Any], make: Callable[[Declaration], Kernel[Any]]
) -> Callable[[Callable[_P, None]], Kernel[_P]]:
    """Return the decorator of a function that declares a kernel.

    `scope` are the local variables of the caller, which text annotations may name.
    """

    def decorate(function: Callable[_P, None]) -> Kernel[_P]:
        if not inspect.isfunction(function):
            raise KernelArgumentError(
                f"@{decorator}(...) at {describe(here())} is applied to {format_value(function)}, which is not a plain "
                "function. Decorate a `def` that names and types the kernel's parameters."
            )
        made = Declaration(function, read_signature(function, scope), decorator)
        for name, annotation in made.params:
            if annotation.form != "scalar" and annotation.dtype is None:
                what = f"parameter {name!r} has a generic element type, and @{decorator} compiles for one"
                raise made.error(what, "Write the type: In[f32], Out[f32]")
        return cast("Kernel[_P]", make(made))

    return decorate


def scope_of_caller() -> Mapping[str, Any]:
    """Return the local variables of the function that called the caller of this one."""
    return sys._getframe(2).f_locals
