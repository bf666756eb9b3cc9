"""Collects modules of the ordinary suite a second time, below tests/gpu: their tests then run on the GPU."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final, cast, final

import pytest

Fixture = Callable[..., Any]


@final
@dataclass(frozen=True)
class Suite:
    """A module of the ordinary suite: all its tests or those in `only`, with some fixtures added or replaced."""

    module: ModuleType
    only: frozenset[str] = frozenset()
    fixtures: Mapping[str, Fixture] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.module.__name__.rpartition(".")[2]


class Again(pytest.Module):
    """The tests and the fixtures of one suite, in a module object of their own.

    pytest reads the fixtures of a module object once. A run that collects the ordinary suite and this one needs them
    in both places, so the tests cannot be collected from the same object.
    """

    suite: Suite

    def _getobj(self) -> ModuleType:
        copied = ModuleType(f"{__package__}.{self.suite.name}", self.suite.module.__doc__)
        for name, found in vars(self.suite.module).items():
            left_out = self.suite.only and name.startswith("test_") and name not in self.suite.only
            if not name.startswith("_") and not left_out:
                setattr(copied, name, found)
        for name, fixture in self.suite.fixtures.items():
            setattr(copied, name, fixture)
        return copied


class Suites(pytest.Module):
    """A module with a table `SUITES`: it collects each suite of the table, and nothing else."""

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        suites: Final = cast("tuple[Suite, ...]", self.obj.SUITES)
        for suite in suites:
            again = Again.from_parent(self, path=self.path, name=suite.name, nodeid=f"{self.nodeid}::{suite.name}")
            again.suite = suite
            yield again
