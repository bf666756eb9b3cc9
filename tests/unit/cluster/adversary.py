"""An engine in this process that does whatever an engine may do: it delays, moves and redoes tasks, and kills workers.

At each transition it asks for a choice. `every_choice` tries all of them, one run after the other.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

from dagpu.cluster.backend import ClusterRun
from dagpu.cluster.tasks import Group, Task, call_of
from dagpu.cluster.worker import PartCall, PartRunner, PartValue
from dagpu.common.layout import Layout
from dagpu.handles.device_handles import LibraryBody
from dagpu.testing import live_state

Choose = Callable[[int], int]
"""Returns a number below its argument."""


@final
class StandInHold:
    """Keeps nothing alive: values are lost with their workers, and made again."""

    def __init__(self, key: tuple[str, Group]) -> None:
        self.key = key


@final
class Adversary:
    """An engine whose workers are dicts. Implements `dagpu.cluster.backend.Engine`.

    Args:
        workers: the names of the workers.
        choose: chooses each transition.
        send: what a value becomes on its way to another worker.
        runner: runs the tasks, for all workers; it keeps their plans.
        kills: the number of workers that may die, in all. Another one comes in the place of each.
        redone: the number of tasks that may be run again though their values are there.
    """

    def __init__(
        self,
        workers: Sequence[str],
        choose: Choose,
        send: Callable[[PartValue], PartValue],
        kills: int,
        redone: int,
        runner: PartRunner | None = None,
    ) -> None:
        self.choose = choose
        self.kills = kills
        self.redone = redone
        self.executed = 0
        self._send = send
        self._stores: dict[str, dict[Any, PartValue]] = {worker: {} for worker in workers}
        self._recipes: dict[Any, tuple[Task, PartCall, list[Any]]] = {}
        """For each key the task that makes it, its call, and the keys whose values it takes."""
        self._runner = PartRunner() if runner is None else runner

    def start(self, run: ClusterRun) -> None:
        """Run all tasks, in the order that is chosen."""
        for task in run.tasks.tasks:
            self._add(run, task)
        wanted = [(run.name, group) for group in (*run.tasks.kept(), *run.tasks.fetched())]
        keys = [key for key in self._recipes if key[0] == run.name]
        try:
            while missing := self._missing(wanted):
                self._step(missing, keys)
        except Exception as error:
            run.finish({}, {}, error)
            return
        values = {group: self._send(self._find((run.name, group))) for group in run.tasks.fetched()}
        run.finish({group: StandInHold((run.name, group)) for group in run.tasks.kept()}, values)

    def _add(self, run: ClusterRun, task: Task) -> None:
        keys: list[Any] = []

        def source(wanted: Any) -> int:
            key = wanted.key if isinstance(wanted, StandInHold) else (run.name, wanted)
            if key not in keys:
                keys.append(key)
            return keys.index(key)

        call = call_of(task, run.name, run.memory, source, lambda array: -1)
        for at in range(len(task.groups)):
            self._recipes[run.name, (task.index, at)] = task, call, keys

    def _missing(self, wanted: Sequence[Any]) -> list[Any]:
        """Return the keys that have to be made and whose inputs are there."""
        ready, todo, seen = [], [key for key in wanted if self._where(key) is None], set()
        while todo:
            key = todo.pop()
            if key not in seen:
                seen.add(key)
                gone = [need for need in self._recipes[key][2] if self._where(need) is None]
                todo += gone
                if not gone:
                    ready.append(key)
        return sorted(ready)

    def _step(self, ready: Sequence[Any], keys: Sequence[Any]) -> None:
        """Do one transition: kill a worker, run a task again, or run a task that is ready, on any worker."""
        again = [key for key in keys if self._where(key) is not None and self._inputs_are_there(key)]
        choices: list[tuple[str, Any]] = [("run", key) for key in ready]
        choices += [("kill", worker) for worker, store in self._stores.items() if store] if self.kills else []
        choices += [("again", key) for key in again] if self.redone else []
        what, about = choices[self.choose(len(choices))]
        if what == "kill":
            self.kills -= 1
            self._stores[about] = {}
            return
        self.redone -= what == "again"
        workers = list(self._stores)
        self._execute(about, workers[self.choose(len(workers))])

    def _execute(self, key: Any, worker: str) -> None:
        task, call, needs = self._recipes[key]
        values = [self._taken(need, worker) for need in needs]
        self.executed += 1
        made = self._runner.run(call, task.blob.codes.content, values, worker)
        for at, versions in enumerate(task.groups):
            self._stores[worker][key[0], (task.index, at)] = made.subset(versions)

    def _taken(self, key: Any, worker: str) -> PartValue:
        """Return a value on a worker, which gets a copy if another one has it."""
        own = self._stores[worker]
        if key not in own:
            own[key] = self._send(self._find(key))
        return own[key]

    def _inputs_are_there(self, key: Any) -> bool:
        return all(self._where(need) is not None for need in self._recipes[key][2])

    def _where(self, key: Any) -> str | None:
        return next((worker for worker, store in self._stores.items() if key in store), None)

    def _find(self, key: Any) -> PartValue:
        worker = self._where(key)
        assert worker is not None
        return self._stores[worker][key]

    def lineage_of(self, t: Any) -> set[Any]:
        """Return the tasks that would be run again if everything were lost: the one that makes a tensor, and what it
        needs."""
        memory: Any = live_state(t).storage.memory
        todo, found = [memory.hold.key], set()
        while todo:
            key = todo.pop()
            if key not in found:
                found.add(key)
                todo += self._recipes[key][2]
        return found

    def lose_all(self) -> None:
        """Lose every value, as if all workers had died."""
        for worker in self._stores:
            self._stores[worker] = {}

    # ---- the rest of an engine

    def cancel(self, run: ClusterRun) -> None:
        """Do nothing: a run is over when `start` returns."""

    def memory_info(self, worker: str, device: str) -> tuple[int, int]:
        """Return numbers."""
        return 1 << 30, 1 << 31

    def memory_used(self, device: str) -> int:
        """Return the bytes that the worker of a device holds."""
        worker = device.partition("/")[0]
        return sum(block.nbytes for value in self._stores[worker].values() for block in value.blocks.values())

    def scratch_bytes(self, worker: str, device: str, body: LibraryBody, operands: Sequence[Layout]) -> int:
        """Return 0: these workers are hosts."""
        return 0


def every_choice(most: int) -> Iterator[Choose]:
    """Yield a `Choose` for one run after the other, until all ways of choosing are tried, or `most` of them."""
    script: list[tuple[int, int]] = []
    for _ in range(most):
        at = 0

        def choose(count: int) -> int:
            nonlocal at
            if at == len(script):
                script.append((0, count))
            chosen, counted = script[at]
            assert counted == count, "the run depends on more than its choices"
            at += 1
            return chosen

        yield choose
        while script and script[-1][0] + 1 == script[-1][1]:
            script.pop()
        if not script:
            return
        script[-1] = script[-1][0] + 1, script[-1][1]
