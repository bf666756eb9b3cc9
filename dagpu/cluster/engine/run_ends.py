"""How runs end on a cluster: what is sent again after a loss, the errors of the caller's, and the end of a cancel."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from distributed.scheduler import KilledWorker

from dagpu.cluster.engine.run_state import DaskHold, RunState
from dagpu.cluster.tasks import Task
from dagpu.cluster.worker import dask_tasks
from dagpu.cluster.worker.part_errors import received_error
from dagpu.common.errors import ClusterError, ClusterLostError, PartKilledWorkersError

POLL_SECONDS: Final = 0.02
"""Seconds between two looks at whether workers are still at parts of a cancelled run."""


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


def send_again(client: Any, state: RunState, allowed_failures: int) -> None:
    """Put lost tasks back into the queues of a run, with the arrays that they take.

    Raises:
        ClusterLostError: the scheduler is gone, or a tensor that an earlier run has made.
    """
    state.lost = False
    if not is_connected(client):
        raise ClusterLostError(
            "the connection to the scheduler was lost. What was under way has to be run again, with tensors "
            "that are made again: connect to the cluster once its scheduler is back."
        )
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


def is_connected(client: Any) -> bool:
    """Return whether the client speaks to a scheduler."""
    comm = getattr(client, "scheduler_comm", None)
    return client.status == "running" and comm is not None and not comm.comm.closed()


async def drain(
    client: Any, state: RunState, error: BaseException, addresses: Mapping[str, str], seconds: float
) -> BaseException:
    """Cancel what is under way, and wait until no worker is at a part of the run. Return the error of the run.

    Args:
        addresses: the address of each worker that is alive.
        seconds: the time after which a run that does not end is an error.
    """
    for watcher in state.watchers:
        watcher.cancel()
    if not is_connected(client):
        if isinstance(error, ClusterLostError):
            return error
        return ClusterLostError(
            "the connection to the scheduler was lost while an op ran. Connect to the cluster once its scheduler is "
            "back, and run the op again."
        )
    try:
        async with asyncio.timeout(seconds):
            await client.cancel([*state.futures.values(), *state.sent.values()], force=True)
            while await _under_way(client, state.run.name, list(addresses.values())):  # noqa: ASYNC110  # reason: it asks other machines
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        names = ", ".join([state.tasks[index].name for index in sorted(state.submitted - state.done)])
        late = ClusterError(f"parts are still under way after {seconds} s: {names}")
        return BaseExceptionGroup("a run was to end", [error, late])
    except Exception as failed:
        return BaseExceptionGroup("a run was to end", [error, ClusterError(f"it could not be cancelled: {failed}")])
    return error


async def _under_way(client: Any, run: str, addresses: Sequence[str]) -> int:
    """Return the number of parts of a run that workers are at. None of them begins another one."""
    if not addresses:
        return 0
    counts = await client.run(dask_tasks.cancel_run, run, workers=list(addresses), on_error="ignore")
    return sum([found for found in counts.values() if isinstance(found, int)])
