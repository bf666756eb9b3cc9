"""Random programs of moves and loans: mypy refuses one exactly if a path through it does what is refused.

The conditions of a program are drawn and independent of each other, so all paths that its text has can be taken. A
run takes them one after the other; mypy is to find the same without running anything. What it reports must be a line on
which a path goes wrong; of all the lines that use what one move has taken it reports the first alone.

    python -m tests.plugin.test_mypy_random FOLDER SEED...     # the disagreements alone; FOLDER keeps mypy's cache
"""

import importlib.util
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, TypeAlias, get_args

import pytest

from tests.support.mypy_checks import Checker, dependencies
from tests.typing.plugin.oracle import CONFLICTING_BORROW, USE_AFTER_MOVE, mistakes

PROGRAMS: Final = 70
"""Functions of each kind."""
Kind: TypeAlias = Literal["moves", "attributes", "closures", "loans"]
"""Moves of variables, of an object's attributes, or by functions within; or moves and loans of variables."""
Mistakes: TypeAlias = set[tuple[int, str]]
"""(line, error code)"""
EFFORTS: Final = ((1_000, 2), (5_000, 4), (50_000, 6))
"""How many paths are taken, and how many rounds of loops on each: more of both where the first do not agree."""
DEEPEST: Final = 2

CALLS: Final = ("again", "choice", "eat", "going", "look", "make", "pick", "quiet", "rounds", "same", "use")
CALL: Final = re.compile(rf"\b({'|'.join(CALLS)})\(")
HEADER: Final = f"from tests.typing.plugin.oracle import Holder, Stop, {', '.join(f'{c}, {c}_' for c in CALLS)}\n"


class Writer:
    """Writes one function after another; `chance` decides."""

    def __init__(self, chance: random.Random, kind: Kind) -> None:
        self.chance = chance
        self.kind = kind
        self.names = ("o.a", "o.b", "o.c") if kind == "attributes" else ("a", "b", "c")
        self.lines: list[str] = [HEADER]
        self.guards = 0
        """How many blocks around this statement catch what a call in it raises."""
        self.handlers = 0
        """How many of these are `except Stop`: inside of one, another never sees what the inner has let pass."""

    def function(self, name: str) -> None:
        """A function of some statements on three tensors."""
        self.lines.append(f"\n\ndef {name}() -> None:")
        if self.kind == "attributes":
            self.put(1, "o = Holder(make(), make(), make())")
        else:
            self.put(1, "a, b, c = make(), make(), make()")
        if self.kind == "loans":
            self.put(1, "r, q, m = a.borrow(), b.borrow(), c.borrow_mut()")
        if self.kind == "closures":
            self.nested("g")
            self.nested("h")
        self.block(1, self.chance.randint(2, 5), loop=False)

    def nested(self, name: str) -> None:
        """A function in the function; what it calls may fail, whoever calls it."""
        self.put(1, f"def {name}() -> None:")
        self.put(2, "nonlocal a, b, c")
        self.guards += 1
        for _ in range(self.chance.randint(1, 2)):
            self.put(2, self.simple())
        self.guards -= 1
        self.lines.append("")
        self.put(1, "if choice():")  # a mistake in it alone is one whether it is called later or not
        self.put(2, f"{name}()")
        self.put(2, "return")

    def block(self, depth: int, length: int, *, loop: bool) -> None:
        """Statements; one that leaves the block comes last."""
        for _ in range(length):
            if depth > 1 and self.chance.random() < 0.12:
                words = ["return", "raise Stop", *(["break", "continue"] * 2 if loop else [])]
                self.put(depth, self.chance.choice(words))
                return
            if depth <= DEEPEST and self.chance.random() < 0.4:
                self.chance.choice([self.if_, self.while_, self.for_, self.try_, self.with_, self.match_])(depth, loop)
            else:
                self.put(depth, self.simple())

    def inner(self, depth: int, loop: bool) -> None:
        self.block(depth + 1, self.chance.randint(1, 2), loop=loop)

    def put(self, depth: int, text: str) -> None:
        """A line. Only where it is caught does a call fail: elsewhere that ends a path and shows nothing."""
        self.lines.append("    " * depth + (CALL.sub(r"\1_(", text) if self.guards else text))

    def guarded(self, depth: int, loop: bool) -> None:
        """A block in which the calls may fail, the first of them at its very begin."""
        self.guards += 1
        self.put(depth + 1, "look(0)")
        self.inner(depth, loop)
        self.guards -= 1

    def maybe(self) -> bool:
        return self.chance.random() < 0.5

    def simple(self) -> str:
        """A statement without others in it."""
        v, w = self.chance.sample(self.names, 2)
        if self.kind == "loans" and self.maybe():
            return self.lending(v, *self.chance.sample("rq", 2))
        if self.kind == "closures" and not self.guards and self.chance.random() < 0.4:
            return self.chance.choice(["g()", "h()"])
        forms = [
            f"look({v}.ndim)",
            f"eat({v})",
            f"{v} = make()",
            f"{v} = again({v})",
            f"{v} = again({w})",
            f"{v}, {w} = again({w}), again({v})",
            f"look([{v}.ndim for _ in rounds()])",
            f"look([eat({v}) for _ in rounds()])",
            f"look(eat({v}) if choice() else {w}.ndim)",
            f"look(choice() and eat({v}))",
            f"look(choice() or {v}.ndim)",
            f"look({w}.ndim + (again({v})).ndim)" if "." in v else f"look(({v} := again({v})).ndim + {w}.ndim)",
            f"look((lambda: {v}.ndim)())",
            f"look({v}.ndim <= eat({v}) <= {w}.ndim)",
            f"look(eat({v})) if choice() else look({v}.ndim)",
        ]
        return self.chance.choice(forms)

    def lending(self, v: str, r: str, q: str) -> str:
        """A statement with loans of `v`, or in the variables `r`, `q` (for reading) and `m` (for writing)."""
        forms = [
            *[f"{r} = {v}.borrow()", f"m = {v}.borrow_mut()", f"look({r}.ndim)", "look(m.ndim)"] * 2,
            f"{r} = same({q})",
            f"{r}, {q} = same({q}), {v}.borrow()",
            f"{r} = same({q}) if choice() else {v}.borrow()",
            f"use({r}, {v}.borrow_mut())",
            f"use({v}.borrow_mut(), {r})",
            f"use({v}.borrow(), m)",
            f"use({v}.borrow(), {v}.borrow())",
            f"look((lambda: {r}.ndim)())",
            f"look([{r}.ndim for _ in rounds()])",
            f"look(choice() and {r}.ndim)",
            f"look(({r} := {v}.borrow()).ndim)",
        ]
        return self.chance.choice(forms)

    def if_(self, depth: int, loop: bool) -> None:
        self.put(depth, "if choice():")
        self.inner(depth, loop)
        if self.maybe():
            self.put(depth, "elif choice():")
            self.inner(depth, loop)
        if self.maybe():
            self.put(depth, "else:")
            self.inner(depth, loop)

    def while_(self, depth: int, loop: bool) -> None:
        v = self.chance.choice(self.names)
        self.put(depth, self.chance.choice(["while going():", f"while going() and {v}.ndim:"]))
        self.inner(depth, True)
        self.otherwise(depth, loop)

    def for_(self, depth: int, loop: bool) -> None:
        self.put(depth, "for _ in rounds():")
        self.inner(depth, True)
        self.otherwise(depth, loop)

    def otherwise(self, depth: int, loop: bool) -> None:
        if self.chance.random() < 0.3:
            self.put(depth, "else:")
            self.inner(depth, loop)

    def try_(self, depth: int, loop: bool) -> None:
        caught = self.maybe() and not self.handlers
        cleans_up = not caught or self.maybe()
        self.put(depth, "try:")
        self.handlers += caught
        self.guarded(depth, loop)
        self.handlers -= caught
        self.guards += cleans_up  # its clean-up sees what fails in the handler, too
        if caught:
            self.put(depth, "except Stop:")
            self.inner(depth, loop)
            self.otherwise(depth, loop)
        self.guards -= cleans_up
        if cleans_up:
            self.put(depth, "finally:")
            self.put(depth + 1, self.simple())

    def with_(self, depth: int, loop: bool) -> None:
        self.put(depth, "with quiet():")
        self.guarded(depth, loop)

    def match_(self, depth: int, loop: bool) -> None:
        self.put(depth, "match pick():")
        for pattern in ("0", "1", "_")[self.chance.randint(0, 1) :]:
            self.put(depth + 1, f"case {pattern}:")
            self.inner(depth + 1, loop)


