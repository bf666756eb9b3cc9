"""The end of a process: after an illegal access, in unusual orders of teardown, and in a forked child.

Each is a script in a Python of its own, which has to end by itself, with the code it asks for and nothing in stderr.
"""

import json
from pathlib import Path

import pytest

from dagpu import Device
from tests.gpu.support.gpu_support import child

HEAD = """
import atexit, gc, json, os, signal, sys, threading

import numpy as np
import trio

from dagpu import *
from tests.gpu.support.gpu_kernels import add, spin, wild


def summed():
    return add(ones((1000,)).partition((100,)), ones((1000,))).first().unpartition()


def spinning(milliseconds):
    return spin(zeros((8,), i32).partition((8,)), milliseconds * 1_000_000).first().unpartition()


assert summed().to_host().sync().tolist() == [2.0] * 1000
"""

LOST = """
spinning(0).sync()
wild.compile()
found = {}
held = summed().sync()


async def one(name, op):
    try:
        await op
    except BaseException as error:
        found[name] = [type(error).__name__, error.code]


async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one, "pending", spinning(2000))
        nursery.start_soon(one, "pending on the host", spinning(2000).to_host())
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(one, "wild", wild(zeros((8,)).partition((8,)), 16))


import trio.testing
trio.run(main)
for name, op in {"later": summed(), "made before": held.to_host(), "no kernel": zeros((4,))}.items():
    try:
        op.sync()
    except DagpuError as error:
        found[name] = [type(error).__name__, error.code]
        text = str(error)
print(json.dumps([found, text]))
sys.exit(7)
"""


def test_an_illegal_access(cuda: Device, tmp_path: Path) -> None:
    """DeviceLostError for that run, for every run that is pending, and at once for all that come later.

    The process goes on, and ends by itself with the code that it asks for.
    """
    done = child(HEAD + LOST, tmp_path)
    assert done.stderr == ""
    assert done.returncode == 7, done.stdout
    found, text = json.loads(done.stdout)
    assert {"wild", "pending", "pending on the host", "later", "made before", "no kernel"} == set(found)
    assert {name for name, _ in found.values()} == {"DeviceLostError"}
    assert found["wild"] == ["DeviceLostError", 700]
    for part in (cuda.name, "process"):
        assert part in text


ENDS = {
    "handles in globals": """
t = summed().sync()
shared = zeros((100,)).shared()
clone = shared.sync()
lent = t.borrow()
part, rest = zip_ops(ones((10,)), zeros((10,))).unzip()
part.sync()
stream = device(os.environ["DAGPU_DEVICE"]).stream()
op = dup(t.borrow())
""",
    "a cycle that is never collected": """
class Ring:
    def __init__(self):
        self.me, self.t, self.stream = self, summed().sync(), device(os.environ["DAGPU_DEVICE"]).stream()

    def __del__(self):
        self.t = None

gc.disable()
rings = [Ring() for _ in range(10)]
del rings
""",
    "a daemon thread that runs ops": """
started = threading.Event()

def forever():
    while True:
        summed().to_host().sync()
        started.set()

for _ in range(4):
    threading.Thread(target=forever, daemon=True).start()
started.wait()
""",
    "a run that is pending in a daemon thread": """
threads = [threading.Thread(target=lambda: spinning(500).to_host().sync(), daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
spinning(20).sync()
""",
    "a trio loop in a daemon thread": """
begun = threading.Event()

async def forever():
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            spawn(nursery, spinning(500))
        await summed()
        begun.set()
        while True:
            await summed()

threading.Thread(target=trio.run, args=(forever,), daemon=True).start()
begun.wait()
""",
    "an op at exit": """
kept = summed().sync()

def last():
    try:
        print(kept.to_host().sync()[0])
    except DagpuError as error:
        print(error)

atexit.register(last)
""",
    "a thread that is not joined": """
def work():
    for _ in range(200):
        summed().to_host().sync()

for _ in range(4):
    threading.Thread(target=work).start()
""",
    "a loop that fails with work under way": """
async def main():
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            spawn(nursery, spinning(100).to_host())
        await summed()
        raise ValueError

try:
    trio.run(main)
except* ValueError:
    pass
""",
    "beside CuPy": """
try:
    import cupy
except ImportError:
    cupy = None
else:
    theirs = cupy.arange(1000)
ours = summed().sync()
""",
    "the driver's modules gone": """
t = summed().sync()
stream = device(os.environ["DAGPU_DEVICE"]).stream()
for name in [name for name in sys.modules if name.startswith(("pycuda", "cuda"))]:
    del sys.modules[name]
gc.collect()
""",
}


