"""Every cure that a message states is tried: applied word by word to the program that got the message, it succeeds.

And every text of dagpu's messages is met by one of these programs, so that a new message needs an entry here.
"""

import re
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import dagpu
from dagpu import use_device
from dagpu.common.places import is_ours
from tests.behaviour.errors.cures import CASES, KEPT, LEFT_OUT, LEFT_OUT_ROOMS, Case, Program
from tests.simulated.cuda import installed
from tests.support.message_pieces import Piece, pieces


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some programs write files."""
    monkeypatch.chdir(tmp_path)


def name(case: Case) -> str:
    function = case.wrong.func if isinstance(case.wrong, partial) else case.wrong
    return f"{CASES.index(case)}-{function.__name__.strip('<>')}"


def message(case: Case) -> tuple[str, list[str]]:
    """Return the message that the wrong program gets, and the frames of dagpu in its traceback."""
    with place(case):
        try:
            case.wrong()
        except Exception as error:
            text = "\n".join([str(error), *getattr(error, "__notes__", ())])
            codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
            return text, [f"{code.co_filename} {code.co_qualname}" for code in codes if is_ours(code.co_filename)]
    return "", []


SHOWN = {
    "<string>",
    "__init__",
    "exploration",
    "cluster",
    "frozen",
    "places",
    "array_handle",
    "foreign_bodies",
    "array_libraries",
    "memory",
    "placing",
    "graph",
    "asking",
    "feed",
    "flow_class",
    "graph_capture",
    "pipeline_class",
    "spawning",
    "timeline",
}
"""The modules of calls beside the building and the running of ops, which may show their frame; and the `__init__` of a
dataclass that checks its fields."""


def place(case: Case) -> ExitStack:
    """The devices that a case is about."""
    stack = ExitStack()
    stack.callback(KEPT.clear)
    stack.enter_context(installed(seed=1) if case.simulated else use_device("host"))
    return stack


PUBLIC = {name for public in dagpu.__all__ for name in (public, *dir(getattr(dagpu, public)))}
"""Names that a cure may mean literally; others stand for something of the user's."""


@pytest.mark.parametrize("case", CASES, ids=name)
def test_a_cure_cures(case: Case) -> None:
    """The mistake is refused with the words of each cure, and the program that does what these say succeeds."""
    text, frames = message(case)
    assert text, "the wrong program succeeds"
    assert not frames or Path(frames[0].split()[0]).stem in SHOWN, "an error shows frames of dagpu"
    for cure in case.cures:
        assert cure.says in text, text
        with place(case):
            cure.program()
        called = PUBLIC & set(re.findall(r"[A-Za-z_]\w*(?=\()", cure.says))
        assert called <= names_of(cure.program), "the program does not call what the message says"


def names_of(program: Program) -> set[str]:
    """Every name that a program uses, and those of the functions of tests/behaviour/errors/cures that it calls."""
    function: Any = program.func if isinstance(program, partial) else program
    code = getattr(function, "__code__", None)
    return {function.__name__} if code is None else set(_names(code, function.__globals__, set()))


def _names(code: CodeType, known: dict[str, object], seen: set[CodeType]) -> Iterator[str]:
    if code in seen:
        return
    seen.add(code)
    for used in code.co_names:
        yield used
        inner = getattr(known.get(used), "__code__", None)
        if inner is not None and Path(inner.co_filename).parent == Path(code.co_filename).parent:
            yield from _names(inner, known, seen)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant, known, seen)


def test_every_text_of_a_message_is_met() -> None:
    """Each piece of a message is seen in what one of the wrong programs is told, or has a reason why no test provokes
    it. A reason that is not needed any more is left out."""
    told = [message(case)[0] for case in CASES]
    missing = [piece for piece in set(pieces()) if not any(map(piece.is_in, told))]
    unexplained = sorted(str(piece) for piece in missing if not reasons_for(piece))
    assert not unexplained, "\n".join(unexplained)
    assert {*LEFT_OUT, *LEFT_OUT_ROOMS} == {reason for piece in missing for reason in reasons_for(piece)}


def reasons_for(piece: Piece) -> set[str]:
    """The rooms and the words by which a piece is excused from being met by a program."""
    rooms = LEFT_OUT_ROOMS.keys() & set(piece.module.removesuffix(".py").split("/"))
    return rooms | {words for words in LEFT_OUT if not rooms and words in piece.text}
