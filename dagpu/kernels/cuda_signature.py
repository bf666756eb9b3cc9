"""The signature of a kernel in CUDA C++, and its comparison with the Python signature.

`cuda_types` reads the types of the parameters. Where a kernel is a template, or has overloads, the Python signature
says which of them is meant, unless the declaration names an instance.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, final

from dagpu.common.errors import KernelArgumentError
from dagpu.kernels.cuda_lexer import (
    Declaration,
    Token,
    join_tokens,
    past_bracket,
    read_tokens,
    scan_declarations,
    split_at_commas,
)
from dagpu.kernels.cuda_names import Names
from dagpu.kernels.cuda_parameters import Abi, CudaForm, ParamReader, parameter_text, refuse
from dagpu.kernels.cuda_parameters import CudaParam as CudaParam
from dagpu.kernels.cuda_parameters import c_text as c_text
from dagpu.kernels.cuda_types import (
    SCALARS,
    SPELLINGS,
    Bound,
    CType,
    Spelled,
    TypeReader,
    template_parameters,
)
from dagpu.kernels.preprocessing import preprocess_decided

if TYPE_CHECKING:
    from pathlib import Path

    from dagpu.ops.kernel_spec import Form

ScalarKind: TypeAlias = Literal["int", "float", "bool", "complex"]


def kind_of(dtype: str) -> ScalarKind:
    """Return the kind of Python number that a call passes for a scalar of `dtype`."""
    if dtype in _INT_RANGES:
        return "int"
    return "complex" if dtype in _COMPLEX_PARTS else "bool" if dtype == "bool" else "float"


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


_PAIRS: Mapping[str, str] = {"complex64": "float2", "complex128": "double2"}
"""The types of complex numbers in texts without the prelude, which declares `dagpu::complex`."""
_COMPLEX_PARTS: Mapping[str, str] = {"complex64": "float32", "complex128": "float64"}


def _plain(value: object) -> object:
    """Return a NumPy scalar as a Python number, and any other value itself. This does not import NumPy."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic):
        return value
    scalar: Any = value
    if scalar.dtype.kind in "biu":
        return bool(scalar) if scalar.dtype.kind == "b" else int(scalar)
    if scalar.dtype.kind == "c":
        return complex(scalar)
    # bfloat16 is an extension of NumPy. Its kind is "V", which structured scalars have too.
    return float(scalar) if scalar.dtype.kind == "f" or scalar.dtype.name == "bfloat16" else value


