"""`Form`: what is passed for a parameter of a kernel, and what the kernel does with it."""

from enum import Enum
from typing import Final, Literal, TypeAlias, final

Passed: TypeAlias = Literal["view", "tile", "scalar"]
"""How CUDA takes a parameter, unless it takes plain pointers: a `View`, a `Tile`, or a scalar C type."""


@final
class Form(Enum):
    """The form of a kernel's parameter: a tensor that is read or written, or a value.

    A member answers what all layers ask about a parameter. What one layer alone asks is in a table of that layer, by
    form: which handles a call takes (`call_arguments`), how a launch packs it (`launch_params`).
    """

    IN = "in", "an input", "a Tensor, SharedTensor, TensorRef or TensorMut", "view"
    OUT = "out", "an output", "a Partition", "tile"
    SCALAR = "scalar", "a number", "a number", "scalar"

    def __new__(cls, name: str, noun: str, wanted: str, passed: Passed) -> "Form":
        """Make a member. Its value is its name alone, and so is what a pickle holds."""
        made = object.__new__(cls)
        made._value_ = name
        return made

    def __init__(self, name: str, noun: str, wanted: str, passed: Passed) -> None:
        self.noun: Final = noun
        """The words for a parameter, in messages."""
        self.wanted: Final = wanted
        """The words for its argument, in messages."""
        self.passed: Final[Passed] = passed
        """How CUDA takes it."""
        self.is_tensor: Final = passed in ("view", "tile")
        """True if the argument is memory of a device, false if it is a value."""
        self.is_written: Final = passed == "tile"
        """True if the kernel writes the argument."""
        self.is_input: Final = passed == "view"
        """True if the kernel only reads the argument. It may read an output too."""
        self.word: Final = name.capitalize() if self.is_tensor else name
        """The name of the annotation, `In` or `Out`; for a number "scalar"."""

    __hash__ = object.__hash__  # that of an `Enum` is a function in Python, and members are equal to themselves alone