@pytest.mark.parametrize("script", list(ENDS.values()), ids=list(ENDS))
def test_interpreters_end_quietly(gpu: Device, tmp_path: Path, script: str) -> None:
    """Whatever is alive or under way when the interpreter ends: code 0, and not a word in stderr."""
    done = child(HEAD + script, tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_an_exit_code_is_kept(gpu: Device, tmp_path: Path) -> None:
    """`sys.exit` in a task, with ops under way and handles alive."""
    script = """
async def main():
    async with trio.open_nursery() as nursery:
        pending = spawn(nursery, spinning(100).to_host())
        held = await summed()
        sys.exit(3)

try:
    trio.run(main)
except* SystemExit as group:
    code = group.exceptions[0].code
sys.exit(code)
"""
    done = child(HEAD + script, tmp_path)
    assert (done.returncode, done.stderr) == (3, ""), done.stdout


def test_an_unhandled_error_is_all_that_is_said(gpu: Device, tmp_path: Path) -> None:
    """A program that fails ends with 1 and its traceback: nothing of the driver, of PyCUDA or of a finaliser."""
    done = child(HEAD + "t = summed().sync()\nt.share()\nt.shape\n", tmp_path)
    assert done.returncode == 1
    assert "MovedError" in done.stderr.splitlines()[-1]
    assert done.stderr.startswith("Traceback")
    for noise in ("Exception ignored", "PyCUDA", "terminate called", "abort", "WARNING"):
        assert noise not in done.stderr


FORK = """
import warnings

warnings.simplefilter("ignore")  # Python 3.12 warns of fork in a process with threads
held = summed().sync()
children = []
for use in (
    lambda: summed().to_host().sync(),
    lambda: held.to_host().sync(),
    lambda: trio.run(awaited),
    lambda: device(os.environ["DAGPU_DEVICE"]).stream(),
    lambda: device(os.environ["DAGPU_DEVICE"]).memory_info(),
):
    async def awaited():
        await summed()

    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        signal.alarm(20)
        try:
            use()
            said = "nothing"
        except DeviceError as error:
            said = str(error)
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    code = os.waitpid(pid, 0)[1]
    children.append([code, os.read(reading, 4096).decode()])
assert summed().to_host().sync().tolist() == [2.0] * 1000
assert held.to_host().sync().tolist() == [2.0] * 1000
print(json.dumps(children))
"""


def test_a_forked_child_is_told(cuda: Device, tmp_path: Path) -> None:
    """A GPU cannot be used across a fork: each use in the child is an error that says so; the parent goes on."""
    done = child(HEAD + FORK, tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    for code, said in json.loads(done.stdout):
        assert code == 0
        assert "fork" in said
        assert "spawn" in said


NO_GPU = """
from dagpu import *

assert [found.name for found in devices() if found.kind == "cuda"] == []
assert ones((4,)).on("host").to_host().sync().tolist() == [1.0] * 4
assert device("auto").kind == "host"
try:
    device("cuda:0")
except NoDeviceError as error:
    print(error)
"""


def test_a_gpu_that_is_hidden(cuda: Device, tmp_path: Path) -> None:
    """With no GPU to be seen, "auto" is the host, and "cuda:0" a NoDeviceError."""
    done = child(NO_GPU, tmp_path, CUDA_VISIBLE_DEVICES="", DAGPU_DEVICE="auto")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "cuda" in done.stdout.lower()