def check_scalar(value: object, param: CudaParam, *, kernel: str) -> complex:
    """Return the Python number that is passed for a scalar parameter.

    An integer parameter accepts an int in its range. A floating-point parameter accepts a float or an int that does not
    overflow it, and infinities and NaN. A complex parameter accepts all of these, and complex numbers. A bool parameter
    accepts a bool. NumPy scalars are converted by value.

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
    if kind == "complex" and isinstance(plain, int | float | complex):
        part = _COMPLEX_PARTS[param.ctype]
        if _fits(plain.real, part) and _fits(plain.imag, part):
            return complex(plain)
        _refuse_scalar(value, param, kernel, "pass one in the range, or declare a wider type")
    if isinstance(plain, complex):
        _refuse_scalar(value, param, kernel, "take one part of it: x.real, or abs(x)")
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
    elif isinstance(plain, int | float | complex):
        shown = f" {plain!r}"
    if param.is_tensor:
        wanted = "device data"
    elif param.ctype == "bool":
        wanted = "a bool"
    elif param.ctype in _INT_RANGES:
        low, high = _INT_RANGES[param.ctype]
        wanted = f"an int from {low} to {high}"
    else:
        largest = _FLOAT_LIMITS[_COMPLEX_PARTS.get(param.ctype, param.ctype)][1]
        parts = ", or a complex one of such parts" * (param.ctype in _COMPLEX_PARTS)
        wanted = f"a number from -{largest} to {largest}{parts}"
    takes = f"its CUDA parameter '{c_text(param)}' (CUDA source line {param.line}) takes"
    if not param.line:  # the user wrote no CUDA
        takes, cure = f"elements of {param.ctype} take", cure.replace(", or declare a wider type", "")
    raise KernelArgumentError(
        f"kernel {kernel!r}: argument {param.name or '(unnamed)'!r} is {type(value).__name__}{shown}; "
        f"{takes} {wanted}. Cure: {cure}."
    )


# ---- the signature in CUDA


@final
@dataclass(frozen=True, slots=True)
class CudaSignature:
    """The CUDA signature of a kernel. `line` is the line of its name.

    `template` is true for a template, and `instance` then its name with the arguments: `ns::reduce<float, 256>`. It is
    empty while some of them are not known, which `unbound` names.
    """

    name: str
    params: tuple[CudaParam, ...]
    line: int
    template: bool
    instance: str = ""
    unbound: tuple[str, ...] = ()
    overload: str = ""
    """The parameters as the text has them, if it has other functions of the name."""
    text: str = field(default="", compare=False)
    """The parameters as the text has them."""
    has_body: bool = field(default=False, compare=False)
    guarded: bool = field(default=False, compare=False)


@final
@dataclass(frozen=True, slots=True)
class PyParam:
    """One parameter of the Python declaration. `dtype` is None for a Python number and a generic element type, and
    `void` for a structure that CUDA declares."""

    name: str
    form: Form
    dtype: str | None
    scalar: ScalarKind | None
    optional: bool = False
    """True if None may be passed, which is a null pointer."""
    listed: bool = False
    """True for a list of tensors."""


# ---- the declaration of one kernel ----------------------------------------------------------------
def parse_cuda_signature(
    source: str,
    name: str,
    *,
    abi: Abi,
    folder: Path | None = None,
    options: Sequence[str] = (),
    python: Sequence[PyParam] | None = None,
) -> CudaSignature:
    """Return the signature of the kernel `name`, from its definition, else from its first declaration.

    Args:
        source: the text.
        name: the name, with namespaces and the arguments of a template where they are needed: `ns::k<float, 256>`.
        abi: the form of tensor parameters.
        folder: that of the source, where its headers are searched.
        options: those of the compiler, which define macros and name folders of headers.
        python: the parameters in Python, which choose an overload, and the types of a template.

    Raises:
        KernelArgumentError: the source does not declare the kernel, the kernel is overloaded, an argument of a template
            is not known, or a parameter cannot be passed under `abi`.
    """
    tokens = preprocess_decided(source, folder, tuple(options)).tokens
    scope, plain, arguments = _parts_of(name)
    everything = scan_declarations(tokens)
    declarations = [each for each in everything if each.name == plain and _ends_with(each.scope, scope)]
    if not declarations:
        raise KernelArgumentError(_missing(plain, tokens, everything))
    names = Names(tokens)
    sure, trusting = TypeReader(names), TypeReader(names, trusts=True)
    signatures: list[CudaSignature] = []
    errors: list[KernelArgumentError] = []
    instances = [each for each in declarations if each.arguments is not None]
    for declaration in declarations:
        if declaration.arguments is not None and (arguments is not None or len(instances) < len(declarations)):
            continue  # an instantiation, or a specialisation, of a template that is here too
        given = arguments
        if given is None and declaration.arguments is not None:
            given = [token.text for token in declaration.arguments]
        types = trusting if declaration.guarded else sure
        try:
            read = _signature_of(declaration, plain, abi, types, given, python)
            if read.unbound and given is None and len(instances) == 1:  # the text has one instance
                given = [token.text for token in instances[0].arguments or ()]
                read = _signature_of(declaration, plain, abi, types, given, python)
        except KernelArgumentError as error:
            errors.append(error)
        else:
            signatures.append(read)
    if not signatures:
        raise errors[0] if errors else KernelArgumentError(_missing(plain, tokens, everything))
    return _chosen(plain, signatures, errors, python)


def _parts_of(name: str) -> tuple[tuple[str, ...], str, list[str] | None]:
    """Return the namespaces, the name, and the arguments of a template, None without them."""
    tokens = [each for each in read_tokens(name) if isinstance(each, Token)]
    texts = [token.text for token in tokens]
    arguments: list[str] | None = None
    if "<" in texts:
        at = texts.index("<")
        arguments = texts[at + 1 : (past_bracket(tokens, at) or len(texts) + 1) - 1]
        texts = texts[:at]
    words = [text for text in texts if text != "::"]
    return tuple(words[:-1]), words[-1] if words else "", arguments


def _ends_with(scope: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    return scope[len(scope) - len(wanted) :] == wanted if len(scope) >= len(wanted) else False


def _signature_of(
    declaration: Declaration,
    name: str,
    abi: Abi,
    types: TypeReader,
    arguments: Sequence[str] | None,
    python: Sequence[PyParam] | None,
) -> CudaSignature:
    """Return the signature that one declaration has."""
    if declaration.inside is None:
        refuse(name, declaration.place, "its parameter list is never closed", "Add the missing ')'")
    template = declaration.template
    bound: dict[str, Spelled | int | None] = {}
    parameters = template_parameters(declaration.parameters)
    if template:
        bound = types.bind(declaration.parameters, arguments or (), declaration.scope, {}, declaration.scope)
    params = ParamReader(name, abi, types, declaration, bound).params(declaration.inside)
    if template and python is not None and arguments is None:
        found = _deduced(params, python, bound)
        if found:
            bound |= found
            params = ParamReader(name, abi, types, declaration, bound).params(declaration.inside)
    unbound = tuple([p.text for p in parameters if bound.get(p.name) is None and not p.is_pack])
    instance = ""
    if template and not unbound:
        texts = [_argument_text(bound[p.name]) for p in parameters if not p.is_pack]
        if arguments is not None:
            texts = [join_tokens(arguments)]
        instance = "::".join([*declaration.scope, f"{name}<{', '.join(texts)}>"])
    elif declaration.scope:
        instance = "::".join([*declaration.scope, name])
    parts = [[token.text for token in part] for part in split_at_commas(declaration.inside)]
    text = ", ".join([join_tokens(part[: part.index("=")] if "=" in part else part) for part in parts])
    return CudaSignature(
        name=name,
        params=params,
        line=declaration.line,
        template=template,
        instance="" if unbound else instance,
        unbound=unbound,
        text=text,
        has_body=declaration.has_body,
        guarded=declaration.guarded,
    )


def _argument_text(value: Spelled | int | None) -> str:
    """Return the argument of a template as C++ text."""
    if isinstance(value, Spelled):
        return f"{'const ' * value.const}{value.base.name}{'*' * len(value.stars)}"
    return str(value)


def _deduced(params: Sequence[CudaParam], python: Sequence[PyParam], bound: Bound) -> dict[str, Spelled | int | None]:
    """Return the types of a template that the Python signature decides, by the names of the template's parameters."""
    found: dict[str, Spelled | int | None] = {}
    for c, p in zip(params, python, strict=False):
        generic = c.record is not None and c.record.kind == "generic"
        if not generic or c.record is None or c.record.name not in bound or c.record.name in found:
            continue
        if p.dtype in SCALARS and p.form.is_tensor == c.is_tensor:
            found[c.record.name] = Spelled(SCALARS[p.dtype])
    return found


