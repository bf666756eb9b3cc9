"""Arguments passed to the driver for streams, events, copies, launches and graphs, recorded by a stand-in.

No GPU is needed, but both libraries and cuda.h are.
"""

import json
from struct import pack

import pytest

from tests.stand_in.build import StandIn, on_the_stand_in  # noqa: F401  # a fixture


@pytest.fixture(name="said", scope="module")
def what_was_said(stand_in: StandIn) -> dict[str, list[str]]:
    """Return the calls that the stand-in recorded, by action."""
    done = stand_in("tests.stand_in.make_graphs")
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def kernel(function: int, address: int, number: int) -> str:
    """Return the record of a kernel's node."""
    shape = "grid 3 2 1 block 32 4 2 shared 96 pointers 0"
    return f"kernel {function:x} {shape} kern 0 ctx 0; parameters {pack('<Qi', address, number).hex()}"


def started(function: int, stream: int, address: int, number: int) -> str:
    """Return the record of a launch in a stream."""
    shape = "grid 3 2 1 block 32 4 2 shared 96 attributes 0 0 pointers 0"
    return f"start {function:x} in {stream:x} {shape}; parameters {pack('<Qi', address, number).hex()}"


def test_streams_and_events_arrive_as_they_are_meant(said: dict[str, list[str]]) -> None:
    """Streams do not order themselves with the null stream (1), events have no timing (2) unless it is asked for, and
    an event that has not happened is no error."""
    assert said["streams and events"] == [
        "stream 101 flags 1",
        "stream 102 flags 1",
        "event 601 flags 2",
        "event 602 flags 0",
        "event 603 flags 0",
        "record 601 in 101",
        "wait in 102 for 601 flags 0",
        "cuEventQuery: 600",
        "query 601",
        "cuStreamQuery: 600",
        "query stream 101",
        "synchronize 601",
        "synchronize stream 101",
        "from 602 to 603",
        "(False, True) (False, True) 1.5 101 102",
    ]


def test_copies_and_fills_arrive_as_they_are_meant(said: dict[str, list[str]]) -> None:
    """Addresses, bytes, pitches, values and counts, in the stream that is meant."""
    assert said["copies and fills"] == [
        "in 5000 from HOST 30 in 101",
        "out HOST from 5000 30 in 101",
        "in 5000 from BRAIN 2 in 101",
        "out BRAIN from 5000 2 in 101",
        f"within 5100 from 5000 {1 << 33} in 101",
        "rows to 2 5100 pitch 64 from 2 5000 pitch 16, 12 x 3, others 0, in 101",
        "set 8 bits at 5200 to ab, 7, in 101",
        "set 16 bits at 5200 to abcd, 7, in 101",
        "set 32 bits at 5200 to abcdef01, 7, in 101",
    ]


def test_a_refused_call_is_an_error_of_ours(said: dict[str, list[str]]) -> None:
    """Each call with a stream or an event that fails raises the error of its CUresult: 700 says that the device is
    lost."""
    assert len(said["refused"]) == 18
    assert [line for line in said["refused"] if not line.endswith(": DeviceLostError 700")] == []


def test_launches_in_streams_arrive_as_they_are_meant(said: dict[str, list[str]]) -> None:
    """Function, extents, the stream of the lane, and what is in the parameters at that moment."""
    assert said["streams"] == [
        started(0x201, 0x101, 0x10, 1),
        started(0x201, 0x101, 0x20, 2),
        started(0x202, 0x102, 0x30, 3),
    ]
    assert said["other streams"] == [started(0x201, 0x102, 0x28, 2), started(0x202, 0x101, 0x30, 3)]


def test_a_refused_launch_gives_its_result(said: dict[str, list[str]]) -> None:
    """The CUresult comes back, an error of ours is made of it, and the launch can be made again."""
    line, code, text, again = said["refused launch"][0], *said["refused launch"][-3:]
    assert line == "cuLaunchKernelEx: 701"
    assert (code, again) == ("701", "0")
    assert text.startswith("cuLaunchKernelEx failed: error 701 (CUresult 701). Use fewer threads")


