"""Ends a process, or forks it, while runs are under way on a driver that does nothing.

    python -m tests.compiled.exits LIBRARY WAY      WAY is the name of a function below, with spaces

The process prints what it sees, and its status is 0 unless it crashes.
"""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tests.compiled.building import use_built_reader

MEETING: Final = b"cuStreamSynchronize"


def under_way(w: Any) -> threading.Thread:
    """Start a daemon thread that is in the driver until the work is complete, which it never is."""
    worlds: Any = import_module("tests.compiled.worlds")
    x = worlds.fresh()
    w.calls.null_hold()
    w.calls.null_meet(MEETING)

    def work() -> None:
        with suppress(BaseException):
            w.step(x, 0.5).sync()
            print("it has ended")

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    w.calls.null_met()
    w.calls.null_go_on()
    return thread


def exit_under_way(w: Any) -> None:
    under_way(w)
    print("exits")


def exit_with_a_thread_between_calls(w: Any) -> None:
    """A daemon thread makes calls until the interpreter ends it."""
    worlds: Any = import_module("tests.compiled.worlds")
    begun = threading.Event()

    def work() -> None:
        x = worlds.fresh()
        while True:
            x = w.step(x, 0.5).sync()
            begun.set()

    threading.Thread(target=work, daemon=True).start()
    begun.wait()
    print("exits")


def exit_with_a_task_under_way(w: Any) -> None:
    """A coroutine that has launched a run is alive at exit."""
    trio: Any = import_module("trio")
    worlds: Any = import_module("tests.compiled.worlds")

    async def main() -> None:
        x = await worlds.ones((worlds.N,))
        steps = w.step(x, 0.5).__await__()
        steps.send(None)
        KEPT.append(steps)

    trio.run(main)
    print("exits", len(w.device.live))


def fork(w: Any) -> None:
    """The child has no thread in the driver, and its handles are those of the parent."""
    guard: Any = import_module("dagpu.backends.cuda.driver.driver_protocol").EXIT_GUARD
    worlds: Any = import_module("tests.compiled.worlds")
    y = worlds.fresh()
    thread = under_way(w)
    print("inside", len(guard.inside), flush=True)
    child = os.fork()
    if not child:
        w.calls.null_release()
        print("child", len(guard.inside), worlds.told(w.step(y, 0.5).sync())[:3], flush=True)
        os._exit(0)
    print("status", os.waitpid(child, 0)[1])
    w.calls.null_release()
    thread.join()


KEPT: Final[list[Any]] = []
WAYS: Final[dict[str, Callable[[Any], None]]] = {
    way.__name__.replace("_", " "): way
    for way in (exit_under_way, exit_with_a_thread_between_calls, exit_with_a_task_under_way, fork)
}


def main(library: str, way: str) -> None:
    use_built_reader()  # before anything of dagpu is imported
    null_gpu: Any = import_module("tests.compiled.null_gpu")
    worlds: Any = import_module("tests.compiled.worlds")
    opened = null_gpu.opened(Path(library))
    KEPT.append(opened)  # it stays open
    WAYS[way](worlds.World(opened.__enter__()))


if __name__ == "__main__":
    main(*sys.argv[1:])
