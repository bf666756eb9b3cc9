"""The signature of a kernel in CUDA C++: its types, and its comparison with the Python signature.

The names of types are those of NumPy dtypes (`float32`, `int64`, `bool`), with `float16` for `half` and `bfloat16` for
`nv_bfloat16`. `long` has 64 bits and `char` is signed, as in CUDA on 64-bit Linux.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, final

from dagpu.common.errors import KernelArgumentError
from dagpu.kernels.cuda_lexer import (
    IGNORED,
    Aliases,
    Declaration,
    Token,
    expand_aliases,
    join_tokens,
    scan_declarations,
    split_at_commas,
    take_name,
    tokenize,
    without_attributes,
)

if TYPE_CHECKING:
    from dagpu.ops.kernel_spec import Form, Passed

ScalarKind: TypeAlias = Literal["int", "float", "bool"]


@final
@dataclass(frozen=True, slots=True)
class CudaParam:
    """One parameter of a CUDA declaration.

    `name` is empty for an unnamed parameter. `const` is true if the elements must not be written; it is false for a
    scalar, whose `const` does not concern the caller. `rank` is None unless the form is `tile` or `view`. `line` counts
    from 1 in the source; it is 0 for a parameter without a CUDA declaration.
    """

    name: str
    form: Passed | Literal["pointer"]
    ctype: str
    const: bool
    rank: int | None
    line: int

    @property
    def is_tensor(self) -> bool:
        """True if it is memory of a device, false if it is a value."""
        return self.form in ("view", "tile", "pointer")


# ---- C types ------------------------------------------------------------------------------
# Messages use the first spelling of a dtype.
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "float32": ("float",), "float64": ("double",), "bool": ("bool",),
    "float16": ("__half", "half"), "bfloat16": ("__nv_bfloat16", "nv_bfloat16"),
    "int8": ("signed char", "char", "int8_t"), "uint8": ("unsigned char", "uint8_t"),
    "int16": ("short", "int16_t"), "uint16": ("unsigned short", "uint16_t", "ushort"),
    "int32": ("int", "signed", "int32_t"), "uint32": ("unsigned int", "uint32_t", "uint"),
    "int64": ("long long", "long", "int64_t", "ptrdiff_t", "ssize_t", "intptr_t"),
    "uint64": ("unsigned long long", "unsigned long", "uint64_t", "size_t", "uintptr_t", "ulong"),
}  # fmt: skip


def _type_key(words: Sequence[str]) -> str:
    """Return a key that ignores the order of the words, and an `int` or `signed` without effect."""
    key = sorted(words)
    if len(key) > 1 and "int" in key:
        key.remove("int")
    if len(key) > 1 and "signed" in key and "char" not in key:
        key.remove("signed")
    return " ".join(key)


_DTYPES = {_type_key(c.split()): dtype for dtype, spellings in SPELLINGS.items() for c in spellings}


def dtype_of(words: Sequence[str]) -> str | None:
    """Return the dtype of a C type without `const`, or None. `std::`, `cuda::std::` and a leading `::` are ignored."""
    if "::" in words:
        scope, _, last = "".join(words).rpartition("::")
        return _DTYPES.get(last) if scope.removeprefix("::") in ("", "std", "cuda::std") else None
    return _DTYPES.get(_type_key(words))


def kind_of(dtype: str) -> ScalarKind:
    """Return the kind of Python number that a call passes for a scalar of `dtype`."""
    return "int" if dtype in _INT_RANGES else "bool" if dtype == "bool" else "float"


def c_text(c: CudaParam) -> str:
    """Return a parameter as C++ text for messages."""
    element = ("const " if c.const else "") + SPELLINGS[c.ctype][0]
    return parameter_text(c.form, element, c.rank, c.name).rstrip()


_TEXTS: Mapping[str, str] = {
    "scalar": "{element} {name}",
    "pointer": "{element}* {name}",
    "view": "View<{element}, {rank}> {name}",
    "tile": "Tile<{element}, {rank}> {name}",
}


def parameter_text(form: Passed | Literal["pointer"], element: str, rank: int | str | None, name: str) -> str:
    """Return the declaration of a parameter in C++. `element` is the C type, with `const` where it is const."""
    return _TEXTS[form].format(element=element, rank=rank, name=name)


# ---- scalar arguments ---------------------------------------------------------------------------
_INT_RANGES: Mapping[str, tuple[int, int]] = {
    f"{sign}int{bits}": (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for sign in ("", "u") for bits in (8, 16, 32, 64)
}  # fmt: skip
# The least magnitude that rounds to infinity (the largest number plus half a unit in its last place), and the largest
# number as text for messages. A float64 holds every Python float.
_FLOAT_LIMITS: Mapping[str, tuple[float, str]] = {
    "float16": (65520.0, "65504"),
    "bfloat16": (2.0**128 - 2.0**119, "3.3895e38"),
    "float32": (2.0**128 - 2.0**103, "3.4028e38"),
    "float64": (float("inf"), "1.7977e308"),
}


def _plain(value: object) -> object:
    """Return a NumPy scalar as a Python number, and any other value itself. This does not import NumPy."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic):
        return value
    scalar: Any = value
    if scalar.dtype.kind in "biu":
        return bool(scalar) if scalar.dtype.kind == "b" else int(scalar)
    # bfloat16 is an extension of NumPy. Its kind is "V", which structured scalars have too.
    return float(scalar) if scalar.dtype.kind == "f" or scalar.dtype.name == "bfloat16" else value


