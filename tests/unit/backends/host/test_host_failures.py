"""The host backend reports the failure of an instruction, and leaves nothing behind."""

import traceback
from collections.abc import Callable
from typing import Any

import pytest

from dagpu.backends.host.body_checks import Tile
from dagpu.common.errors import OutOfMemoryError
from dagpu.testing import HostBackend, Role
from tests.unit.backends.host import host_plans
from tests.unit.backends.host.host_plans import Builder, adding, finish, used
from tests.unit.backends.host.host_plans import backend as backend


def test_errors_of_user_code_keep_their_type(backend: HostBackend) -> None:
    """The exception is the user's own object, with a note of the launch; its traceback starts in the user's
    file."""
    mine = KeyError("mine")

    def body(y: Tile[Any]) -> None:
        raise mine

    build = Builder()
    build.launch(body, build.buffer())
    error = build.fail(backend)
    assert error is mine
    (note,) = error.__notes__
    assert note.startswith(f"dagpu: in the host body of kernel step, launched at {host_plans.__file__}:")
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)] == ["body"]
    build.fail(backend)
    assert len(error.__notes__) == 1


def test_errors_of_host_calls(backend: HostBackend) -> None:
    """They say that they come from a host_map and where it was built."""
    build = Builder()
    build.call(lambda x: x / 0, 1, build.cell())
    error = build.fail(backend)
    assert isinstance(error, ZeroDivisionError)
    assert error.__notes__[0].startswith(f"dagpu: in the function of the host_map at {host_plans.__file__}:")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_no_exception_ends_a_worker(backend: HostBackend, kind: type[BaseException]) -> None:
    """An exception that would end a program is a failure like any other, and the lane goes on with the next plan."""

    def body(y: Tile[Any]) -> None:
        raise kind

    build = Builder()
    build.launch(body, build.buffer())
    assert type(build.fail(backend)) is kind
    after = Builder()
    after.launch(adding(0), after.buffer())
    after.run(backend)


def test_failures_follow_the_data(backend: HostBackend) -> None:
    """Instructions that depend on a failed launch are skipped, across lanes. All others run. Failures are in the
    plan's order.

    a (fails) -> b -> c      d -> e      f (fails); b also overwrites d's input after d has read it
    """
    ran: list[str] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *_: ran.append(name)

    def fail(y: Tile[Any]) -> None:
        raise ValueError

    build = Builder(0, 1)
    a, b, c, d, e, f, g = (build.buffer(lane=i % 2) for i in range(7))
    build.after(0, 1)
    build.after(1, 0)
    last = build.launch(fail, f, lane=1)
    first = build.launch(fail, a)
    build.launch(note("d"), d, b)
    build.launch(note("b"), b, a)
    build.after(0, 1)
    build.launch(note("c"), c, b, lane=1)
    build.launch(note("e"), e, d, lane=1)
    build.launch(note("g"), g, c, d, lane=1)
    build.launch(note("again"), a)
    run, _ = build.start(backend)
    finish(run)
    assert [failure.instruction for failure in run.failures()] == [last, first]
    assert sorted(ran) == ["d", "e"]


def test_running_out_of_memory(backend: HostBackend) -> None:
    """It is said before anything has begun: how much, what is alive then, where, and the cure."""
    ran: list[str] = []
    for role in (Role.OUTPUT, Role.TEMPORARY):
        build = Builder()
        a, b, c = build.buffer(1 << 60, role=role), build.buffer(), build.buffer()
        build.launch(lambda y: ran.append("a"), a)
        build.launch(lambda y, x: ran.append("b"), b, a)
        build.launch(lambda y: ran.append("c"), c)
        with pytest.raises(OutOfMemoryError) as caught:
            build.start(backend)
        said = str(caught.value)
        assert "host:0: no room for 1,152,921,504,606,846,976 bytes" in said
        assert f"alive at the peak: Launch step at {host_plans.__file__}" in said
        assert "(64 bytes)" in said
        assert "Drop handles" in said
        assert ran == []
    del caught
    assert used(backend) == 0
