"""Schedulers and workers of Dask in this process."""

from typing import Any

from distributed import Scheduler, Worker


async def start(security: Any, workers: int, port: int = 0) -> tuple[Any, list[Any]]:
    """Start a scheduler and workers `node0`, `node1`, ... in the loop that runs this."""
    protocol = "tcp" if security is None else "tls"
    scheduler = await Scheduler(  # without an address its server of metrics takes port 8787, which others may have
        host="127.0.0.1", port=port, protocol=protocol, security=security, dashboard=False,
        dashboard_address="127.0.0.1:0",
    )  # fmt: skip
    return scheduler, [await join(scheduler, n, security) for n in range(workers)]


async def join(scheduler: Any, number: int, security: Any = None) -> Any:
    """Start a worker."""
    name = f"node{number}"
    return await Worker(scheduler.address, nthreads=2, security=security, name=name, dashboard=False)


async def stop(scheduler: Any, workers: list[Any]) -> None:
    """End workers, and their scheduler."""
    for worker in workers:
        await worker.close()
    await scheduler.close()
