"""The facts that the library exports and the mypy plugin reads: each names what exists, and a run does what it says."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from dagpu import Mesh, MovedError, TensorMut, gather, shard_host, zeros
from dagpu.common import facts
from dagpu.mypy_plugin import names
from dagpu.mypy_plugin.analysis import values


def strings(value: object) -> Iterator[str]:
    """The strings in a table."""
    match value:
        case str():
            yield value
        case Mapping():
            yield from strings(tuple(value.items()))
        case tuple() | AbstractSet():
            for item in value:
                yield from strings(item)
        case _:
            pass


NAMED = sorted(
    {
        name
        for table in (names, values)
        for value in vars(table).values()
        for name in strings(value)
        if name.startswith("dagpu.")
    }
)
"""All names of dagpu's in the plugin."""


TYPED_ALONE = {facts.full_name("KernelOp.unzip")}
"""Methods that a class defines for checkers alone, and inherits at run time."""


def found(name: str) -> object:
    """The object of a full name, and nothing that only another name leads to."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            owner: object = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            owner = getattr(owner, part) if name in TYPED_ALONE else vars(owner)[part]
        return owner
    raise LookupError(name)


@pytest.mark.parametrize("name", NAMED)
def test_a_name_is_that_of_a_definition(name: str) -> None:
    """mypy names a class, a function or a method by the module and the class that define it, and so does the plugin."""
    definition = found(name.removesuffix("."))
    if isinstance(definition, type | FunctionType) and name not in TYPED_ALONE:
        assert f"{definition.__module__}.{definition.__qualname__}" == name


def test_the_plugin_names_much_of_dagpu() -> None:
    """The test above is not empty, and the plugin has no name but from the facts: a text with one would break."""
    assert len(NAMED) > 80
    plugin = Path(names.__file__).parent
    written = [file.name for file in plugin.rglob("*.py") if 'f"dagpu.' in file.read_text(encoding="utf-8")]
    assert written == []


def test_what_a_fact_names_may_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its import in the public module leads to it, also by way of packages; the plugin needs no change."""
    monkeypatch.setattr(facts, "_PACKAGE", tmp_path)

    def name(files: dict[str, str], of: str) -> str:
        for file, text in files.items():
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(text, encoding="utf-8")
        for kept in (facts._imports, facts._file):  # noqa: SLF001  # reason: the files of a program do not change
            kept.cache_clear()
        return facts.full_name(of)

    here = {"entry/public.py": "from dagpu.old import A as B", "old.py": "from dagpu.new import A"}
    assert name(here, "B.f") == "dagpu.old.A.f"
    there = {"entry/public.py": "from dagpu.room import A as B", "room/__init__.py": "from dagpu.room.new import A"}
    assert name({**there, "room/new.py": "class A: ..."}, "B.f") == "dagpu.room.new.A.f"
    assert name({"entry/public.py": "from dagpu import room as here"}, "here.A") == "dagpu.room.new.A"
    assert name({}, "room.A") == "dagpu.room.new.A"
    with pytest.raises(LookupError, match=r"C\.f is not public"):
        name({}, "C.f")
    monkeypatch.undo()
    for kept in (facts._imports, facts._file):  # noqa: SLF001  # reason: as above
        kept.cache_clear()


# ---- what a run does

MADE: dict[str, Callable[[], Any]] = {
    "Tensor": lambda: zeros((8,)).sync(),
    "SharedTensor": lambda: zeros((8,)).sync().share(),
    "TensorMut": lambda: zeros((8,)).sync().borrow_mut(),
    "Partition": lambda: zeros((8,)).sync().partition((4,)),
    "Sharded": lambda: shard_host(np.ones((8,), np.float32), Mesh(["host:0", "host:1"])).sync(),
}
"""Makes a handle of each class of which a method moves or lends it."""
GIVEN: dict[str, object] = {"partition": (4,), "reshape": (2, 4), "view": (2, 4), "slice": slice(0, 4)}
"""The argument of each method that needs one."""


def call(handle: object, name: str) -> object:
    """Call the method of a fact."""
    method = name.partition(".")[2]
    return getattr(handle, method)(*[GIVEN[method]] if method in GIVEN else [])


@pytest.mark.parametrize("name", facts.MOVES_SELF)
def test_a_run_moves_what_a_fact_says(name: str) -> None:
    """The handle is moved from then on, in the words of the fact."""
    handle = MADE[name.partition(".")[0]]()
    kept = call(handle, name)
    with pytest.raises(MovedError, match=re.escape(facts.MOVES_SELF[name])):
        call(handle, name)
    del kept


@pytest.mark.parametrize("name", facts.LENDS_SELF)
def test_a_run_lends_what_a_fact_says(name: str) -> None:
    """The handle is not moved, and what was lent is void once it is."""
    handle = MADE[name.partition(".")[0]]()
    lent: Any = call(handle, name)
    assert isinstance(lent, TensorMut) is facts.LENDS_SELF[name]
    call(handle, name)
    handle.to_host()
    with pytest.raises(MovedError, match="its tensor"):
        lent.to_host() if hasattr(lent, "to_host") else gather(lent)


@pytest.mark.parametrize("name", facts.NEVER_RAISES)
def test_a_method_raises_a_moved_error_alone(name: str) -> None:
    """It takes no argument that could be wrong, and succeeds on any handle that has not moved."""
    method = found(facts.full_name(name))
    assert isinstance(method, FunctionType)
    assert list(inspect.signature(method).parameters) == ["self"]
    call(MADE[name.partition(".")[0]](), name)