def _chosen(
    name: str,
    signatures: Sequence[CudaSignature],
    errors: Sequence[KernelArgumentError],
    python: Sequence[PyParam] | None,
) -> CudaSignature:
    """Return the signature that is meant: of several overloads the one that fits the Python signature."""
    kinds = {tuple(_abi_of(each)): None for each in signatures}
    fitting = list(signatures)
    if len(kinds) > 1 and python is not None:
        fitting = [each for each in signatures if not _problems(each, python)] or fitting
        exact = [each for each in fitting if _is_exact(each, python)]
        fitting = exact or fitting
    first = fitting[0]
    for other in fitting[1:]:
        if _abi_of(other) != _abi_of(first):
            what = f"it is declared with other parameters than on line {first.line}"
            cure = (
                "A kernel is launched by name: name an instance of the template, "
                f'@kernel("{name}<...>", cuda=...), give each overload a name of its own, or annotate the parameters '
                "with NumPy's types (np.int64), so that one overload alone fits"
            )
            if first.guarded and other.guarded:
                cure = "Define what their conditions ask for: options=('-DNAME=1',)"
            refuse(name, f"CUDA source line {other.line}", what, cure)
    if errors and python is None:
        raise errors[0]
    chosen = next((each for each in fitting if each.has_body), first)
    if len(kinds) + len(errors) > 1 and not chosen.template:
        chosen = replace(chosen, overload=chosen.text)
    return chosen


def _is_exact(signature: CudaSignature, python: Sequence[PyParam]) -> bool:
    """Return true if each input is const, and the kernel is no template: as C++ prefers an overload."""
    pairs = zip(signature.params, python, strict=False)
    return not signature.template and all(c.const == p.form.is_input for c, p in pairs if c.is_tensor)


def _abi_of(signature: CudaSignature) -> list[tuple[object, ...]]:
    """Return the properties of the parameters that two declarations of one kernel must share."""
    return [(param.form, param.ctype, param.const, param.rank, param.record) for param in signature.params]


def check_bound(signature: CudaSignature, kernel: str, where: str) -> None:
    """Raise a `KernelArgumentError` for a template with an argument that is not known."""
    if not signature.unbound:
        return
    what = f"it is a template, and nothing says what its {', '.join(map(repr, signature.unbound))} is"
    cure = f'Name an instance: @kernel("{signature.name}<...>", cuda=...), at {where}'
    refuse(kernel, f"CUDA source line {signature.line}", what, cure)


def _missing(name: str, tokens: Sequence[Token], declarations: Sequence[Declaration]) -> str:
    """Return the message for a source that does not declare the kernel."""
    names = dict.fromkeys([("::".join([*d.scope, d.name]), d.line) for d in declarations])
    there = ", ".join(f"{each!r} (line {line})" for each, line in names) or "none"
    calls = [token.line for token, after in pairwise(tokens) if (token.text, after.text) == (name, "(")]
    if calls:
        cure = f"Line {calls[0]} has '{name}(' without a visible __global__ before it: write it there"
    else:
        cure = 'Give the Python function and the CUDA kernel one name, or say the kernel\'s: @kernel("name", cuda=...)'
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
    problems = _problems(sig, python_params)
    if problems:
        sides = f"its Python signature ({where}) and its CUDA signature (CUDA source line {sig.line}) differ"
        raise KernelArgumentError("\n  - ".join([f"kernel {kernel!r}: {sides}:", *problems]))


