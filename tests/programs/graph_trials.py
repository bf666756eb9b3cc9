"""Plans and runs of them on a simulated `cuda:0`, below the interpreter, for tests of CUDA graphs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    DeviceOp,
    SchedulingPolicy,
    SingleStream,
    arange,
    convert,
    dup,
    empty,
    f32,
    f64,
    from_host,
    i32,
    zeros,
    zip_ops,
)
from dagpu.backends.cuda.executable import Executable
from dagpu.backends.cuda.resources.pools import MemoryBlock, array_over
from dagpu.runtime.device_lookup import device
from dagpu.testing import (
    HOST,
    Buffer,
    Cell,
    Failure,
    GraphLaunch,
    Instruction,
    Launch,
    Plan,
    Program,
    Role,
    backend,
    schedule,
    verify,
)
from dagpu.tracing.tracer import Tracer
from tests.programs.arithmetic import scale
from tests.simulated.cuda import driver
from tests.simulated.machine import Machine


def program_of(op: DeviceOp[Any, Any, Any], policy: SchedulingPolicy | None = None) -> tuple[Program, dict[int, Any]]:
    """Return the program of the op's first stage on `cuda:0`, and the bindings of its inputs. The op is used up."""
    tracer = Tracer(op, device("cuda:0"), policy or SingleStream(), device)
    try:
        stage = tracer.stage()
        return stage.program, dict(stage.inputs)
    finally:
        tracer.abandon("it was only planned")


def prepared(program: Program) -> Executable:
    """Schedule, verify, prepare and compile a program."""
    plan = schedule(program)
    verify(plan)
    return prepared_plan(plan)


def prepared_plan(plan: Plan) -> Executable:
    """Prepare and compile a plan."""
    found = backend("cuda").prepare(plan)
    assert isinstance(found, Executable)
    if found.before_first is not None:
        found.before_first()
    return found


def with_cells(program: Program, kernel: str) -> tuple[Program, list[int]]:
    """Move every number among the arguments of these launches to a separate cell. Return the program and the cells."""
    buffers, cells, instructions = list(program.buffers), list[int](), list[Instruction]()
    for instruction in program.instructions:
        if isinstance(instruction, Launch) and instruction.kernel.name == kernel:
            arguments = list(instruction.args)
            for index, argument in enumerate(arguments):
                if isinstance(argument, int | float):
                    arguments[index] = Cell(len(buffers))
                    cells.append(len(buffers))
                    buffers.append(Buffer(0, HOST, Role.INPUT))
            instructions.append(replace(instruction, args=tuple(arguments)))
        else:
            instructions.append(instruction)
    return replace(program, buffers=tuple(buffers), instructions=tuple(instructions)), cells


def launching(frozen: Any, times: int = 1) -> Executable:
    """Return a plan that launches a frozen plan `times` times in a row."""
    token = Buffer(8, 0, Role.INPUT)  # all launches write this buffer, so they keep their order
    launches = [GraphLaunch(frozen, (), (0,), 0, None) for _ in range(times)]
    return prepared(Program(("cuda:0",), (token,), tuple(launches), (SingleStream(),), (0,) * times))


def bound(plan: Executable, inputs: dict[int, Any]) -> list[Any]:
    """Return bindings with these inputs."""
    bindings: list[Any] = [None] * len(plan.compiled.plan.buffers)
    for index, held in inputs.items():
        bindings[index] = held
    return bindings


def run(plan: Executable, inputs: dict[int, Any], *, graph: bool = True) -> list[Any]:
    """Run a plan to its end. Return its outputs, in order."""
    bindings = bound(plan, inputs)
    failures = failed(plan, bindings, graph=graph)
    if failures:
        raise failures[0].error
    return results(plan, bindings)


def failed(plan: Executable, bindings: list[Any], *, graph: bool = True) -> list[Failure]:
    """Run a plan to its end. Return its failures."""
    run = plan.submit(bindings, graph=graph)
    assert run.wait()
    return run.failures()


def results(plan: Executable, bindings: list[Any]) -> list[Any]:
    """Return the bindings of the outputs."""
    return [bindings[n] for n, buffer in enumerate(plan.compiled.plan.buffers) if buffer.role is Role.OUTPUT]


def texts(found: Sequence[Any]) -> list[bytes]:
    """Return the bytes of the arrays in `found`."""
    return [each.tobytes() for each in found if isinstance(each, np.ndarray)]


def block(values: NDArray[Any], machine: Machine) -> MemoryBlock:
    """Return a new block of device memory with these values."""
    found = driver()
    with found.gpu.current():
        taken = found.memory.take(values.nbytes)
    put(values, taken, machine)
    return taken


def put(values: NDArray[Any], taken: MemoryBlock, machine: Machine) -> None:
    """Write values into a block of device memory."""
    place = machine.find(taken.address, values.nbytes)
    if place is not None:
        place[0].block[place[1] : place[1] + values.nbytes] = np.frombuffer(values.tobytes(), np.uint8)


def contents(taken: MemoryBlock, machine: Machine) -> bytes:
    """Return the contents of a block of device memory."""
    place = machine.find(taken.address, taken.nbytes)
    return b"" if place is None else place[0].block[place[1] : place[1] + taken.nbytes].tobytes()


def graph_calls(machine: Machine) -> Sequence[int]:
    """Return how often a graph was instantiated, launched, and had a node changed."""
    calls = machine.gpus[0].calls
    changes = sum(calls[f"cuGraphExec{kind}NodeSetParams"] for kind in ("Kernel", "Memcpy", "Memset"))
    return calls["cuGraphInstantiate"], calls["cuGraphLaunch"], changes


def mixture() -> Any:
    """Return an op with every kind of node."""
    scaled = from_host(np.zeros((2, 20), f32)).then(lambda t: scale(empty((2, 20)).partition((1, 20)), 2.0, t))
    views = (
        scaled.first()
        .unpartition()
        .then(
            lambda t: zip_ops(
                t.borrow().to_host(),
                dup(t.slice(slice(0, 2), slice(0, 18))).to_host(),
                t.slice(slice(0, 2), slice(1, 20, 2)).to_host(),
            )
        )
    )
    return zip_ops(
        *views.unzip(3),
        zeros((5,)).then(lambda t: convert(t, f64)).to_host(),
        arange(7, dtype=i32).then(lambda t: convert(t, f32)).to_host(),
    )


def mixture_in_numpy(array: NDArray[f32], factor: float) -> list[NDArray[Any]]:
    """Return the results of `mixture`, computed by NumPy."""
    scaled = np.fmod(f32(factor) * array, f32(64)) + f32(0)
    return [scaled, scaled[:, :18], scaled[:, 1:20:2], np.zeros(5), np.arange(7, dtype=f32)]


def driver_array(shape: tuple[int, ...]) -> NDArray[f32]:
    """Return a page-locked array."""
    with driver().gpu.current():
        nbytes = int(np.prod(shape)) * 4
        return array_over(driver().pinned.take(nbytes), shape, f32)
