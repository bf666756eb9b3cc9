"""Building blocks of random programs of moves: calls with drawn outcomes, so that every path can be taken in turn."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import FrameType
from typing import ClassVar, Final, cast

from dagpu import Tensor, TensorRef, f32

USE_AFTER_MOVE: Final = "dagpu-use-after-move"
CONFLICTING_BORROW: Final = "dagpu-conflicting-borrow"


class Stop(Exception):
    """A call has failed in the way that programs catch."""


class Other(Exception):
    """A call has failed in a way that they do not catch."""


class Oracle:
    """Draws the outcomes of one path, and finds the next path."""

    def __init__(self) -> None:
        self._script: list[tuple[int, int]] = []
        """(outcome, number of outcomes) of each draw of this path."""
        self._place = 0
        self.rounds = 0
        """How often the loops of this path may yet go round, all together."""

    def draw(self, outcomes: int) -> int:
        """The next outcome: as the script says, 0 behind its end."""
        if self._place == len(self._script):
            self._script.append((0, outcomes))
        outcome, _ = self._script[self._place]
        self._place += 1
        return outcome

    def paths(self, most: int, rounds: int) -> Iterator[None]:
        """Once for each path with so many rounds of loops, depth first, `most` at the utmost."""
        self._script = []
        for _ in range(most):
            self._place, self.rounds = 0, rounds
            yield
            while self._script and self._script[-1][0] + 1 == self._script[-1][1]:
                self._script.pop()
            if not self._script:
                return
            outcome, outcomes = self._script[-1]
            self._script[-1] = (outcome + 1, outcomes)


ORACLE: Final = Oracle()


class Notes:
    """The places where the runs of one program did something refused, as (line, error code)."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: set[tuple[int, str]] = set()

    def lines(self) -> set[int]:
        """The lines of the program that are being run: of a function of its own, where that stands and is called."""
        lines = set()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == self.file:
                lines.add(frame.f_lineno)
            frame = frame.f_back
        return lines


class Handle:
    """Stands in for a `Tensor` in a run: it notes a wrong use and goes on, so that a path shows all of them."""

    notes: ClassVar[Notes]

    def __init__(self) -> None:
        self._moved = False
        self._loans: list[Loan] = []

    def _live(self) -> None:
        if self._moved:
            self.notes.found.update((line, USE_AFTER_MOVE) for line in self.notes.lines())

    def _refuse(self, loans: "Iterable[Loan]") -> None:
        lines = self.notes.lines()
        for loan in loans:
            loan.in_its_way.update(lines)

    def _lend(self, exclusive: bool) -> "Loan":
        self._live()
        self._refuse(loan for loan in self._loans if exclusive or loan.exclusive)
        loan = Loan(self.notes, exclusive)
        self._loans.append(loan)
        return loan

    @property
    def ndim(self) -> int:
        """Reads it."""
        self._live()
        return 1

    def borrow(self) -> "Loan":
        """Lends it for reading."""
        return self._lend(False)

    def borrow_mut(self) -> "Loan":
        """Lends it for writing."""
        return self._lend(True)

    def move(self) -> None:
        """Takes it."""
        self._live()
        self._refuse(self._loans)
        self._moved = True


class Loan:
    """Stands in for a `TensorRef` or a `TensorMut`. What came in its way is wrong if it is used after that."""

    def __init__(self, notes: Notes, exclusive: bool) -> None:
        self.notes = notes
        self.exclusive = exclusive
        self.in_its_way: set[int] = set()

    @property
    def ndim(self) -> int:
        """Uses it."""
        self.notes.found.update((line, CONFLICTING_BORROW) for line in self.in_its_way)
        return 1


def mistakes(function: Callable[[], None], most: int, rounds: int) -> tuple[set[tuple[int, str]], bool]:
    """The mistakes on the paths of `function` with so many rounds of loops, and whether these are fewer than `most`.

    A move in one round of a loop is a use after it in the next, so few rounds do; more of them where loops are nested.
    """
    Handle.notes = Notes(function.__code__.co_filename)
    paths = 0
    for _ in ORACLE.paths(most, rounds):
        paths += 1
        with suppress(Stop, Other):
            function()
    return Handle.notes.found, paths < most


class Holder:
    """Has tensors as attributes."""

    def __init__(self, a: Tensor[f32], b: Tensor[f32], c: Tensor[f32]) -> None:
        self.a, self.b, self.c = a, b, c


# ---- calls that never fail


def choice() -> bool:
    """Yes or no."""
    return bool(ORACLE.draw(2))


def pick() -> int:
    """0, 1 or 2."""
    return ORACLE.draw(3)


def going() -> bool:
    """Return True to go round once more; False if this path has gone round often enough."""
    if not ORACLE.rounds or not ORACLE.draw(2):
        return False
    ORACLE.rounds -= 1
    return True


def rounds() -> Iterator[int]:
    """Some rounds of a loop."""
    while going():
        yield ORACLE.rounds


def make() -> Tensor[f32]:
    """A tensor."""
    return cast("Tensor[f32]", Handle())


def again(t: Tensor[f32]) -> Tensor[f32]:
    """Takes it by value, and gives it back."""
    cast(Handle, t).move()
    return make()


def eat(t: Tensor[f32]) -> int:
    """Takes it by value."""
    cast(Handle, t).move()
    return 1


def look(x: object) -> None:
    """Does nothing with it."""


def same(lent: TensorRef[f32]) -> TensorRef[f32]:
    """Uses a loan, and gives it back."""
    look(lent.ndim)
    return lent


def use(one: object, other: object) -> None:
    """Uses two loans, and takes neither."""
    look((cast(Loan, one).ndim, cast(Loan, other).ndim))


class quiet:  # noqa: N801  # used like contextlib.suppress
    """A block that a failed call ends, and that may go on as if nothing had been: mypy sees it by the `bool`."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and choice()


# ---- the same, for where a failure is caught: they may fail, after they have taken what they take


def _may_stop() -> None:
    if outcome := ORACLE.draw(3):
        raise Stop if outcome == 1 else Other


def choice_() -> bool:
    _may_stop()
    return choice()


def pick_() -> int:
    _may_stop()
    return pick()


def going_() -> bool:
    _may_stop()
    return going()


def rounds_() -> Iterator[int]:
    while going_():
        yield ORACLE.rounds


def make_() -> Tensor[f32]:
    _may_stop()
    return make()


def again_(t: Tensor[f32]) -> Tensor[f32]:
    t = again(t)
    _may_stop()
    return t


def eat_(t: Tensor[f32]) -> int:
    eat(t)
    _may_stop()
    return 1


def look_(x: object) -> None:
    _may_stop()


def same_(lent: TensorRef[f32]) -> TensorRef[f32]:
    same(lent)
    _may_stop()
    return lent


def use_(one: object, other: object) -> None:
    use(one, other)
    _may_stop()


def quiet_() -> quiet:
    _may_stop()
    return quiet()
