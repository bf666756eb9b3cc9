"""The statements around a place that an exit from it passes: loops, `finally` suites and blocks of loans."""

from dataclasses import dataclass

from mypy.nodes import Block as Suite

from dagpu.mypy_plugin.ownership.control_flow import BasicBlock, EndLoan


@dataclass(eq=False, slots=True)
class Loop:
    """The target blocks of `break` and `continue`."""

    broken: BasicBlock
    continued: BasicBlock


@dataclass(eq=False, slots=True)
class Finally:
    """A `finally` suite, copied into every exit, and the handler of the exceptions that the suite itself raises."""

    suite: Suite
    handler: BasicBlock | None


@dataclass(eq=False, slots=True)
class LoanBlock:
    """A `with` block for which something is lent: every exit from it ends the loans."""

    ends: list[EndLoan]
