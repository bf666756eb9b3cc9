"""Functions as arguments of pipelines that read attributes of classes and modules: each value has a plan of its own."""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import ModuleType
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpu import DeviceOp, expr, f32, from_host, pipeline
from dagpu.runtime import plan_lookup

Op = DeviceOp[Any, Any, Any]
scaled = expr(f32, f32)(lambda x, a: x * a)
X = np.arange(1, 5, dtype=np.float32)


class Base:
    gain = 1.0


class Settings(Base):
    """Its attribute `gain` is set between calls."""

    @property
    def own(self) -> float:
        return self.gain

    @classmethod
    def of_class(cls, v: float) -> float:
        return v * cls.gain

    @staticmethod
    def static(v: float) -> float:
        return v * Settings.gain


Kept = Settings
"""The class by another name."""


@pytest.fixture
def settings() -> Iterator[Any]:
    """A module of settings, which an import finds."""
    module: Any = ModuleType("settings_of_a_test")
    module.gain = 1.0
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


@pipeline
def applied(x: Any, f: Callable[[float], float]) -> Op:
    return scaled(from_host(x), f(2.0)).to_host()


def times_gain(v: float) -> float:
    return v * Settings.gain


def imported_inside(v: float) -> float:
    import settings_of_a_test  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]  # reason: this test makes it

    return v * float(settings_of_a_test.gain)


def from_inside(v: float) -> float:
    from settings_of_a_test import gain  # pyright: ignore[reportMissingImports]  # reason: this test makes it

    return v * float(gain)


def over(owner: Any) -> Callable[[float], float]:
    return lambda v: v * owner.gain


OF_CLASSES: dict[str, Callable[[], Callable[[float], float]]] = {
    "a class": lambda: lambda v: v * Settings.gain,
    "another name": lambda: lambda v: v * Kept.gain,
    "another function": lambda: times_gain,
    "a comprehension": lambda: lambda v: sum([times_gain(each) for each in (v,)]),
    "a generator": lambda: lambda v: sum(v * Settings.gain for _ in range(1)),
    "a closure": lambda: over(Settings),
    "a default": lambda: lambda v, owner=Settings: v * owner.gain,  # type: ignore[misc]  # reason: called with v alone
    "a partial": lambda: partial(lambda owner, v: v * owner.gain, Settings),
    "a class method": lambda: Settings.of_class,
    "a static method": lambda: Settings.static,
    "a method by name": lambda: lambda v: Settings.of_class(v),
    "an object": lambda: lambda v: v * Settings().own,
    "getattr": lambda: lambda v: v * getattr(Settings, "gain"),  # noqa: B009  # it is what the test is about
    "globals": lambda: lambda v: v * float(globals()["Settings"].gain),
}


