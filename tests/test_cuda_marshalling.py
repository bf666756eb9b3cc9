"""What PyCUDA and cuda.bindings hand on to the driver for graphs, shown by a driver that writes it down.

No GPU is needed, but both libraries and cuda.h are.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from struct import pack

import pytest

from tests.stand_in.build import build, missing

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the stand-in was given, by what was done."""
    if why := missing():
        pytest.skip(why)
    library = build(tmp_path_factory.mktemp("driver"))
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.stand_in.make_graphs"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def kernel(function: int, address: int, number: int) -> str:
    """How a kernel's node is written down."""
    shape = "grid 3 2 1 block 32 4 2 shared 96 pointers 0"
    return f"kernel {function:x} {shape} kern 0 ctx 0; parameters {pack('<Qi', address, number).hex()}"


def test_nodes_arrive_as_they_are_meant(said: dict[str, list[str]]) -> None:
    """Functions (each captured once, in a stream of its own), extents, parameters, addresses, what each comes after."""
    shape = "grid 3 2 1 block 32 4 2 shared 96 pointers 0"
    first, second = (pack("<Qi", *each).hex() for each in ((0x7F0011223344, 7), (0x5200, 9)))
    assert said["make"] == [
        "create 301 flags 0",
        "capture in 102 mode 2",
        f"record 201 in 102 {shape}; parameters {first}",
        "captured in 102: 302",
        "destroy 302",
        f"add 402 to 301 after; {kernel(0x201, 0x7F0011223344, 7)}",
        "add 403 to 301 after; copy from 1 6000 0 to 2 0 5000, 24 x 1 x 1, others 0, ctx c0",
        f"add 404 to 301 after 402 403; copy from 2 0 5000 to 2 0 5100, {1 << 33} x 1 x 1, others 0, ctx c0",
        "add 405 to 301 after 403; fill 5200 pitch 0 value 48879 size 2, 12 x 1, ctx c0",
        f"add 406 to 301 after 404; {kernel(0x201, 0x5100, 8)}",
        "capture in 102 mode 2",
        f"record 202 in 102 {shape}; parameters {second}",
        "captured in 102: 303",
        "destroy 303",
        f"add 408 to 301 after 404 405; {kernel(0x202, 0x5200, 9)}",
        "add 409 to 301 after 406 408; copy from 2 0 5100 to 1 6100 0, 3 x 1 x 1, others 0, ctx c0",
        "instantiate 501 of 301 flags 0",
    ]


def test_launches_and_changes_arrive(said: dict[str, list[str]]) -> None:
    """In the stream that is meant, at the nodes that are meant, with what is in the parameters at that moment."""
    assert said["launch"] == ["upload 501 in 101", "launch 501 in 101"]
    assert said["update"] == [
        f"set 406 in 501; {kernel(0x201, 0x5108, 8)}",
        "set 403 in 501; copy from 1 6600 0 to 2 0 5000, 24 x 1 x 1, others 0, ctx c0",
        "set 409 in 501; copy from 2 0 5100 to 1 6700 0, 3 x 1 x 1, others 0, ctx c0",
        "set 405 in 501; fill 5800 pitch 0 value 48879 size 2, 12 x 1, ctx c0",
    ]
    assert said["destroy"] == ["destroy 501", "destroy 301"]


def test_a_function_is_captured_once(said: dict[str, list[str]]) -> None:
    """A second graph of it captures nothing."""
    assert not [line for line in said["again"] if "capture" in line]


def test_failures_leave_no_graph(said: dict[str, list[str]]) -> None:
    """They are errors of ours with their CUresult, and the graph that was begun is destroyed; a capture is ended."""
    for call, error in (
        ("cuGraphInstantiate", "OutOfMemoryError 2: cuGraphInstantiate failed: error 2"),
        ("cuGraphAddMemcpyNode", "DeviceError 1: cuGraphAddMemcpyNode failed: error 1"),
        ("cuLaunchKernel", "DeviceError 1: cuLaunchKernel failed: error 1"),
    ):
        lines = said[call]
        assert lines[-1].startswith(error)
        created = [line.split()[1] for line in lines if line.startswith("create")]
        created += [line.split()[-1] for line in lines if line.startswith("captured")]
        assert sorted(created) == sorted(line.split()[1] for line in lines if line.startswith("destroy"))
        assert len([1 for line in lines if line.startswith("capture in")]) == len(
            [1 for line in lines if line.startswith("captured in")]
        )
    assert said["refused update"][-1].startswith("DeviceError 1: cuGraphExecKernelNodeSetParams failed")
