"""The plugin in mypy's daemon: after each edit it says what a run from nothing says.

The daemon checks again only the functions that an edit touches, without the call at a module's end in which the plugin
works otherwise. So this is where errors would be lost, doubled or left over.
"""

import ast
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

import pytest
from mypy.dmypy_server import Server, process_start_options

from tests.conftest import only_deep
from tests.support.mypy_checks import Checker, Message, dependencies, parsed
from tests.support.paths import ROOT

pytestmark = pytest.mark.xdist_group("mypy_plugin")

KERNELS = """
from dagpu import In, Out, f32, kernel


@kernel(cuda="__global__ void saxpy(Tile<float, 2> y, float a, View<const float, 2> x) {}")
def saxpy(y: Out[f32], a: float, x: In[f32]) -> None: ...
"""

HELPER = """
from dagpu import DeviceOp, Tensor, TensorRef, dup, f32


def helper(x: Tensor[f32]) -> None: ...
def copied(x: Tensor[f32]) -> DeviceOp[Tensor[f32]]:
    return dup(x)
def other() -> int:
    return 1
"""

USE = """
import helper as h
from dagpu import DeviceOp, Partition, Tensor, TensorRef, f32, value, zeros
from helper import copied, helper
from kernels import saxpy


def caller(x: Tensor[f32]) -> None:
    helper(x)
    print(x.ndim)


def by_attribute(x: Tensor[f32]) -> None:
    h.helper(x)
    print(x.ndim)


def lends(x: Tensor[f32]) -> None:
    helper(x.borrow())
    print(x.ndim)


def relay(x: Tensor[f32]) -> None:
    helper(x)


def by_relay(x: Tensor[f32]) -> None:
    relay(x)
    print(x.ndim)


def plain(x: Tensor[f32]) -> None:
    y = x
    z = x


def ignored(x: Tensor[f32]) -> None:
    x.share()
    print(x.ndim)  # type: ignore[dagpu-use-after-move]


def conflicting(x: Tensor[f32]) -> None:
    lent = x.borrow()
    saxpy(x.borrow_mut().partition((2, 2)), 1.0, lent).sync()


def escaping() -> TensorRef[f32]:
    local = zeros((4, 4)).sync()
    return local.borrow()


def uneven() -> None:
    zeros((10, 4)).partition((4, 4)).sync()


def flat(x: Tensor[f32]) -> None:
    saxpy(zeros((16, 1)).partition((4, 1)), 1.0, x).sync()


def no_partition(x: Tensor[f32], y: Tensor[f32]) -> None:
    saxpy(y, 1.0, x).sync()


def dropped(x: Tensor[f32]) -> None:
    copied(x)


def exact(y: Partition[Tensor[f32]], x: TensorRef[f32]) -> DeviceOp[Partition[Tensor[f32]]]:
    return saxpy(y, 1.0, x).first()


class Holder:
    def method(self, x: Tensor[f32]) -> None:
        x.share()
        print(x.ndim)


owned: Tensor[f32] = zeros((2, 2)).sync()
owned.share()
print(owned.ndim)
"""

START = {"kernels.py": KERNELS, "helper.py": HELPER, "use.py": USE, "third.py": "import use\n\nx = 1\n"}

LENT = HELPER.replace("def helper(x: Tensor[f32])", "def helper(x: TensorRef[f32])")
BORROWING = HELPER.replace("DeviceOp[Tensor[f32]]:", "TensorRef[f32] | None:").replace("dup(x)", "None")
BOTH_WRITTEN = KERNELS.replace("x: In", "x: Out").replace("View<const float", "Tile<float")
RENAMED = USE.replace("def plain", "def a").replace("def caller", "def plain").replace("def a(", "def caller(")
ADDED = """

def added(x: Tensor[f32]) -> None:
    for _ in range(2):
        helper(x)
"""

EDITS: list[tuple[str, dict[str, str]]] = [
    ("nothing is changed", {}),
    ("a module that has nothing to do with it", {"third.py": "import use\n\nx = 2\n"}),
    ("the same again", {"third.py": "import use\n\nx = 3\n"}),
    ("a comment moves all lines", {"use.py": "# a comment\n" + USE}),
    ("the comment is gone", {"use.py": USE}),
    ("a function in another module borrows", {"helper.py": LENT}),
    ("it takes by value again", {"helper.py": HELPER}),
    ("a caller is put right", {"use.py": USE.replace("    helper(x)\n    print(x.ndim)\n", "    helper(x)\n", 1)}),
    ("so is the module's top", {"use.py": USE.replace("print(owned.ndim)", "pass")}),
    ("all mistakes are back", {"use.py": USE}),
    ("a signature that fits no call", {"helper.py": HELPER.replace("(x: Tensor[f32]) -> None", "(*, k: int) -> None")}),
    ("it fits again", {"helper.py": HELPER}),
    ("a kernel's CUDA source has another rank", {"kernels.py": KERNELS.replace("float, 2", "float, 1")}),
    ("a kernel writes both", {"kernels.py": BOTH_WRITTEN}),
    ("the kernel as it was", {"kernels.py": KERNELS}),
    ("a function gives a borrow instead of an op", {"helper.py": BORROWING}),
    ("a file that cannot be parsed", {"helper.py": HELPER + "def :\n"}),
    ("it can", {"helper.py": HELPER}),
    ("an ignore is taken out", {"use.py": USE.replace("  # type: ignore[dagpu-use-after-move]", "")}),
    ("an ignore that is not needed", {"use.py": USE.replace("x.share()\n    print(x.ndim)  #", "print(x.ndim)  #")}),
    ("a function is added", {"use.py": USE + ADDED}),
    ("functions change names", {"use.py": RENAMED}),
    ("a name is not there", {"helper.py": HELPER.replace("def copied", "def renamed")}),
    ("everything at once", {**START, "third.py": "import use\n\nx = 4\n"}),
]  # fmt: skip


