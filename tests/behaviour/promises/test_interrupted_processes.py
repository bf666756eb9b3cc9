"""Ctrl-C in a process of its own: forks, blocked runs and the end of the interpreter."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.behaviour.promises.interrupting import PATIENCE


def child(script: str, *, interrupts: int = 0) -> "subprocess.CompletedProcess[str]":
    """Run a script in a Python of its own; once it has written a line, send it so many SIGINT, each after the line
    that says that the one before was counted."""
    environment = {**os.environ, "DAGPU_DEVICE": "host"}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        hung = threading.Timer(PATIENCE, process.kill)
        hung.start()
        for _ in range(interrupts):
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        hung.cancel()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


ENDLESS = """
import threading, {imports}
from dagpu import *
@kernel(cuda="__global__ void stuck(Tile<float, 1> y) {{}}")
def stuck(y: Out[f32]) -> None: ...
@stuck.host
def _(y: Tile[f32]) -> None:
    print("at work", flush=True)
    threading.Event().wait()
from dagpu.common import critical
real = critical._Presses.add
def add(self):
    real(self)
    print("pressed", flush=True)  # only now, so that the next one comes after this one is counted
critical._Presses.add = add
critical.PRESS_SECONDS = 60  # this machine may be slow
op = stuck(zeros((1,)).partition((1,)))
"""


@pytest.mark.parametrize("under_trio", [False, True])
def test_a_third_interrupt_within_a_second_ends_the_process(under_trio: bool) -> None:
    """Three Ctrl-C end a process whose work never ends, with a message, like an unhandled SIGINT."""
    run = "async def main(): await op\ntrio.run(main)" if under_trio else "op.sync()"
    done = child(ENDLESS.format(imports="trio") + run, interrupts=3)
    assert done.returncode == -signal.SIGINT
    assert "one more Ctrl-C within a second ends the process" in done.stderr
    assert "the process ends without waiting for work on devices" in done.stderr


def test_an_op_in_a_finaliser_at_the_interpreters_end_is_refused() -> None:
    """Worker threads are gone by then: the op raises, and the process ends."""
    done = child(
        "import dagpu\n"
        "class Late:\n"
        "    def __del__(self): dagpu.ones((2,)).to_host().sync()\n"
        "late = Late()\n"
        "dagpu.ones((2,)).to_host().sync()\n"
    )
    assert done.returncode == 0
    assert "DeviceError: the interpreter is ending" in done.stderr


def test_an_op_in_an_atexit_function_runs_or_is_refused() -> None:
    """One that was registered later than dagpu's own runs; one that was registered before is refused."""
    done = child(
        "import atexit\n"
        "def late(name):\n"
        "    import dagpu\n"
        "    try: print(name, dagpu.ones((2,)).to_host().sync().sum())\n"
        "    except dagpu.DeviceError as error: print(name, 'refused')\n"
        "atexit.register(late, 'before')\n"
        "import dagpu\n"
        "dagpu.ones((2,)).to_host().sync()\n"
        "atexit.register(late, 'after')\n"
    )
    assert (done.returncode, done.stdout) == (0, "after 2.0\nbefore refused\n")


def test_a_child_forked_amid_runs_of_other_threads_runs_ops() -> None:
    """Whatever lock another thread held at the fork, the child has it free; what that thread was making, it makes."""
    done = child(
        "import os, threading\n"
        "from dagpu import *\n"
        "over = threading.Event()\n"
        "f = pipeline(lambda n: full((8,), n).to_host())\n"
        "shared = [ones((8,)).shared() for _ in range(64)]\n"
        "f(0.0).sync()\n"  # Python itself hangs where a module is being imported at the fork
        "def hammer():\n"
        "    n = 0\n"
        "    while not over.is_set():\n"
        "        n += 1\n"
        "        f(float(n)).sync(); shared[n % 64].to_host().sync(); device('host').memory_used()\n"
        "threads = [threading.Thread(target=hammer) for _ in range(3)]\n"
        "for thread in threads: thread.start()\n"
        "for _ in range(25):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        ok = all((each.to_host().sync() == 1).all() for each in shared) and f(2.0).sync()[0] == 2\n"
        "        os._exit(0 if ok else 3)\n"
        "    assert os.waitpid(pid, 0)[1] == 0\n"
        "over.set()\n"
        "for thread in threads: thread.join()\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