@pytest.mark.filterwarnings("ignore:.*by which no plan can be found:RuntimeWarning")
@pytest.mark.parametrize("kind", OF_CLASSES)
def test_an_attribute_of_a_class(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that reads an attribute of a class, by whatever way, gives the value that the attribute has now."""
    for step in (0.0, 1.0, 0.0, 3.0):
        monkeypatch.setattr(Base, "gain", step)
        np.testing.assert_array_equal(applied(X, OF_CLASSES[kind]()).sync(), 2 * step * X)


@pytest.mark.parametrize("kind", ["inside", "from", "closure"])
def test_an_attribute_of_a_module(kind: str, settings: Any) -> None:
    """The same of a module, which is imported inside of the function, or closed over. Values seen find their plans."""
    f = {"inside": imported_inside, "from": from_inside, "closure": over(settings)}[kind]
    applied.cache_clear()
    for step in (0.0, 1.0, 0.0, 3.0, 1.0):
        settings.gain = step
        np.testing.assert_array_equal(applied(X, f).sync(), 2 * step * X)
    assert applied.cache_info()[:2] == (2, 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: lambda v: float(np.sqrt(v) * math.pi + np.mean(v) + np.linalg.norm(v)),
        lambda: lambda v: float(np.add.reduce([v, np.float32(1)])) + math.floor(v) + len(str(v)),
        lambda: lambda v: v * Settings.gain,
        lambda: lambda v: Settings.of_class(v),
    ],
)
def test_what_does_not_change_finds_its_plan(make: Callable[[], Callable[[float], float]]) -> None:
    """Functions of modules, and attributes that stay, make no other plan."""
    applied.cache_clear()
    for _ in range(5):
        applied(X, make()).sync()
    assert applied.cache_info()[:2] == (4, 1)


def test_the_name_of_a_function_is_read() -> None:
    """Two functions of one code with names of their own are two arguments."""

    @pipeline
    def by_name(x: Any, f: Any) -> Op:
        return scaled(from_host(x), float(len(f.__name__))).to_host()

    for name in ("a", "bcd", "a"):
        f: Any = lambda v: v  # noqa: E731  # reason: its name is set
        f.__name__ = name
        np.testing.assert_array_equal(by_name(X, f).sync(), len(name) * X)


# ---- classes and modules as arguments


class Mode(Enum):
    """A choice; its members and itself get attributes."""

    SLOW = 1
    FAST = 2

    def scaled(self, by: float) -> float:
        return by * Settings.gain


class Free:
    """A class that functions read."""

    gain = 1.0
    offset = 0.0

    @classmethod
    def more(cls) -> float:
        return cls.offset + sum(Held.factors)

    @property
    def named(self) -> float:
        return helper()


class Held:
    factors = (1.0, 2.0)


class Sub(Free):
    inner = Held


@dataclass(frozen=True)
class Setting(Free):
    """A frozen dataclass whose class has attributes."""

    number: float


def helper() -> float:
    return Settings.gain


def everything(x: Any) -> float:
    """A number that depends on all attributes that are set here."""
    if isinstance(x, tuple):
        return sum((place + 1) * everything(each) for place, each in enumerate(x))
    if isinstance(x, Mode):
        return x.value + getattr(x, "extra", 0.0) + everything(type(x)) + x.scaled(2.0)
    if x is Mode:
        return float(getattr(x, "weight", 1.0)) + sum(getattr(each, "extra", 0.0) for each in Mode)
    if isinstance(x, Setting):
        return x.number + everything(Setting) + x.named
    if x is Sub:
        return everything(Free) + x.inner.factors[0]
    if isinstance(x, type):
        found: Any = x
        return float(found.gain) + (found.more() if issubclass(x, Free) else 0.0)
    return float(x())


VALUES: Final[dict[str, Callable[[], Any]]] = {
    "class": lambda: Free,
    "class with a base": lambda: Sub,
    "enumeration": lambda: Mode,
    "member": lambda: Mode.FAST,
    "dataclass": lambda: Setting(2.0),
    "class of a dataclass": lambda: Setting,
    "class method": lambda: Free.more,
    "function": lambda: helper,
    "partial": lambda: partial(everything, Settings),
    "closure": lambda: lambda: everything_of(Free),
    "two": lambda: (Free, Mode.SLOW),
}


def everything_of(x: Any) -> float:
    return float(x.gain)


CHANGES: Final[list[tuple[Any, str]]] = [
    (Free, "gain"), (Free, "offset"), (Base, "gain"), (Settings, "gain"), (Mode, "weight"), (Mode.FAST, "extra"),
    (Mode.SLOW, "extra"), (Setting, "gain"), (Held, "factors"), (Sub, "gain"),
]  # fmt: skip
"""Attributes that are set between calls."""


@pipeline
def read(x: Any, a: Any) -> Op:
    return scaled(from_host(x), everything(a)).to_host()


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(VALUES)), st.sampled_from(CHANGES), st.sampled_from([1.0, 2.0, 5.0])),
        min_size=2,
        max_size=8,
    )
)
def test_attributes_behind_an_argument_are_read_each_time(steps: list[tuple[str, tuple[Any, str], float]]) -> None:
    """What is set on classes, members of enumerations and bases between calls: each call gives what a trace gives now.
    Calls between which nothing is set trace once."""
    read.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        for name, (owner, attribute), number in steps:
            for _ in range(3):
                right = everything(VALUES[name]())
                np.testing.assert_array_equal(read(X, VALUES[name]()).sync(), np.float32(right) * X)
            before = read.cache_info().misses
            read(X, VALUES[name]()).sync()
            assert read.cache_info().misses == before
            patch.setattr(owner, attribute, (number, 2.0) if attribute == "factors" else number, raising=False)


@pytest.mark.parametrize("kind", ["a module", "a class"])
def test_a_module_or_a_class_that_holds_an_object_has_no_plan(kind: str, settings: Any) -> None:
    """The call is traced each time, and a warning says so: what it holds may be changed in place."""

    class Holder:
        gain = np.ones(())

    @pipeline
    def gain_of(x: Any, owner: Any) -> Op:
        return scaled(from_host(x), float(owner.gain)).to_host()

    def results(owner: Any) -> list[Any]:
        found = []
        for step in range(4):
            settings.gain, Holder.gain[()] = float(step), step
            found.append(gain_of(X, owner).sync())
        return found

    plan_lookup._warned.clear()  # noqa: SLF001  # a warning comes once in a process
    with pytest.warns(RuntimeWarning, match="by which no plan can be found"):
        found = results(settings if kind == "a module" else Holder)
    np.testing.assert_array_equal(found, [step * X for step in range(4)])


def test_a_class_of_an_installed_package_is_a_name() -> None:
    """A module of Python or NumPy, an element type and a class of dagpu find their plan."""

    @pipeline
    def plain(x: Any, _: Any) -> Op:
        return scaled(from_host(x), 2.0).to_host()

    for each in (math, np, np.float32, dict, DeviceOp, np.dtype("f4")):
        for _ in range(3):
            plain(X, each).sync()
    assert plain.cache_info()[:2] == (12, 6)
