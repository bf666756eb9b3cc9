"""`Part`, the piece of a program that one worker runs, and that is run again if its values are lost."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, final

from dagpu.lowering.plan import Plan, peak_bytes_on
from dagpu.lowering.program import Program
from dagpu.lowering.schedule.scheduler import schedule

Version: TypeAlias = tuple[int, int]
"""Contents of a buffer of the whole program between two writes: the buffer, and the number of writes before."""


@final
@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """What one worker gets: a program of its own, with the versions that it takes from other parts, from the caller or
    from earlier runs, and those that it gives.

    A version is a value that is never written: a part that changes one changes a copy.
    """

    worker: str
    """The worker that is to run it, which is the node in the names of its devices. Any other would compute the same."""
    epoch: int
    """The most changes of workers on a way from the start of the program to the part."""
    chunk: int
    """The number of the part among those of its worker and epoch, in the order of the program."""
    program: Program
    """Its instructions. The names of their devices are the worker's own, without the name of the worker."""
    imports: tuple[Version, ...]
    """The versions that it takes."""
    takes: tuple[int, ...]
    """For each of `imports`, the buffer of `program` that holds it before the part starts."""
    exports: tuple[Version, ...]
    """The versions that it makes and that other parts, or the caller, want."""
    gives: tuple[int, ...]
    """For each of `exports`, the buffer of `program` that holds it when the part ends."""
    needs: tuple[int, ...]
    """The indices of the parts that make its imports; each is less than its own."""
    seconds: float
    """The predicted time of its instructions, one after the other."""

    _plans: list[Plan] = field(default_factory=list, repr=False)
    """The plan of the part, once it has been asked for."""

    @property
    def plan(self) -> Plan:
        """The plan of the part, as its worker makes it."""
        if not self._plans:
            self._plans.append(schedule(self.program))
        return self._plans[0]

    @property
    def peak_bytes(self) -> Mapping[str, int]:
        """The bytes that the part allocates on each device of its worker, beyond what it takes."""
        return peak_bytes_on(self.plan)
