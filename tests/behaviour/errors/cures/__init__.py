"""Every mistake that dagpu has a message for, beside the program with the message's cure applied to it, word by word.

`CASES` has one entry for each message: the wrong program, and for each cure that its message offers, the words of the
cure and the program with it. A text whose cure cannot be applied in a test is in `LEFT_OUT`, by its words, with
the reason.
"""

from typing import Final

from tests.behaviour.errors.cures import (
    copies,
    creating,
    gradients,
    graphs,
    handles,
    interop,
    ops_as_values,
    partitions,
    running,
)
from tests.behaviour.errors.cures.catalogue import KEPT, LEFT_OUT, LEFT_OUT_ROOMS, Case, Program
from tests.behaviour.errors.cures.kernels import (
    array_functions,
    array_places,
    expressions,
    factorisations,
    foreign_checks,
    foreign_ops,
    kernel_calls,
    kernel_declarations,
    module_variables,
    python_kernels,
)
from tests.behaviour.errors.cures.places import devices, sharding
from tests.behaviour.errors.cures.reactive import flows, sources, tiles

__all__ = ["CASES", "KEPT", "LEFT_OUT", "LEFT_OUT_ROOMS", "Case", "Program"]

CASES: Final[list[Case]] = [
    case
    for module in (
        handles,
        partitions,
        kernel_calls,
        kernel_declarations,
        module_variables,
        expressions,
        array_functions,
        array_places,
        factorisations,
        creating,
        ops_as_values,
        running,
        copies,
        graphs,
        devices,
        sharding,
        flows,
        sources,
        tiles,
        interop,
        foreign_ops,
        python_kernels,
        foreign_checks,
        gradients,
    )
    for case in module.CATALOGUE.cases
]