def test_nodes_arrive_as_they_are_meant(said: dict[str, list[str]]) -> None:
    """Functions, extents, parameters, addresses, what each comes after; the streams of launches play no part."""
    assert said["make"] == [
        "create 301 flags 0",
        f"add 401 to 301 after; {kernel(0x201, 0x7F0011223344, 7)}",
        "add 402 to 301 after; copy from 1 6000 0 to 2 0 5000, 24 x 1 x 1, others 0, ctx c0",
        f"add 403 to 301 after 401 402; copy from 2 0 5000 to 2 0 5100, {1 << 33} x 1 x 1, others 0, ctx c0",
        "add 404 to 301 after 402; fill 5200 pitch 0 value 48879 size 2, 12 x 1, ctx c0",
        f"add 405 to 301 after 403; {kernel(0x201, 0x5100, 8)}",
        f"add 406 to 301 after 403 404; {kernel(0x202, 0x5200, 9)}",
        "add 407 to 301 after 405 406; copy from 2 0 5100 to 1 6100 0, 3 x 1 x 1, others 0, ctx c0",
        "instantiate 501 of 301 flags 0",
    ]


def test_launches_and_changes_arrive(said: dict[str, list[str]]) -> None:
    """In the stream that is meant, at the nodes that are meant, with what is in the parameters at that moment."""
    assert said["launch"] == ["upload 501 in 101", "launch 501 in 101"]
    assert said["update"] == [
        f"set 405 in 501; {kernel(0x201, 0x5108, 8)}",
        "set 402 in 501; copy from 1 6600 0 to 2 0 5000, 24 x 1 x 1, others 0, ctx c0",
        "set 407 in 501; copy from 2 0 5100 to 1 6700 0, 3 x 1 x 1, others 0, ctx c0",
        "set 404 in 501; fill 5800 pitch 0 value 48879 size 2, 12 x 1, ctx c0",
    ]
    assert said["destroy"] == ["destroy 501", "destroy 301"]


def test_an_early_kernel_has_a_programmatic_edge(said: dict[str, list[str]]) -> None:
    """Its edge (type 1) begins at the port of the kernel before that its blocks open (1). After anything but one kernel
    it starts when all before it is over."""
    adds = [line.split(";")[0] for line in said["early"] if line.startswith(("add", "edge"))]
    nodes = [line.split()[1] for line in adds if line.startswith("add")]
    a, b, c, d, _ = nodes
    graph = adds[0].split()[3]
    assert adds == [
        f"add {a} to {graph} after",
        f"add {b} to {graph} after",
        f"edge in {graph} from {a} port 1 to {b} port 0 type 1",
        f"add {c} to {graph} after {b}",
        f"add {d} to {graph} after {c}",
        f"add {nodes[4]} to {graph} after {b} {d}",
    ]


def test_a_conditional_node_has_a_condition_and_a_body(said: dict[str, list[str]]) -> None:
    """The conditions are 0 (first 0, flag 1) when a launch begins, and their handles are parameters of the kernels that
    decide. A conditional node (type 13, IF 0) depends on others by plain edges. The nodes of its body are put into the
    graph that the driver gives, and updated there; a kernel in it has no programmatic edge."""
    lines = said["conditional"]
    one, two = (line.split()[1] for line in lines[1:3])
    graph = lines[0].split()[1]
    nodes = [line.split()[1] for line in lines if line.startswith("add")]
    bodies = [line.split("body ")[1] for line in lines if "body" in line]
    executable = next(line.split()[1] for line in lines if line.startswith("instantiate"))
    assert lines[:3] == [
        f"create {graph} flags 0",
        f"condition {one} of {graph} in c0 first 0 flags 1",
        f"condition {two} of {graph} in c0 first 0 flags 1",
    ]
    assert [line.split(";")[0] for line in lines[3:12]] == [
        f"add {nodes[0]} to {graph} after",
        f"add {nodes[1]} to {graph} after {nodes[0]}",
        f"add {nodes[2]} to {bodies[0]} after",
        f"add {nodes[3]} to {bodies[0]} after {nodes[2]}",
        f"add {nodes[4]} to {bodies[0]} after",
        f"add {nodes[5]} to {bodies[0]} after {nodes[2]}",
        f"add {nodes[6]} to {graph} after {nodes[1]}",
        f"add {nodes[7]} to {graph} after {nodes[6]}",
        f"add {nodes[8]} to {graph} after {nodes[7]}",
    ]
    assert [line.partition("; ")[2] for line in (lines[4], lines[10])] == [
        f"from_port 0 type 0; type 13, condition {handle} of type 0 in c0, 1 body {body}"
        for handle, body in zip((one, two), bodies, strict=True)
    ]
    assert [line.split(";")[0] for line in lines[12:16]] == [
        f"instantiate {executable} of {graph} flags 0",
        f"set {nodes[2]} in {executable}",
        f"set {nodes[3]} in {executable}",
        f"set {nodes[4]} in {executable}",
    ]
    assert [int.from_bytes(bytes.fromhex(line), "little") for line in lines[-2:]] == [int(one, 16), int(two, 16)]


