"""Functions as arguments of pipelines that read attributes of classes and modules: each value has a plan of its own."""

import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dagpu import DeviceOp, expr, f32, from_host, pipeline

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
