"""Ops and a counting pipeline that the tests of pipelines share."""

from collections.abc import Callable, Iterator
from typing import Any, final

import pytest

from dagpu import empty, full, pipeline
from dagpu.runtime import plan_lookup
from dagpu.testing import plans, storage_of
from tests.programs.arithmetic import add, scale
from tests.programs.expressions import Op

S = (2, 2)


@pytest.fixture(autouse=True)
def no_plans_yet() -> Iterator[None]:
    """Whatever ran before has left nothing that an op of the same structure would find, and warned of nothing."""
    plans.clear()
    plan_lookup._warned.clear()  # noqa: SLF001  # a warning comes once in a process
    yield
    plans.clear()


def out(shape: tuple[int, ...] = S) -> Op:
    return empty(shape).partition(shape)


def tensor(number: float = 0.0, shape: tuple[int, ...] = S) -> Any:
    return full(shape, number).sync()


def shared(number: float = 0.0, shape: tuple[int, ...] = S) -> Any:
    return full(shape, number).share().sync()


def scaled(by: Any, x: Any) -> Op:
    return scale(out(), by, x).first().unpartition()


def added(x: Any, y: Any) -> Op:
    return add(out(), x, y).first().unpartition()


def number_in(handle: Any) -> float:
    """The first element of a tensor, which stays alive."""
    borrowed = handle.borrow() if hasattr(handle, "borrow") else handle
    return float(borrowed.to_host().sync().flat[0])


@final
class Calls:
    """A pipeline that counts how often its function is called."""

    def __init__(self, f: Callable[..., Op], **options: Any) -> None:
        self.count = 0

        def counted(*arguments: Any, **named: Any) -> Op:
            self.count += 1
            return f(*arguments, **named)

        self.pipeline: Any = pipeline(**options)(counted)

    def __call__(self, *arguments: Any, **named: Any) -> Op:
        op: Op = self.pipeline(*arguments, **named)
        return op


def unlocked(*handles: Any) -> bool:
    return all((storage_of(h).lock.writer, storage_of(h).lock.readers) == (None, 0) for h in handles)
