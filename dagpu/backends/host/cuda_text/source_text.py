"""A CUDA text as C++ for the host: its own lines, the built-ins of `include` before it, and its entry behind it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, final

from dagpu.backends.kernel_text.launch_params import macros
from dagpu.backends.kernel_text.loaded_function import Limits
from dagpu.backends.kernel_text.units import PRELUDE, Unit, element_types, kernel_unit
from dagpu.kernels.cuda_signature import parse_cuda_signature
from dagpu.kernels.preprocessing import included_files
from dagpu.ops.kernel_spec import KernelSpec

INCLUDE: Final = Path(__file__).with_name("include")
"""The folder of the headers that stand for CUDA's."""

LIMITS: Final = Limits(1024, (1024, 1024, 64), (2**31 - 1, 65535, 65535), 232448, 49152)
"""The limits of a launch: those of an H200."""

TEXT: Final = "<CUDA text>"
"""The name of the text for the compiler. A text that has moved in its file need not be compiled again."""

_GROUP: Final = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_REST: Final = rf"(?:[^;{{}}()\"=]|{_GROUP})*?"
_DYNAMIC: Final = re.compile(rf"\b(?:extern\b{_REST}\b__shared__|__shared__\b{_REST}\bextern)\b{_REST}(?=\s*(?:;|\Z))")
"""A declaration of dynamic shared memory, without its semicolon."""

_PART: Final = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r'|R"(?P<delimiter>[^\s()\\]*)\(.*?\)(?P=delimiter)"'
    r"|(?P<directive>^[ \t]*\#(?:\\\n|[^\n])*)"
    r'|(?P<plain>(?:namespace\b[\w:\s]*|extern\s*"C(?:\+\+)?"\s*)\{)'
    r'|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])*\''
    rf"|(?P<dynamic>{_DYNAMIC.pattern})|(?P<word>[;{{}}]|\btemplate\b)",
    re.MULTILINE | re.DOTALL,
)
_ALIGNMENT: Final = re.compile(rf"\b(?:__align__|__builtin_align__|alignas|__attribute__)\s*{_GROUP}|//[^\n]*")
_DECLARATOR: Final = re.compile(r"(?P<type>.*?)(?P<name>[A-Za-z_]\w*)(?P<extents>(?:\s*\[[^\[\]]*\])*)", re.DOTALL)
_KEPT: Final = re.compile(r"-(?:D|U|std|isystem)|--?(?:define-macro|undefine-macro)")


@final
@dataclass(frozen=True, slots=True)
class HostSource:
    """A kernel as C++."""

    unit: Unit
    text: str
    headers: tuple[tuple[str, str], ...]
    """The user's headers that are changed for the host: their names and texts."""
    options: tuple[str, ...]
    included: tuple[str, ...]
    """The texts of all headers, for the key of the compiled kernel."""
    complete: bool
    """True if these are all headers that the compiler reads."""

    def place(self, line: int) -> tuple[str, int]:
        """Return the file and the line of the user's for a line of the text."""
        return self.unit.file, self.unit.line + line - 1


def source_text(spec: KernelSpec, variant: int) -> HostSource:
    """Return the CUDA text of a kernel, with the macros of a variant, as C++."""
    unit = kernel_unit(spec, macros(variant), "")
    folder = Path(unit.file).parent
    files = included_files(unit.text, folder, unit.options)
    own = [(file.path, file.text) for file in files.files if not file.path.is_relative_to(PRELUDE.parent)]
    dynamic = any(_DYNAMIC.search(text) for text in (unit.text, *(text for _, text in own)))
    types = list(element_types([unit.text, *(text for _, text in own)])) if unit.prelude else []
    head = "".join(f"#define {name}\n" for name in types) + '#include "dagpu.cuh"\n' * unit.prelude
    entry = unit.entry or f"&{spec.entry or spec.name}"
    if not unit.entry and _has_other_functions(unit):  # if one of them is a template, C++ deduces no parameters
        parameters = parse_cuda_signature(
            spec.cuda, spec.entry or spec.name, abi=spec.abi, folder=folder, options=unit.options
        ).text
        entry = f"static_cast<void (*)({parameters})>({entry})"
    tail = f'\n#line 1 "<entry>"\nDAGPU_DYNAMIC_MEMORY({LIMITS.shared if dynamic else 128})\nDAGPU_ENTRY(({entry}))\n'
    return HostSource(
        unit,
        f'{head}#line 1 "{TEXT}"\n{_rewritten(unit.text)}\n{tail}',
        tuple([(_name(path, folder), _rewritten(text)) for path, text in own if _DYNAMIC.search(text)]),
        (*(f"-D{define}" for define in unit.defines), *_options(unit.options), f"-I{folder}", f"-I{PRELUDE.parent}"),
        tuple([part for path, text in own for part in (path.name, text)]),
        files.complete,
    )


