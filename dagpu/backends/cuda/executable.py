"""A plan, made ready for the driver once for all its runs: its kernels, its scripts and its graphs."""

from collections.abc import Callable, Sequence
from typing import final

from dagpu.backends.cuda.commands.command_list import ScriptPool
from dagpu.backends.cuda.commands.encoder import write
from dagpu.backends.cuda.graphs.captured import CapturedGraph, freeze
from dagpu.backends.cuda.graphs.instances import GraphInstances
from dagpu.backends.cuda.instruction_selection import select
from dagpu.backends.cuda.kernels.launch_factories import LaunchFactories
from dagpu.backends.cuda.replay.cuda_replay import CudaReplay
from dagpu.backends.cuda.replay.start import start
from dagpu.backends.cuda.resources.cuda_device import CudaDevice
from dagpu.backends.protocol import Bindings
from dagpu.lowering.plan import Plan


@final
class Executable:
    """A plan on its devices. Implements `dagpu.backends.protocol.Prepared`."""

    def __init__(self, plan: Plan, devices: Sequence[CudaDevice], factories: LaunchFactories) -> None:
        for device in devices:
            device.refuse_if_lost()
        self.compiled, self._selected, self._wanted = select(plan, devices, factories)
        self.graphs = GraphInstances(plan, devices)
        self._scripts: ScriptPool | None = None
        """None until every kernel is compiled."""
        if not self._wanted:
            self._write()

    @property
    def before_first(self) -> Callable[[], None] | None:
        """Compiles, where a kernel has not been compiled yet."""
        return None if self._scripts is not None else self._compile

    @property
    def before_graph(self) -> Callable[[], None] | None:
        """Instantiates the first graph, where that takes long."""
        return self._prepare_graph if self.graphs.slow else None

    def submit(self, bindings: Bindings, spin: float = 0.0, *, graph: bool = False) -> CudaReplay:
        """Start a run; see `Prepared.submit`."""
        return start(self.compiled, self._scripts or self.scripts, self.graphs, bindings, spin, graph)

    def freeze(self, bindings: Bindings) -> CapturedGraph:
        """A graph with this memory for good; see `Prepared.freeze`."""
        return freeze(self.compiled, self.scripts.written, self.graphs, bindings.memory)

    @property
    def scripts(self) -> ScriptPool:
        """The scripts of its runs. Compiles the kernels first, where that has not been done."""
        if self._scripts is None:
            self._compile()
        assert self._scripts is not None
        return self._scripts

    def _compile(self) -> None:
        for make in self._wanted.values():
            make()
        if self._scripts is None:
            self._write()

    def _prepare_graph(self) -> None:
        self.graphs.prepare_first(self.compiled, self.scripts.written)

    def _write(self) -> None:
        """Write the script, now that every kernel is compiled."""
        compiled = self.compiled
        self._scripts = ScriptPool(write(compiled, self._selected), compiled.devices)
        self._wanted.clear()
        self._selected = ()