def states() -> list[tuple[str, dict[str, str]]]:
    """All files after each edit."""
    files = dict(START)
    found = [("the beginning", files)]
    for name, edit in EDITS:
        files = files | edit
        found.append((name, files))
    return found


@final
class Daemon:
    """mypy's daemon, without its socket."""

    def __init__(self, folder: Path, configuration: Path) -> None:
        self._folder = folder
        flags = [f"--config-file={configuration}", "--no-error-summary"]
        self._server = Server(process_start_options(flags, allow_sources=False), str(folder / "status.json"))
        self._written: dict[str, str] = {}
        self._time = 1_000_000_000

    def check(self, files: Mapping[str, str]) -> list[Message]:
        """Write what has changed, each file later than any before, and check."""
        for name, text in files.items():
            if self._written.get(name) != text:
                self._time += 10
                (self._folder / name).write_text(text, encoding="utf-8")
                os.utime(self._folder / name, (self._time, self._time))
        self._written = dict(files)
        paths = [str(self._folder / name) for name in sorted(files)]
        answer = self._server.cmd_check(paths, export_types=False, is_tty=False, terminal_width=80)
        assert answer["err"] == ""
        return parsed(str(answer["out"]))


def parses(files: Mapping[str, str]) -> bool:
    """Return True if mypy gets past the parsing of these files."""
    try:
        for text in files.values():
            ast.parse(text)
    except SyntaxError:
        return False
    return True


def from_nothing(folder: Path, dependencies: Path, found: Sequence[Mapping[str, str]]) -> list[list[Message]]:
    """Return the report on each of these sets of files, of a run that has only the cache of numpy, trio and dagpu.

    One run checks all of them, each in a package of its own, as no module of one imports a module of another.
    """
    checker = Checker(folder, dependencies, f"{ROOT}:{folder}")
    names = []
    for number, files in enumerate(found):
        (folder / f"state{number}").mkdir()
        for name, text in files.items():
            names.append(f"state{number}/{name}")
            own = re.sub(r"^(import|from) (helper|kernels|use)\b", rf"\1 state{number}.\2", text, flags=re.MULTILINE)
            checker.write({names[-1]: own})
    reports: list[list[Message]] = [[] for _ in found]
    for line in checker.report(*names).splitlines():
        package = re.search(r"\bstate(\d+)/", line)
        assert package, line
        reports[int(package[1])] += parsed(line.replace(f"state{package[1]}.", ""))
    return reports


@only_deep
def test_the_daemon_says_what_a_run_from_nothing_says(tmp_path_factory: pytest.TempPathFactory) -> None:
    """After each of these edits, with nothing lost, nothing doubled and nothing left over."""
    cache = dependencies(tmp_path_factory)
    different_files = {repr(files): files for _, files in states()}  # several edits lead back to the same files
    alone = [
        [files] for files in different_files.values() if not parses(files)
    ]  # mypy reports such a file and no other
    reports: dict[str, list[Message]] = {}
    for together in [[files for files in different_files.values() if parses(files)], *alone]:
        found = from_nothing(tmp_path_factory.mktemp("states"), cache, together)
        reports |= {repr(files): report for files, report in zip(together, found, strict=True)}
    wanted = [reports[repr(files)] for _, files in states()]
    assert {message.code for message in wanted[0]} >= {
        "dagpu-use-after-move",
        "dagpu-conflicting-borrow",
        "dagpu-borrow-escape",
        "dagpu-output-partition",
        "dagpu-unused-op",
    }
    folder = tmp_path_factory.mktemp("daemon")
    configuration = Checker(tmp_path_factory.mktemp("configuration"), cache).configuration
    daemon = Daemon(folder, configuration)
    different: list[str] = []
    for (name, files), expected in zip(states(), wanted, strict=True):
        said = Counter(daemon.check(files))
        different += [f"{name}: lost {message}" for message in (Counter(expected) - said).elements()]
        different += [f"{name}: too many {message}" for message in (said - Counter(expected)).elements()]
    assert not different, "\n".join(different)