def _name(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name


def _rewritten(text: str) -> str:
    """Return a text whose dynamic shared memory is the one array that a library has of it."""
    return "".join(_rewritten_parts(text)) if _DYNAMIC.search(text) else text


def _rewritten_parts(text: str) -> Iterator[str]:
    """Yield a text in parts. It keeps which of the open braces belong to templates: those of a `#if` begin anew at its
    `#else`."""
    at, begun = 0, False
    templates: list[bool] = []
    branches: list[list[bool]] = []
    for found in _PART.finditer(text):
        yield text[at : found.start()]
        at, part = found.end(), found[0]
        if found["dynamic"]:
            part = _as_array(part, in_template=any(templates))
        elif directive := found["directive"]:
            part = _DYNAMIC.sub(lambda each: _as_array(each[0], in_template=True), directive)
            kind = directive.strip(" \t#")
            if kind.startswith("if"):
                branches.append(list(templates))
            elif kind.startswith("el") and branches:
                templates = list(branches[-1])
            elif kind.startswith("endif") and branches:
                branches.pop()
        elif found["plain"]:
            templates.append(False)
        elif word := found["word"]:
            if word == "{":
                templates.append(begun)
            elif word == "}" and templates:
                templates.pop()
            begun = word == "template"
        yield part
    yield text[at:]


def _as_array(declaration: str, *, in_template: bool) -> str:
    """Return a declaration of dynamic shared memory as one of the library's array: it has the array's symbol. GCC drops
    symbols in templates, so there it is a reference. The array's alignment is the largest, and the lines stay."""
    words = re.sub(r"\b(?:extern|__shared__)\b", "", _ALIGNMENT.sub("", declaration)).strip()
    first, *others = [_DECLARATOR.fullmatch(each) for each in re.split(r"(?<=\])\s*,\s*", words)]
    if first is None or None in others:
        return declaration
    base = first["type"].rstrip("* \n\t")
    made = []
    for each in (first, *(other for other in others if other)):
        kind, name, extents = each["type"] if each is first else f"{base} {each['type']}", each["name"], each["extents"]
        if in_template:
            made.append(f"{kind} (&{name}){extents} = *({kind} (*){extents})dagpu_dynamic_memory")
        else:
            made.append(f'extern __thread {kind} {name}{extents} __asm("dagpu_dynamic")')
    whole = "; ".join(made)
    return whole + "\n" * (declaration.count("\n") - whole.count("\n"))


def _options(options: Sequence[str]) -> Iterator[str]:
    """Yield those of the options for CUDA's compilers that a C++ compiler takes: macros, folders, the language."""
    waiting = ""
    for option in options:
        if waiting:
            yield from (waiting, option)
            waiting = ""
        elif option in ("-I", "-D", "-U", "-isystem", "-include"):
            waiting = option
        elif option.startswith(("--define-macro=", "--include-path=")):
            name, _, value = option.partition("=")
            yield {"--define-macro": "-D", "--include-path": "-I"}[name] + value
        elif option.startswith("-I") or _KEPT.match(option):
            yield option.replace("--std", "-std", 1)


def _has_other_functions(unit: Unit) -> bool:
    """Return true if there may be other functions of the kernel's name, in the text or in C++ itself."""
    named = re.findall(rf"\b{re.escape(unit.name)}\s*\(", unit.text)
    return len(named) > 1 or unit.name in _functions_of_cpp()


@cache
def _functions_of_cpp() -> frozenset[str]:
    """Return the names of functions that C++ and CUDA C++ have alike."""
    return frozenset(name for text in header_texts() for name in re.findall(r"\busing std::(\w+);", text))


@cache
def header_texts() -> tuple[str, ...]:
    """Return the texts of the headers in `include` and of the prelude, for keys."""
    files = [*sorted(INCLUDE.rglob("*")), *sorted(PRELUDE.parent.glob("*.cuh"))]
    return tuple([file.read_text(encoding="utf-8") for file in files if file.is_file()])
