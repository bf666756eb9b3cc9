"""How runs end on a cluster: what is sent again after a loss, the errors of the caller's, and the end of a cancel."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from distributed.scheduler import KilledWorker

from dagpu.cluster.engine.run_state import DaskHold, RunState
from dagpu.cluster.tasks import Task
from dagpu.cluster.worker import dask_tasks
from dagpu.cluster.worker.part_errors import received_error
from dagpu.common.errors import ClusterError, ClusterLostError, PartKilledWorkersError

POLL_SECONDS: Final = 0.02
"""Seconds between two looks at whether workers are still at parts of a cancelled run."""
LOOK_SECONDS: Final = 0.1
"""Seconds between two looks at whether the scheduler is still there."""


def error_of(error: BaseException, task: Task, lost_workers: Sequence[str]) -> BaseException:
    """Return the error of the caller's for an error of Dask. `lost_workers` died since the run began."""
    if not isinstance(error, KilledWorker):
        return received_error(error)
    places = ", ".join(task.origins)
    last = getattr(error.last_worker, "address", error.last_worker)
    gone = ", ".join(dict.fromkeys([*lost_workers, str(last)]))
    return PartKilledWorkersError(
        f"{error.allowed_failures + 1} workers died while they ran the part of an op that was built at {places}: "
        f"{gone}. Look for a crash, a lost GPU or too little memory in the logs of these workers, or run that op "
        "alone on one of them."
    )


@final
class Connection:
    """The connection of a client to its scheduler, as it was when the cluster was opened.

    A client connects again by itself, to a scheduler that knows nothing of its tensors. For the block that is the end:
    what it holds is lost, and waits for it would last as long as the time-outs of Dask.
    """

    def __init__(self, client: Any) -> None:
        self.client = client
        self._comm = client.scheduler_comm

    def is_alive(self) -> bool:
        """Return whether the client still speaks to the scheduler to which it was opened."""
        return self.client.status == "running" and not self._comm.comm.closed()

    async def ends(self) -> None:
        """Wait until it is lost."""
        while self.is_alive():  # noqa: ASYNC110  # reason: Dask tells nobody
            await asyncio.sleep(LOOK_SECONDS)

    def error(self) -> ClusterLostError:
        """Return the error for runs of a cluster whose scheduler is gone."""
        return ClusterLostError(
            f"the connection to the scheduler {self._comm.comm.peer_address} was lost, and with it all tensors of the "
            "cluster. Leave the block, open the cluster again once its scheduler is back, and run the op again with "
            "tensors that are made again."
        )


def send_again(connection: Connection, state: RunState, allowed_failures: int) -> None:
    """Put lost tasks back into the queues of a run, with the arrays that they take.

    Raises:
        ClusterLostError: the scheduler is gone, or a tensor that an earlier run has made.
    """
    state.lost = False
    if not connection.is_alive():
        raise connection.error()
    for held in state.run.memory:
        hold = getattr(held, "hold", None)
        if isinstance(hold, DaskHold) and hold.future.status == "cancelled":
            raise ClusterLostError(
                f"a tensor on worker {hold.worker} was lost with it, and it came from an array that was too "
                "large to keep for the case. Make it again, and use checkpoint(t, store) after what must not be "
                "lost."
            )
    if not state.is_lost():
        return
    state.attempt += 1
    if state.attempt > allowed_failures + 1:
        raise ClusterLostError(
            f"the arrays of a run were lost with their workers {state.attempt} times. Look in the logs of the "
            "workers for the reason, and run the op again."
        )
    state.sent.clear()
    state.take_back()


async def drain(
    connection: Connection, state: RunState, error: BaseException, addresses: Mapping[str, str], seconds: float
) -> BaseException:
    """Cancel what is under way, and wait until no worker is at a part of the run. Return the error of the run.

    Args:
        addresses: the address of each worker that is alive.
        seconds: the time after which a run that does not end is an error.
    """
    for watcher in state.watchers:
        watcher.cancel()
    ending, lost = (
        asyncio.create_task(_cancel(connection.client, state, addresses)),
        asyncio.create_task(connection.ends()),
    )
    await asyncio.wait([ending, lost], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    is_over = ending.done()
    for waiting in (ending, lost):
        waiting.cancel()
    await asyncio.wait([ending, lost])
    if not connection.is_alive():
        return error if isinstance(error, ClusterLostError) else connection.error()
    if not is_over:
        names = ", ".join([state.tasks[index].name for index in sorted(state.submitted - state.done)])
        late = ClusterError(f"parts are still under way after {seconds} s: {names}")
        return BaseExceptionGroup("a run was to end", [error, late])
    failed = ending.exception()
    if failed is not None:
        return BaseExceptionGroup("a run was to end", [error, ClusterError(f"it could not be cancelled: {failed}")])
    return error


async def _cancel(client: Any, state: RunState, addresses: Mapping[str, str]) -> None:
    """Cancel what is under way, and wait until no worker is at a part of the run."""
    await client.cancel([*state.futures.values(), *state.sent.values()], force=True)
    while await _under_way(client, state.run.name, list(addresses.values())):  # noqa: ASYNC110  # reason: it asks other machines
        await asyncio.sleep(POLL_SECONDS)


async def _under_way(client: Any, run: str, addresses: Sequence[str]) -> int:
    """Return the number of parts of a run that workers are at. None of them begins another one."""
    if not addresses:
        return 0
    counts = await client.run(dask_tasks.cancel_run, run, workers=list(addresses), on_error="ignore")
    return sum([found for found in counts.values() if isinstance(found, int)])