def written(seed: int, count: int, kind: Kind) -> str:
    """A module of random functions `f0`, `f1`, ..."""
    writer = Writer(random.Random(seed), kind)
    for number in range(count):
        writer.function(f"f{number}")
    return "\n".join(writer.lines) + "\n"


def loaded(file: Path) -> Any:
    """The module, run from its file."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def disagree(function: Callable[[], None], says: Mistakes) -> Mistakes | None:
    """Return the mistake of a run if mypy does not name it; None if they agree.

    Where there are too many paths to take them all, which is so for every tenth, a miss alone can be told.
    """
    does: Mistakes = set()
    for most, rounds in EFFORTS:
        does, all_paths = mistakes(function, most, rounds)
        if does and not says:
            return does
        if not all_paths or says <= does:
            return None
    return does


def disagreements(file: Path, refused: Mistakes) -> list[str]:
    """Each function of which mypy and its runs say different things, with both and its text."""
    text = file.read_text(encoding="utf-8").splitlines()
    module = loaded(file)
    starts = [number for number, line in enumerate(text, start=1) if line.startswith("def ")]
    found = []
    for start, end in zip(starts, [*starts[1:], len(text) + 1], strict=True):
        says = {(line, code) for line, code in refused if start <= line < end}
        does = disagree(getattr(module, re.findall(r"\w+", text[start - 1])[1]), says)
        if does is not None:
            body = "\n".join(f"{n:5} {line}" for n, line in enumerate(text[start - 1 : end - 1], start))
            found.append(f"mypy refuses {sorted(says)}, a run {sorted(does)}:\n{body}")
    return found


def check(seed: int, folder: Path, cache: Path) -> list[str]:
    """The disagreements over a module of random functions of each kind."""
    checker = Checker(folder, cache)
    texts = {f"{kind}{seed}.py": written(seed, PROGRAMS, kind) for kind in get_args(Kind)}
    checker.write(texts)
    messages = checker.check(*texts)
    assert {message.code for message in messages} == {USE_AFTER_MOVE, CONFLICTING_BORROW}, messages
    found: list[str] = []
    for name in texts:
        refused = {(message.line, message.code) for message in messages if message.file == name}
        found += disagreements(folder / name, refused)
    return found


def test_mypy_refuses_what_a_path_refuses(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No miss and no false alarm over random control flow."""
    found = check(1, tmp_path, dependencies(tmp_path_factory))
    assert not found, f"{len(found)} of {3 * PROGRAMS}\n" + "\n\n".join(found[:3])


if __name__ == "__main__":
    home = Path(sys.argv[1])
    (home / "dependencies").mkdir(parents=True, exist_ok=True)
    for number in map(int, sys.argv[2:]):
        with TemporaryDirectory(dir=home) as scratch:
            print(number, *check(number, Path(scratch), home / "dependencies"), sep="\n")