def test_a_driver_says_what_it_lacks_for_conditional_nodes(said: dict[str, list[str]]) -> None:
    """From CUDA 12.4 on nothing."""
    assert said["versions"] == ["the driver is of CUDA 12.2, and conditional nodes need 12.4", "", ""]


def test_the_work_of_a_library_is_a_child_graph(said: dict[str, list[str]]) -> None:
    """It is captured in a stream of its own, in relaxed mode (2). The capture is destroyed once the driver has copied
    it, also where the driver refuses to put it in the place of other work, and where the library fails."""
    lines = said["captured"][2:]
    begin, stream = "begin capture {} mode 2", lines[0].split()[1]
    node, graph, child, executable = (
        lines[3].split()[1],
        lines[3].split()[3],
        lines[3].split()[-1],
        lines[5].split()[1],
    )
    second, third, failed = (f"{int(child, 16) + n:x}" for n in (1, 2, 3))
    before = said["captured"][1].split()[1]
    assert lines == [
        f"stream {stream} flags 1",
        begin.format(stream),
        f"end capture {stream} {child}",
        f"add {node} to {graph} after {before}; child {child}",
        f"destroy {child}",
        f"instantiate {executable} of {graph} flags 0",
        begin.format(stream),
        f"end capture {stream} {second}",
        f"set {node} in {executable}; child {second}",
        f"destroy {second}",
        begin.format(stream),
        f"end capture {stream} {third}",
        "cuGraphExecChildGraphNodeSetParams: 910",
        f"destroy {third}",
        begin.format(stream),
        f"end capture {stream} {failed}",
        f"destroy {failed}",
        begin.format(stream),
        "cuStreamEndCapture: 901",
        f"work in {stream} at 5000 with 100",
        f"work in {stream} at 6000 with 200",
        f"work in {stream} at 7000 with 0",
        f"work in {stream} at bad with 0",
        f"work in {stream} at 5000 with 0",
        "[True, False]",
        "DeviceError 0: the library refuses",
        "DeviceError 901: cuStreamEndCapture failed: CUresult 901. The library's work cannot be captured.",
    ]


def test_the_addresses_in_captured_work_are_read(said: dict[str, list[str]]) -> None:
    """Each whole word of each parameter, of kernels with a CUfunction, a CUkernel and a buffer of parameters; the first
    and last bytes of copies and fills of rows, where they are on the device; and child graphs. What an inspection
    refuses is destroyed, and so is the graph."""
    assert said["enqueued"] == [
        "kernel `gemm` ['5000', '7', '6000', '5100']",
        "kernel `relu` ['5000', '7', '6000', '5100']",
        "a copy ['8044', '80d3']",
        "a fill ['a000', 'a033']",
        "kernel `gemm` ['7000', '7100']",
        "5 nodes",
        "create",
        "begin",
        "end",
        "destroy",
        "destroy",
    ]


def test_failures_leave_no_graph(said: dict[str, list[str]]) -> None:
    """They are errors of ours with their CUresult, and the graph that was begun is destroyed."""
    for call, error in (
        ("cuGraphInstantiate", "OutOfMemoryError 2: cuGraphInstantiate failed: error 2"),
        ("cuGraphAddMemcpyNode", "DeviceError 1: cuGraphAddMemcpyNode failed: error 1"),
    ):
        lines = said[call]
        assert lines[-1].startswith(error)
        created = [line.split()[1] for line in lines if line.startswith("create")]
        assert created == [line.split()[1] for line in lines if line.startswith("destroy")]
    assert said["cuModuleLoadData"][-1].startswith("OutOfMemoryError 2: cuModuleLoadData failed: error 2")
    assert said["refused update"][-1].startswith("DeviceError 1: cuGraphExecKernelNodeSetParams failed")
    assert said["refused update"][-2:-1] + said["accepted update"] == ["0", "None"]
