"""Random programs of composed calls: tuples that are taken apart, values that are shared, and sources."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from dagpu import DeviceOp, Pipeline, expr, f32, from_host, pipeline, source, value, zip_ops

# A pipeline that closes over what its run makes late leaves no plan, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:.*(is traced again|no plan can be found):RuntimeWarning")

Op = DeviceOp[Any, Any, Any]
X: Final = np.arange(4, dtype=np.float32)
scaled = expr(f32, f32)(lambda x, a: x * a)


@pipeline
def on_host(x: Any, a: Any) -> Any:
    """a * x, as an array."""
    return scaled(from_host(x), a).to_host()


@pipeline
def on_device(x: Any, a: Any) -> Any:
    """a * x, as a tensor."""
    return scaled(from_host(x), a)


@pipeline
def of_op(x: Any) -> Any:
    """An op and a constant, as arrays."""
    return zip_ops(x, from_host(X).to_host())


@pipeline
def in_two_stages(x: Any, y: Any) -> Any:
    """x, which comes to the host, and then y."""
    return scaled(from_host(x), 1.0).to_host().then(lambda a: zip_ops(value(a), y()))


PIPELINES: Final[list[Pipeline[..., Any]]] = [on_host, on_device, of_op]
CALLED: Final = Counter[object]()
"""How often each function has been called in a run."""


class Part(NamedTuple):
    """An op, and its value for the values of both sources."""

    op: Op
    value: Callable[[float, float], Any]
    is_shared: bool = False
    calls_user: bool = False
    """True if a function of the user's comes before it."""


class Step(NamedTuple):
    """One step of a program: it takes the parts at these places, of those that there are."""

    kind: str
    one: int
    other: int


