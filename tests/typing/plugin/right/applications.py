"""Longer programs, as users write them: simulations, solvers, loaders, caches."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, cycle, islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dagpu import (
    Borrowed,
    DeviceOp,
    Tensor,
    TensorMut,
    TensorRef,
    dup,
    empty,
    f32,
    from_host,
    full,
    linspace,
    memcpy,
    ones,
    rand,
    value,
    zeros,
    zip_ops,
)
from tests.typing.plugin.kernels import add, eat, gemm, saxpy, scale, total, vector

log: Final = logging.getLogger(__name__)
N: Final = 8
TILE: Final = (4,)


# ---- simulations


@dataclass
class Wave:
    """Three time levels of a wave, which take turns."""

    before: Tensor[f32] = field(default_factory=lambda: linspace(0, 1, N).sync())
    now: Tensor[f32] = field(default_factory=lambda: linspace(0, 1, N).sync())
    after: Tensor[f32] = field(default_factory=lambda: zeros((N,)).sync())
    steps: int = 0

    def step(self, dt: float) -> None:
        add(self.after.borrow_mut().partition(TILE), self.now.borrow(), self.before.borrow()).sync()
        scale(self.after.borrow_mut().partition(TILE), dt).sync()
        self.before, self.now, self.after = self.now, self.after, self.before
        self.steps += 1

    def energy(self) -> float:
        return total(self.now.borrow()) + total(self.before.borrow())

    def snapshot(self) -> NDArray[f32]:
        return self.now.borrow().to_host().sync()


def wave_equation() -> None:
    wave, frames = Wave(), list[NDArray[f32]]()
    for number in range(6):
        wave.step(0.5)
        if number % 2 == 0:
            frames.append(wave.snapshot())
            log.info("step %d: energy %f", wave.steps, wave.energy())
    print(len(frames))


class Particles:
    """Positions and velocities; what is needed for a step alone is scratch."""

    def __init__(self, n: int) -> None:
        self.x, self.v = zip_ops(rand((n,), seed=1), zeros((n,))).sync()
        self._scratch: Tensor[f32] | None = None

    @property
    def scratch(self) -> TensorMut[f32]:
        if self._scratch is None:
            self._scratch = empty((N,)).sync()
        return self._scratch.borrow_mut()

    def kick(self, dt: float) -> None:
        memcpy(self.scratch, self.x.borrow()).sync()
        assert self._scratch is not None
        saxpy(self.v.borrow_mut().partition(TILE), -dt, self._scratch.borrow()).sync()

    def drift(self, dt: float) -> None:
        saxpy(self.x.borrow_mut().partition(TILE), dt, self.v.borrow()).sync()

    def run(self, steps: int, dt: float = 0.1) -> "Particles":
        for _ in range(steps):
            self.kick(dt / 2)
            self.drift(dt)
            self.kick(dt / 2)
        return self


def leapfrog() -> None:
    particles = Particles(N).run(2).run(3)
    print(total(particles.x.borrow()), total(particles.v.borrow()))


def power_iteration() -> None:
    a = full((4, 4), 0.25).share().sync()
    x = ones((4, 4)).sync()
    norm = 0.0
    for _ in range(10):
        y = gemm(empty((4, 4)).partition((2, 2)), a, x.borrow()).first().unpartition().sync()
        size = total(y.borrow())
        x = y
        if abs(size - norm) < 1e-6:
            break
        norm = size
    else:
        log.warning("no convergence")
    print(x.to_host().sync().shape)


def multigrid() -> None:
    levels = [zeros((n,)).sync() for n in (8, 4, 2)]

    def smooth(level: Tensor[f32], times: int) -> None:
        for _ in range(times):
            scale(level.borrow_mut().partition((2,)), 0.5).sync()

    for level in levels:
        smooth(level, 2)
    for level in reversed(levels):
        smooth(level, 1)
    print([total(level.borrow()) for level in levels])


def conjugate_gradients() -> None:
    x, r = zeros((N,)).sync(), ones((N,)).sync()
    p = dup(r.borrow()).sync()
    rho = total(r.borrow())
    for _ in range(3):
        q = dup(p.borrow()).sync()
        alpha = rho / max(total(q.borrow()), 1e-6)
        saxpy(x.borrow_mut().partition(TILE), alpha, p.borrow()).sync()
        saxpy(r.borrow_mut().partition(TILE), -alpha, q).sync()
        rho_next = total(r.borrow())
        if rho_next < 1e-6:
            break
        scale(p.borrow_mut().partition(TILE), rho_next / rho).sync()
        saxpy(p.borrow_mut().partition(TILE), 1.0, r.borrow()).sync()
        rho = rho_next
    print(x.to_host().sync())


# ---- loading


class Loader:
    """Batches from the host, shuffled anew in each epoch."""

    def __init__(self, data: NDArray[f32], batch: int, seed: int = 0) -> None:
        self.data, self.batch = data, batch
        self.random = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self.data) // self.batch

    def __iter__(self) -> Iterator[Tensor[f32]]:
        order = self.random.permutation(len(self.data))
        for start in range(0, len(self.data), self.batch):
            chosen = self.data[order[start : start + self.batch]]
            yield from_host(chosen).sync()


def epochs_over_a_loader() -> None:
    loader, sums = Loader(np.ones(32, np.float32), N), zeros((N,)).sync()
    for epoch in range(2):
        for number, batch in enumerate(loader, start=1):
            saxpy(sums.borrow_mut().partition(TILE), 1 / number, batch).sync()
        print(epoch, len(loader), total(sums.borrow()))
    eat(sums)


def batches_in_a_ring() -> None:
    ring = cycle([vector().share(), ones((N,)).share().sync()])
    sums = zeros((N,)).sync()
    for number, batch in zip(count(), islice(ring, 5), strict=False):
        saxpy(sums.borrow_mut().partition(TILE), float(number), batch).sync()
    eat(sums)


def two_stage_loading() -> None:
    def decoded(raw: NDArray[np.uint8]) -> DeviceOp[Tensor[f32]]:
        return value(raw).host_map(lambda array: (array / 255).astype(np.float32)).then(from_host)

    raws = [np.full(N, number, np.uint8) for number in range(3)]
    ops = [decoded(raw) for raw in raws]
    tensors = [op.sync() for op in ops]
    stacked = zip_ops(*(t.to_host() for t in tensors)).sync()
    print(len(stacked))


# ---- caches


class LruCache:
    """Tensors by name; the one that was used longest ago goes first."""

    def __init__(self, limit: int) -> None:
        self._tensors: OrderedDict[str, Tensor[f32]] = OrderedDict()
        self.limit = limit
        self.hits = 0

    def get(self, name: str, make: Callable[[], DeviceOp[Tensor[f32]]]) -> TensorRef[f32]:
        if name in self._tensors:
            self.hits += 1
            self._tensors.move_to_end(name)
        else:
            self._tensors[name] = make().sync()
            while len(self._tensors) > self.limit:
                _, oldest = self._tensors.popitem(last=False)
                log.debug("dropping %s", oldest.shape)
        return self._tensors[name].borrow()

    def take(self, name: str) -> Tensor[f32] | None:
        return self._tensors.pop(name, None)

    def clear(self) -> Iterable[NDArray[f32]]:
        while self._tensors:
            _, t = self._tensors.popitem()
            yield t.to_host().sync()


def least_recently_used() -> None:
    cache = LruCache(2)
    for name in "abacab":
        total(cache.get(name, lambda: ones((N,))))
    taken = cache.take("a")
    if taken is not None:
        eat(taken)
    print(cache.hits, len(list(cache.clear())))


class KeyValueCache:
    """A transformer's keys and values: written in place, a row for each token."""

    def __init__(self, layers: int) -> None:
        self.keys = [zeros((N,)).sync() for _ in range(layers)]
        self.values = [zeros((N,)).sync() for _ in range(layers)]
        self.length = 0

    def append(self, layer: int, k: TensorRef[f32], v: TensorRef[f32]) -> None:
        memcpy(self.keys[layer].borrow_mut(), k).sync()
        memcpy(self.values[layer].borrow_mut(), v).sync()

    def attend(self, layer: int, q: TensorRef[f32]) -> DeviceOp[Tensor[f32], Borrowed]:
        scores = add(empty((N,)).partition(TILE), self.keys[layer].borrow(), q).first().unpartition()
        return add(empty((N,)).partition(TILE), self.values[layer].borrow(), scores).first().unpartition()


def decoding() -> None:
    cache, hidden = KeyValueCache(2), ones((N,)).sync()
    for _ in range(3):
        for layer in range(2):
            cache.append(layer, hidden.borrow(), hidden.borrow())
            hidden = cache.attend(layer, hidden.borrow()).sync()
        cache.length += 1
    print(cache.length, total(hidden.borrow()))
