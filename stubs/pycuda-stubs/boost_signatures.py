"""What the functions of a Boost.Python module take and return, as its docstrings say it.

`inspect.signature` finds nothing in such a function. Its docstring has a line for each overload, as in
`memset_d8_async( (object)dest, (int)data, (int)size [, (object)stream=None]) -> None :`. Brackets hold what may be left
out, `argN` is a parameter without a name, and `object` is any type that has a conversion.
"""

import ast
import inspect
import re
from dataclasses import dataclass
from typing import Final

_LINE: Final = re.compile(r"^\w+\((?P<parameters>.*)\) -> (?P<result>\w+) :$", re.MULTILINE)
_PARAMETER: Final = re.compile(
    r"(?P<opens>\[?)[\s,]*\((?P<type>\w+)\)(?P<name>\w+)(=(?P<default>'[^']*'|\[\]|[^\s\],]+))?"
)
_UNNAMED: Final = re.compile(r"arg\d+|self")


@dataclass(frozen=True, slots=True)
class BoostSignature:
    """One overload."""

    parameters: inspect.Signature
    """Names, kinds and defaults. A default that the docstring leaves out is `...`."""
    types: tuple[str, ...]
    """The parameters' types, by position; `object` where any with a conversion will do."""
    result: str

    def __str__(self) -> str:
        return f"({', '.join(self.types)}) -> {self.result}"


def is_boost_function(value: object) -> bool:
    """Is it a function of such a module? The types of those that come in classes have the same name."""
    return type(value).__module__ == "Boost.Python" and type(value).__name__ == "function"


def boost_signatures(docstring: str) -> list[BoostSignature]:
    """The overloads in a docstring, in its order."""
    return [_signature(line["parameters"], line["result"]) for line in _LINE.finditer(docstring)]


def signature_of(function: object) -> inspect.Signature:
    """The signature of a Boost.Python function, as by `inspect.signature`.

    Raises:
        ValueError: it has several, which no one signature describes, or none.
    """
    found = boost_signatures(function.__doc__ or "")
    if len(found) != 1:
        raise ValueError(f"{len(found)} signatures")
    return found[0].parameters


def _signature(text: str, result: str) -> BoostSignature:
    parameters: list[inspect.Parameter] = []
    types: list[str] = []
    optional = False
    for match in _PARAMETER.finditer(text):
        optional = optional or bool(match["opens"])
        default = _default(match["default"]) if optional else inspect.Parameter.empty
        if _UNNAMED.fullmatch(match["name"]):
            letter = "abcdefghij"[len(parameters)]  # stubtest takes a name of one letter for none
            parameters.append(inspect.Parameter(letter, inspect.Parameter.POSITIONAL_ONLY, default=default))
        else:
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            parameters.append(inspect.Parameter(match["name"], kind, default=default))
        types.append(match["type"])
    return BoostSignature(inspect.Signature(parameters), tuple(types), result)


def _default(text: str | None) -> object:
    return ... if text is None else ast.literal_eval(text)