def check_scalar(value: object, param: CudaParam, *, kernel: str) -> int | float | bool:
    """Return the Python number that is passed for a scalar parameter.

    An integer parameter accepts an int in its range. A floating-point parameter accepts a float or an int that does not
    overflow it, and infinities and NaN. A bool parameter accepts a bool. NumPy scalars are converted by value.

    Raises:
        KernelArgumentError: the parameter does not accept the value.
    """
    plain = _plain(value)
    kind = kind_of(param.ctype)
    if param.is_tensor:
        _refuse_scalar(value, param, kernel, "pass a tensor")
    if isinstance(plain, bool) or kind == "bool":
        if isinstance(plain, bool) and kind == "bool":
            return plain
        _refuse_scalar(value, param, kernel, f"convert it with {kind}(...) if that is meant")
    if kind == "int" and isinstance(plain, int):
        low, high = _INT_RANGES[param.ctype]
        if low <= plain <= high:
            return int(plain)  # a subclass such as IntEnum becomes a plain int
        _refuse_scalar(value, param, kernel, "pass one in the range, or declare a wider type")
    if kind == "float" and isinstance(plain, int | float):
        if _fits(plain, param.ctype):
            return float(plain)
        _refuse_scalar(value, param, kernel, "pass one in the range, or declare a wider type")
    return _refuse_scalar(value, param, kernel, f"convert it with {kind}(...) if that is meant")


def _fits(number: float, dtype: str) -> bool:
    """Return true if a number stays finite as `dtype`, or is infinite or NaN itself."""
    try:
        return abs(float(number)) < _FLOAT_LIMITS[dtype][0] or not isfinite(number)
    except OverflowError:  # an int beyond every float
        return False


def _refuse_scalar(value: object, param: CudaParam, kernel: str, cure: str) -> NoReturn:
    """Raise the error for a value that a scalar parameter does not accept."""
    plain = _plain(value)
    shown = ""  # only numbers are shown: an array could fill the screen
    if isinstance(plain, int) and plain.bit_length() > 128:  # Python refuses to print very long ones
        shown = f" of {plain.bit_length()} bits"
    elif isinstance(plain, int | float):
        shown = f" {plain!r}"
    if param.is_tensor:
        wanted = "device data"
    elif param.ctype == "bool":
        wanted = "a bool"
    elif param.ctype in _INT_RANGES:
        low, high = _INT_RANGES[param.ctype]
        wanted = f"an int from {low} to {high}"
    else:
        largest = _FLOAT_LIMITS[param.ctype][1]
        wanted = f"a number from -{largest} to {largest}"
    takes = f"its CUDA parameter '{c_text(param)}' (CUDA source line {param.line}) takes"
    if not param.line:  # the user wrote no CUDA
        takes, cure = f"elements of {param.ctype} take", cure.replace(", or declare a wider type", "")
    raise KernelArgumentError(
        f"kernel {kernel!r}: argument {param.name or '(unnamed)'!r} is {type(value).__name__}{shown}; "
        f"{takes} {wanted}. Cure: {cure}."
    )


# ---- cuda signature
#
# The CUDA signature of a kernel, read from its `__global__` declaration, and its comparison with the Python signature.
#
# The parser reads the parameters that a kernel launched by name can have: scalars, `Tile`, `View`, pointers. It refuses
# all others, with the line and the cure, because a wrong guess would pass wrong bytes to the GPU. `cuda_lexer` reads
# the text and expands aliases; "cuda scalars" has the names of the C types.

Abi: TypeAlias = Literal["views", "pointers"]
"""The form of tensor parameters in CUDA: `Tile` and `View`, or plain pointers."""


