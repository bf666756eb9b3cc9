"""The cures that mypy's messages name, applied: the program that got the message, as each cure has it, is right."""

import re
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from tests.plugin.mistakes_and_cures import HEAD, MISTAKES
from tests.support.mypy_checks import Checker, Message, dependencies

pytestmark = pytest.mark.xdist_group("mypy_plugin")


class Mistake(NamedTuple):
    """One of them."""

    code: str
    wrong: str
    cures: list[tuple[str, str]]


def mistakes() -> list[Mistake]:
    """Return the mistakes of the text, each with its error code, its program and its cures."""
    found = []
    for section in re.split(r"^## ", MISTAKES, flags=re.MULTILINE)[1:]:
        wrong, *cures = re.split(r"^# ", section, flags=re.MULTILINE)
        code, _, body = wrong.partition("\n")
        cured = [cure.partition("\n") for cure in cures]
        found.append(Mistake(code, body.strip(), [(says, program.strip()) for says, _, program in cured]))
    return found


ALL = mistakes()


def program(bodies: Sequence[str]) -> tuple[str, list[range]]:
    """A function for each body, and the lines on which each stands."""
    text, places = HEAD, list[range]()
    for number, body in enumerate(bodies):
        begin = text.count("\n") + 1
        text += f"def body_{number}() -> None:\n{textwrap.indent(body, '    ')}\n"
        places.append(range(begin, text.count("\n") + 1))
    return text, places


WRONG = [mistake.wrong for mistake in ALL]
RIGHT = [body for mistake in ALL for _, body in mistake.cures]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Message]]:
    """Return the messages of mypy for all wrong programs, and for all right ones."""
    checker = Checker(tmp_path_factory.mktemp("cures"), dependencies(tmp_path_factory))
    checker.write({"wrong.py": program(WRONG)[0], "right.py": program(RIGHT)[0]})
    found = checker.check("wrong.py", "right.py")
    return {file: [message for message in found if message.file == file] for file in ("wrong.py", "right.py")}


@pytest.mark.parametrize("number", range(len(ALL)))
def test_a_message_names_its_cures(said: dict[str, list[Message]], number: int) -> None:
    """The wrong program gets one error, with the code and the words of each cure."""
    place = program(WRONG)[1][number]
    (error,) = [message for message in said["wrong.py"] if message.line in place and message.kind == "error"]
    assert error.code == ALL[number].code
    for says, _ in ALL[number].cures:
        assert says in error.text


def test_the_cures_are_right(said: dict[str, list[Message]]) -> None:
    """mypy finds nothing in any program to which a cure was applied."""
    assert len(RIGHT) > len(WRONG)
    assert said["right.py"] == []
