"""Compares the refusals of mypy with those of runs, on the corpus of tests/typing/plugin.

Every program there is a function without required arguments. A right one must run without an error. A wrong one is
run as well, and must fail with one of the errors that `RAISES` gives for the code that mypy finds. Where its `def`
bears `# R: runs` it ends well: there the rule is stricter than a run, which sees one order of events alone. An unjudged
one fails in a run, and mypy says nothing of it.
"""

import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from types import TracebackType

import pytest
import trio

import dagpu
from dagpu import (
    BorrowError,
    CaptureError,
    InteropError,
    KernelArgumentError,
    MovedError,
    NotReadyError,
    OwnershipError,
    PartitionError,
    SourceError,
)
from tests.plugin.plugin_corpus import AWAITS_GRAPHS, CORPUS, EXPECTED, Program, programs

PACKAGE = "tests.typing.plugin"


RAISES: dict[str, tuple[type[Exception], ...]] = {
    # The check of a kernel's arguments comes first where one call uses a handle twice. An array of another library that
    # is adopted twice would have two owners.
    "dagpu-use-after-move": (MovedError, KernelArgumentError, InteropError),
    # MovedError: a borrow of a tensor that has moved meanwhile.
    "dagpu-conflicting-borrow": (BorrowError, MovedError, KernelArgumentError),
    # MovedError: one op for two outputs; OwnershipError: a whole result where a handle is wanted.
    "dagpu-output-partition": (PartitionError, KernelArgumentError, MovedError, OwnershipError),
    "dagpu-graph-node": (CaptureError,),
    # The one type error of mypy's own in the corpus: `spawn` of an op that borrows.
    "arg-type": (BorrowError,),
    "dagpu-sees": (KernelArgumentError,),
    "dagpu-input-rank": (KernelArgumentError,),
    # TypeError: an op is no condition.
    "dagpu-not-ready": (NotReadyError, TypeError),
    "dagpu-source-part": (SourceError,),
    "dagpu-source-value": (SourceError,),
    # No counterpart in a run: a borrow keeps its tensor alive, wherever it goes.
    "dagpu-borrow-escape": (),
    # A feed that is kept and not asked does no harm in a run.
    "dagpu-feed-escape": (trio.ClosedResourceError,),
    # No counterpart in a run: there is none.
    "dagpu-unused-op": (),
}

NOT_CALLED = {"module_level"}
"""Wrong programs that are modules: importing them is what fails."""


@cache
def codes_at(side: str, module: str) -> dict[int, list[str]]:
    """The codes that mypy is to report, by line."""
    text = (CORPUS / side / f"{module}.py").read_text(encoding="utf-8")
    lines = enumerate(text.splitlines(), start=1)
    return {number: codes for number, line in lines if (codes := EXPECTED.findall(line))}


def call(program: Program) -> None:
    """Run it, in trio if it is asynchronous, on the host."""
    module = importlib.import_module(f"{PACKAGE}.{program.side}.{program.module}")
    function = getattr(module, program.name)
    with dagpu.use_device("host"):
        if inspect.iscoroutinefunction(function):
            trio.run(function)
        else:
            function()


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group of groups; an error by itself otherwise."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def lines_in(file: str, traceback: TracebackType | None) -> list[int]:
    """The lines of `file` that an error came through, innermost last."""
    lines: list[int] = []
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == file:
            lines.append(traceback.tb_lineno)
        traceback = traceback.tb_next
    return lines


def codes_of(program: Program, error: BaseException | None = None) -> set[str]:
    """The codes of a program: those on the lines that an error came through, else all that stand in it.

    A run may notice on another line than mypy: where an op is run and not where it was built, say. And where a mistake
    stands in a method of a class beside it, all codes of the file count.
    """
    codes = codes_at(program.side, program.module)
    file = str(CORPUS / program.side / f"{program.module}.py")
    through = [] if error is None else [line for line in lines_in(file, error.__traceback__) if line in codes]
    inside = [line for line in codes if program.first <= line <= program.last]
    return {code for line in through or inside or codes for code in codes[line]}


def named(program: Program) -> str:
    return f"{program.module}-{program.name}"


WRONG = [p for p in programs("wrong") if p.module not in NOT_CALLED | AWAITS_GRAPHS]
RIGHT = [p for p in programs("right") if p.module not in AWAITS_GRAPHS]
UNJUDGED = programs("unjudged")


@pytest.mark.parametrize("program", RIGHT, ids=named)
def test_a_right_program_runs(program: Program) -> None:
    """A program that mypy must accept ends without an error."""
    call(program)


@pytest.mark.parametrize("program", WRONG, ids=named)
def test_a_wrong_program_fails_as_mypy_says(program: Program) -> None:
    """A run raises an error that belongs to the code; it ends well where the code has none, or the program says so."""
    if program.runs or not any(RAISES[code] for code in codes_of(program)):
        call(program)
        return
    with pytest.raises(Exception) as caught:  # noqa: PT011  # which ones is what is looked at
        call(program)
    for error in leaves(caught.value):
        kinds = {kind for code in codes_of(program, error) for kind in RAISES[code]}
        assert type(error) in kinds, repr(error)


@pytest.mark.parametrize("program", UNJUDGED, ids=named)
def test_what_mypy_does_not_judge_a_run_refuses(program: Program) -> None:
    """A mistake that the documentation lists as not judged is an error of the run."""
    with pytest.raises(MovedError):
        call(program)


@pytest.mark.parametrize("module", sorted(NOT_CALLED))
def test_a_wrong_module_fails_when_it_is_imported(module: str) -> None:
    """A mistake at module level fails when the module is imported."""
    with pytest.raises(MovedError) as caught, dagpu.use_device("host"):
        importlib.import_module(f"{PACKAGE}.wrong.{module}")
    lines = lines_in(str(CORPUS / "wrong" / f"{module}.py"), caught.value.__traceback__)
    assert lines
    assert set(lines) <= set(codes_at("wrong", module))


def test_every_code_is_held_against_a_run() -> None:
    """The table has a row for each code of the corpus and no other."""
    codes = {
        code for program in programs("wrong") for line in codes_at("wrong", program.module).values() for code in line
    }
    assert codes == set(RAISES)