@final
@dataclass(frozen=True, slots=True)
class CudaSignature:
    """The CUDA signature of a kernel. `line` is the line of its name.

    `template` is False in all results of `parse_cuda_signature`, which refuses templates.
    """

    name: str
    params: tuple[CudaParam, ...]
    line: int
    template: bool


@final
@dataclass(frozen=True, slots=True)
class PyParam:
    """One parameter of the Python declaration. `dtype` is None for a Python number and a generic element type."""

    name: str
    form: Form
    dtype: str | None
    scalar: ScalarKind | None


# ---- parameters -------------------------------------------------------------------------------
_TYPE_CURE = (
    "Write the C type out (float, double, half, nv_bfloat16, bool, an integer type such as int, size_t or "
    "int32_t); an alias is followed if it is defined once, at file scope, outside #if, and is not a pointer"
)


_VECTOR = re.compile(r"(u?)(float|double|char|short|int)[1-4]")


def _refuse(kernel: str, line: int, what: str, cure: str) -> NoReturn:
    """Raise the error for a CUDA declaration."""
    raise KernelArgumentError(f"kernel {kernel!r}, CUDA source line {line}: {what}. {cure}.")


@final
@dataclass(frozen=True, slots=True)
class _ParamReader:
    """A parser of the parameters of one CUDA declaration."""

    kernel: str
    abi: Abi
    aliases: Aliases
    declared: int  # the line of the kernel's name

    def params(self, inside: Sequence[Token]) -> tuple[CudaParam, ...]:
        """Parse the tokens between the parentheses of the declaration."""
        parts = split_at_commas(inside)
        if len(parts) == 1 and [token.text for token in parts[0]] in ([], ["void"]):
            return ()
        return tuple(self.param(part, position) for position, part in enumerate(parts, start=1))

    def param(self, tokens: Sequence[Token], position: int) -> CudaParam:
        """Parse one parameter. `position` counts from 1."""
        line = tokens[0].line if tokens else self.declared
        texts = [token.text for token in tokens]
        if "#" in texts:
            what = f"parameter {position} is under a preprocessor condition, which is not known here"
            _refuse(self.kernel, line, what, "Take the condition out of the parameter list")
        texts = without_attributes(texts[: texts.index("=")] if "=" in texts else texts)
        what = f"parameter {position} is '{join_tokens(texts)}'"
        if "&" in texts:
            _refuse(self.kernel, line, f"{what}, a reference", "Kernels take parameters by value: drop the '&'")
        bounds = texts[texts.index("[") :] if "[" in texts else []
        texts = texts[: len(texts) - len(bounds)]
        name = take_name(texts)
        texts = [text for text in expand_aliases(texts, self.aliases) if text not in IGNORED]
        unsure = next((text for text in texts if text in self.aliases and self.aliases[text] is None), None)
        if unsure is not None:
            _refuse(self.kernel, line, f"{what}, and the alias {unsure!r} cannot be followed", _TYPE_CURE)
        stars = texts.count("*") + bounds.count("[")
        if "<" in texts:
            return self.tile_or_view(texts, name, line, what, stars)
        return self.plain(texts, name, line, what, stars)

    def plain(self, texts: list[str], name: str, line: int, what: str, stars: int) -> CudaParam:
        """Parse a scalar or a pointer."""
        base = texts[: texts.index("*")] if "*" in texts else texts
        dtype = dtype_of([text for text in base if text != "const"])
        if dtype is None or not {"*", "const"}.issuperset(texts[len(base) :]):
            hints = {"auto": ", and 'auto' makes it a template", "void": ", which says no element type"}
            only = " ".join(text for text in base if text != "const")
            if stars and (vector := _VECTOR.fullmatch(only)):
                c = f"{'unsigned ' if vector[1] else ''}{vector[2]}"
                whole = f"{'const ' if 'const' in base else ''}{only}"
                cure = f"Declare {c}*, and cast in the kernel: reinterpret_cast<{whole}*>(...)"
                _refuse(self.kernel, line, f"{what}, a pointer to vectors of {c}", cure)
            hint = hints.get(only, ", a type that cannot be read here")
            _refuse(self.kernel, line, f"{what}{hint}", _TYPE_CURE)
        if stars > 1:
            cure = "Pass one flat array and its extents"
            _refuse(self.kernel, line, f"{what}, a pointer to pointers or a nested array", cure)
        if stars and self.abi == "views":
            c = SPELLINGS[dtype][0]
            cure = f"Declare Tile<{c}, N> (output) or View<const {c}, N> (input), or use abi='pointers'"
            _refuse(self.kernel, line, f"{what}, a pointer, in a kernel that takes tiles and views", cure)
        if stars:
            return CudaParam(name, "pointer", dtype, "const" in base, None, line)
        return CudaParam(name, "scalar", dtype, False, None, line)

    def tile_or_view(self, texts: list[str], name: str, line: int, what: str, stars: int) -> CudaParam:
        """Parse `Tile<T, N>` or `View<const T, N>`."""
        start = texts.index("<")
        end = len(texts) - texts[::-1].index(">") if ">" in texts else len(texts)
        outer = "".join(text for text in texts[:start] if text != "const")
        outer = outer.removeprefix("::").removeprefix("dagpu::")
        if outer not in ("Tile", "View") or not {"*", "const"}.issuperset(texts[end:]):
            cure = "Take Tile<T, N>, View<const T, N> or scalars, or with abi='pointers' plain pointers"
            _refuse(self.kernel, line, f"{what}, a type that cannot be read here", cure)
        if stars:
            _refuse(self.kernel, line, f"{what}, a pointer", f"Pass the {outer} by value: drop the '*'")
        args = split_at_commas([Token(text, line, False) for text in texts[start + 1 : end - 1]])
        element, *ranks = ([token.text for token in arg] for arg in args)
        rank = re.fullmatch(r"([1-9]\d*)[uUlL]*", "".join(ranks[0])) if len(ranks) == 1 else None
        if rank is None:
            cure = f"Give the element type and the rank as a number of 1 or more, as in {outer}<float, 2>"
            _refuse(self.kernel, line, f"{what}, whose rank cannot be read", cure)
        dtype = dtype_of([text for text in element if text != "const"])
        if dtype is None:
            _refuse(self.kernel, line, f"{what}, whose element type cannot be read", _TYPE_CURE)
        if self.abi == "pointers":
            c = SPELLINGS[dtype][0]
            cure = f"Declare {c}* (output) or const {c}* (input), or leave abi='pointers' out"
            _refuse(self.kernel, line, f"{what}, a {outer}, in a kernel with abi='pointers'", cure)
        form: Literal["tile", "view"] = "tile" if outer == "Tile" else "view"
        return CudaParam(name, form, dtype, "const" in element, int(rank[1]), line)