def counted(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A new function that does the same and notes that it was called."""

    def called(x: Any) -> Any:
        CALLED[called] += 1
        return f(x)

    CALLED[called] = 0
    return called


def total(p: Any) -> Any:
    return p[0] + p[1]


def closes_over(op: Op) -> Callable[[Any], Op]:
    """A pipeline that closes over an op, and asks for it once its work is done."""
    return pipeline(lambda x: in_two_stages(x, lambda: op))


def _map(a: Part) -> list[Part]:
    return [Part(a.op.map(counted(lambda y: y + 1)), lambda *v: a.value(*v) + 1, calls_user=True)]


def _host_map(a: Part) -> list[Part]:
    return [Part(a.op.host_map(counted(lambda y: y + 2)), lambda *v: a.value(*v) + 2, calls_user=True)]


def _then(a: Part) -> list[Part]:
    return [Part(a.op.then(counted(lambda y: on_host(y, 2.0))), lambda *v: 2 * a.value(*v), calls_user=True)]


def _kernel(a: Part) -> list[Part]:
    op: Op = a.op.then(counted(lambda y: scaled(from_host(y), 3.0))).to_host()
    return [Part(op, lambda *v: 3 * a.value(*v), calls_user=True)]


def _shared(a: Part) -> list[Part]:
    return [Part(a.op.shared(), a.value, True, a.calls_user)]


def _of_op(a: Part) -> list[Part]:
    return [Part(of_op(a.op).map(counted(total)), lambda *v: a.value(*v) + X, calls_user=True)]


def _plain(a: Part) -> list[Part]:
    op: Op = zip_ops(a.op, on_device(X, 0.5)).first()
    return [Part(op, a.value, calls_user=a.calls_user)]


def _join(a: Part, b: Part) -> list[Part]:
    return [Part(zip_ops(a.op, b.op).map(counted(total)), lambda *v: a.value(*v) + b.value(*v), calls_user=True)]


def _unzip(a: Part, b: Part) -> list[Part]:
    after = a.calls_user or b.calls_user
    return [
        Part(op, part.value, calls_user=after) for op, part in zip(zip_ops(a.op, b.op).unzip(), (a, b), strict=True)
    ]


def _late(a: Part, b: Part) -> list[Part]:
    op: Op = a.op.then(counted(lambda y: zip_ops(value(y), b.op))).map(counted(total))
    return [Part(op, lambda *v: a.value(*v) + b.value(*v), calls_user=True)]


def _hidden(a: Part, b: Part) -> list[Part]:
    op = a.op.then(counted(closes_over(b.op))).map(counted(total))
    return [Part(op, lambda *v: a.value(*v) + b.value(*v), calls_user=True)]


def _hidden_in_part(a: Part) -> list[Part]:
    if not a.is_shared:
        return [a]
    return [Part(closes_over(a.op)(X).map(counted(total)), lambda *v: X + a.value(*v), calls_user=True)]


ONE: Final[dict[str, Callable[[Part], list[Part]]]] = {
    "map": _map,
    "host_map": _host_map,
    "then": _then,
    "kernel": _kernel,
    "shared": _shared,
    "of op": _of_op,
    "plain": _plain,
    "hidden in part": _hidden_in_part,
}
TWO: Final[dict[str, Callable[[Part, Part], list[Part]]]] = {
    "join": _join,
    "unzip": _unzip,
    "late": _late,
    "hidden": _hidden,
}
UNTRACED: Final = {"of op", "hidden", "hidden in part"}
"""Steps whose calls have no plan: behind a function of the user's, or of a pipeline that is new in each run."""

steps = st.lists(
    st.builds(Step, st.sampled_from([*ONE, *TWO, "unzip", "shared"]), st.integers(0, 7), st.integers(0, 7)),
    min_size=1,
    max_size=9,
)


def program(*texts: str) -> list[Step]:
    """The program of these steps: a kind, and the places that are not 0."""
    found: list[Step] = []
    for text in texts:
        kind = text.rstrip(" 0123456789")
        places = [int(each) for each in text.removeprefix(kind).split()]
        found.append(Step(kind, *[*places, 0, 0][:2]))
    return found


def built(steps: list[Step], s: Any, t: Any) -> Part:
    """The op of a program over two sources, or two numbers."""
    pool = [
        Part(on_host(X, s), lambda v, w: v * X),
        Part(on_device(X, t).to_host(), lambda v, w: w * X),
        Part(on_host(X, t), lambda v, w: w * X),
    ]
    for kind, *places in steps:
        taken: list[Part] = []
        for place in places[: 1 if kind in ONE else 2]:
            at = place % len(pool)
            taken.append(pool[at] if pool[at].is_shared else pool.pop(at))
            if not pool:
                pool.append(Part(on_host(X, s), lambda v, w: v * X))
        pool += ONE[kind](*taken) if kind in ONE else TWO[kind](*taken)
    last = list(pool)
    return Part(zip_ops(*[each.op for each in last]), lambda *v: [each.value(*v) for each in last])


def check(part: Part, found: Any, *values: float) -> None:
    """Check a result, and that each function was called once for it."""
    for mine, right in zip(found, part.value(*values), strict=True):
        np.testing.assert_array_equal(mine, right)
    assert set(CALLED.values()) <= {1}


async def awaited(op: Op) -> Any:
    return await op


@pytest.mark.parametrize("run", [lambda op: op.sync(), lambda op: trio.run(awaited, op)], ids=["sync", "await"])
@given(steps)
@example(program("late", "shared", "hidden in part 1", "shared 2"))
@example(program("hidden", "unzip", "hidden", "shared 1", "hidden"))
@example(program("hidden", "unzip", "shared 1", "unzip 0 1", "hidden in part 1", "shared 4"))
@example(program("unzip", "join", "late"))
@example(program("late", "shared", "late 1 1"))
@example(program("host_map", "then", "unzip", "kernel", "then"))
def test_a_program_gives_what_numpy_does(run: Callable[[Op], Any], written: list[Step]) -> None:
    """With new ops for numbers, and with the same ops for other values of their sources: each run calls each function
    once. From the second program on no pipeline is traced."""
    for each in PIPELINES:
        each.cache_clear()
    for times in range(3):
        CALLED.clear()
        part = built(written, 1.0 + times, 2.0)
        check(part, run(part.op), 1.0 + times, 2.0)
        if times == 0:
            before = sum(each.cache_info().misses for each in PIPELINES)
    if UNTRACED.isdisjoint(each.kind for each in written):
        assert sum(each.cache_info().misses for each in PIPELINES) == before
    CALLED.clear()
    s, t = source(1.0), source(2.0)
    part = built(written, s, t)
    for times in range(3):
        s.set(2.0 + times)
        t.set(0.5 + times)
        CALLED.subtract(CALLED)
        check(part, run(part.op), 2.0 + times, 0.5 + times)