def check_constant(p: PyParam, c: CudaParam, text: str, *, kernel: str, where: str) -> None:
    """Compare the Python parameter that sets a `__constant__` variable with the variable. `text` is its declaration.

    Raises:
        KernelArgumentError: they differ.
    """
    found = list(_differences(p, c))
    if p.listed or p.optional:
        found = ["a list of tensors, or None, against an array"]
    if found:
        wanted = f"{p.name}: In[{'np.void' if c.record else f'np.{c.ctype}'}]"
        raise KernelArgumentError(
            f"kernel {kernel!r}: its parameter {p.name!r}, Python '{_python_text(p)}' ({where}), sets '{text}' (CUDA "
            f"source line {c.line}): {'; '.join(found)}. Declare '{wanted}'; one value is an array of one element."
        )


def _problems(sig: CudaSignature, python_params: Sequence[PyParam]) -> list[str]:
    """Return all differences between the signatures."""
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
    return problems


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
    if p.listed is not (c.form == "pointers"):
        yield "one tensor against the pointers of a list of them" if not p.listed else "a list of tensors against one"
        return
    if c.record is not None:
        yield from _record_differences(p, c, c.record)
    elif p.dtype == "void":
        yield f"a structure against {c.element}"
    elif not form.is_tensor and p.scalar is not None and p.scalar != kind_of(c.ctype):
        yield f"a Python {p.scalar} against {c.element}"
    if form.is_tensor:
        if c.form not in ("pointer", "pointers", form.passed):
            yield f"{form.noun} is a {form.passed.capitalize()}"
        elif c.const == form.is_written and (c.const or c.form not in ("pointer", "pointers")):
            yield f"{form.noun} is {'not ' * form.is_written}const"
        if p.optional and c.form != "pointer":
            yield "None can be passed for a pointer alone"
    if c.record is None and p.dtype not in (None, "void", c.ctype):
        yield f"{p.dtype} against {c.ctype}"


def _record_differences(p: PyParam, c: CudaParam, record: CType) -> Iterator[str]:
    """Yield the differences between a declaration in Python and a type of CUDA that is no plain scalar."""
    if record.kind == "generic":
        return  # an argument of a template that is not known: `check_bound` refuses it
    if not p.form.is_tensor:
        if p.dtype not in ("void", record.complex_dtype or "void"):
            yield f"a number against {record.name}, which is a NumPy record (np.void)"
        elif record.pointer_field:
            yield f"{record.name} has the pointer {record.pointer_field!r}, whose memory would be unknown"
        return
    lanes = record.dtype if c.form in ("pointer", "pointers") else ""
    if record.kind == "void" or (p.dtype is None and record.kind != "opaque"):
        return
    if record.kind == "opaque":
        if p.dtype != "uint8":
            yield f"{record.name} cannot be read here ({record.why}), so its memory is bytes (np.uint8)"
    elif record.pointer_field:
        if p.dtype != "uint8":
            what = f"{record.name} has the pointer {record.pointer_field!r}, whose memory would be unknown"
            yield f"{what}, so its own is bytes (np.uint8)"
    elif p.dtype in ("void", record.complex_dtype or "void"):
        return
    elif p.dtype != lanes:
        also = f" or {lanes}" if lanes else ""
        yield f"{p.dtype} against {record.name}, whose elements are np.void{also}"


def _python_text(p: PyParam) -> str:
    """Return a parameter as Python text for messages."""
    if not p.form.is_tensor:
        return f"{p.name}: {p.dtype or p.scalar or p.form.word}"
    text = f"{p.form.word}[{p.dtype or 'D'}]"
    return f"{p.name}: {f'list[{text}]' if p.listed else text}"


def _wanted(p: PyParam, c: CudaParam) -> str:
    """Return the CUDA declaration that fits the Python parameter `p`, in the form of `c`."""
    form = p.form
    fitting = form.is_tensor == c.is_tensor and (c.record is not None or p.scalar in (None, kind_of(c.ctype)))
    element = c.element if fitting else p.scalar or "T"
    if p.dtype is not None and p.dtype != "void":
        element = SPELLINGS.get(p.dtype, (p.dtype,))[0]
    plain: CudaForm = "pointers" if p.listed else "pointer"
    passed: CudaForm = plain if form.is_tensor and c.form in ("pointer", "pointers") else form.passed
    if passed == plain:
        element = _PAIRS.get(p.dtype or "", element)
    if form.is_input:
        element = f"const {element}"
    return parameter_text(passed, element, c.rank or "N", p.name)