# ---- the declaration of one kernel ----------------------------------------------------------------
def parse_cuda_signature(source: str, name: str, *, abi: Abi) -> CudaSignature:
    """Return the signature of the kernel `name`, from its definition, else from its first declaration.

    Raises:
        KernelArgumentError: the source does not declare the kernel, the kernel is a template or overloaded, or a
            parameter cannot be passed under `abi`.
    """
    tokens, aliases = tokenize(source)
    everything = scan_declarations(tokens, aliases)
    declarations = [declaration for declaration in everything if declaration.name == name]
    if not declarations:
        raise KernelArgumentError(_missing(name, tokens, everything))
    signatures: list[CudaSignature] = []
    for _, line, template, inside, _ in declarations:
        if template:
            cure = "Write the types out, or call the template from a kernel that is not one"
            _refuse(name, line, "it is a template, and a kernel that is launched by name cannot be one", cure)
        if inside is None:
            _refuse(name, line, "its parameter list is never closed", "Add the missing ')'")
        params = _ParamReader(name, abi, aliases, line).params(inside)
        signatures.append(CudaSignature(name, params, line, template=False))
    first = signatures[0]
    for other in signatures[1:]:
        if _abi_of(other) != _abi_of(first):
            what = f"it is declared with other parameters than on line {first.line}"
            cure = "A kernel is launched by name: give each overload a name of its own"
            _refuse(name, other.line, what, cure)
    return next((s for s, d in zip(signatures, declarations, strict=True) if d.has_body), first)


def _abi_of(signature: CudaSignature) -> list[tuple[object, ...]]:
    """Return the properties of the parameters that two declarations of one kernel must share."""
    return [(param.form, param.ctype, param.const, param.rank) for param in signature.params]


def _missing(name: str, tokens: Sequence[Token], declarations: Sequence[Declaration]) -> str:
    """Return the message for a source that does not declare the kernel."""
    there = ", ".join(f"{d.name!r} (line {d.line})" for d in declarations) or "none"
    calls = [token.line for token, after in pairwise(tokens) if (token.text, after.text) == (name, "(")]
    if calls:
        cure = f"Line {calls[0]} has '{name}(' without a visible __global__ before it: write it there"
    else:
        cure = "Give the Python function and the CUDA kernel one name; macros with arguments are not expanded"
    found = f"its CUDA source has no '__global__ void {name}(...)'; its __global__ functions: {there}"
    return f"kernel {name!r}: {found}. {cure}."


# ---- comparison of the two signatures --------------------------------------------------------------
def check_signature(sig: CudaSignature, python_params: Sequence[PyParam], *, kernel: str, where: str) -> None:
    """Compare the CUDA signature of a kernel with its Python signature, declared at `where` (a file and line).

    The number, order, forms, element types and `const` of the parameters must agree. Names may differ, but a name that
    both signatures use must have the same position. A generic element type (`dtype=None`) accepts the type of CUDA.

    Raises:
        KernelArgumentError: the signatures differ. One message lists all differences, with the lines of both.
    """
    problems: list[str] = []
    if len(sig.params) != len(python_params):
        counts = f"{len(python_params)} parameters in Python, {len(sig.params)} in CUDA"
        problems.append(f"{counts} (line {sig.line}): {_surplus(sig, python_params)}")
    names = [p.name for p in python_params]
    order = _other_order(names, [c.name for c in sig.params])
    by_name = {c.name: c for c in sig.params}
    pairs = [(p, by_name[p.name]) for p in python_params] if order else zip(python_params, sig.params, strict=False)
    problems += order
    for position, (p, c) in enumerate(pairs, start=1):
        found = list(_differences(p, c))
        if c.name != p.name and c.name in names:
            found.append(f"the Python parameter {c.name!r} is number {names.index(c.name) + 1}")
        if found:
            sides = f"parameter {position}: Python '{_python_text(p)}', CUDA '{c_text(c)}' (line {c.line})"
            problems.append(f"{sides}: {'; '.join(found)}. Declare '{_wanted(p, c)}'")
    if problems:
        sides = f"its Python signature ({where}) and its CUDA signature (CUDA source line {sig.line}) differ"
        raise KernelArgumentError("\n  - ".join([f"kernel {kernel!r}: {sides}:", *problems]))


def _other_order(python: list[str], cuda: list[str]) -> list[str]:
    """Return the message for parameters with the same names in another order; nothing otherwise."""
    if python == cuda or sorted(python) != sorted(cuda) or len(set(cuda)) < len(cuda):
        return []
    moved = [name for name, other in zip(python, cuda, strict=True) if name != other]
    cure = f"Swap {moved[0]!r} and {moved[1]!r} in one of them" if len(moved) == 2 else "Write them in one order"
    return [f"the order of the parameters differs: Python ({', '.join(python)}), CUDA ({', '.join(cuda)}). {cure}"]


def _surplus(sig: CudaSignature, python_params: Sequence[PyParam]) -> str:
    """Return a clause that lists the parameters of the longer signature that the other one lacks."""
    common = min(len(sig.params), len(python_params))
    texts = [_python_text(p) for p in python_params[common:]] or [c_text(c) for c in sig.params[common:]]
    return f"no counterpart for {', '.join(repr(text) for text in texts)}"


def _differences(p: PyParam, c: CudaParam) -> Iterator[str]:
    """Yield the differences between two declarations of a parameter."""
    form = p.form
    if form.is_tensor != c.is_tensor:
        yield "a scalar against an array"
        return
    if not form.is_tensor:
        if p.scalar is not None and p.scalar != kind_of(c.ctype):
            yield f"a Python {p.scalar} against {SPELLINGS[c.ctype][0]}"
    elif c.form not in ("pointer", form.passed):
        yield f"{form.noun} is a {form.passed.capitalize()}"
    elif c.const == form.is_written:
        yield f"{form.noun} is {'not ' * form.is_written}const"
    if p.dtype is not None and p.dtype != c.ctype:
        yield f"{p.dtype} against {c.ctype}"


def _python_text(p: PyParam) -> str:
    """Return a parameter as Python text for messages."""
    if not p.form.is_tensor:
        return f"{p.name}: {p.dtype or p.scalar or p.form.word}"
    return f"{p.name}: {p.form.word}[{p.dtype or 'D'}]"


def _wanted(p: PyParam, c: CudaParam) -> str:
    """Return the CUDA declaration that fits the Python parameter `p`, in the form of `c`."""
    form = p.form
    fitting = form.is_tensor == c.is_tensor and p.scalar in (None, kind_of(c.ctype))
    element = SPELLINGS[c.ctype][0] if fitting else p.scalar or "T"
    if p.dtype is not None:
        element = SPELLINGS.get(p.dtype, (p.dtype,))[0]
    if form.is_input:
        element = f"const {element}"
    passed = "pointer" if form.is_tensor and c.form == "pointer" else form.passed
    return parameter_text(passed, element, c.rank or "N", p.name)
