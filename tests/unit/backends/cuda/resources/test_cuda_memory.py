"""Pools of memory, and arrays over pinned memory; no driver is needed."""

import gc
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from dagpu.backends.cuda.driver.driver_protocol import OUT_OF_MEMORY
from dagpu.backends.cuda.resources.pools import GRAIN, LARGE, SLAB, WASTE, MemoryBlock, Pool, Slabs, array_over, rounded
from dagpu.common.errors import DeviceError
from tests.simulated.cuda import driver, installed

ROOM = 1 << 26
SIZES = st.one_of(st.integers(0, 5000), st.integers(LARGE // 2 - 3, LARGE // 2 + 3), st.integers(0, 6 * LARGE))


class Store:
    """A driver's memory: `room` bytes, whose addresses are used again."""

    def __init__(self, room: int = ROOM) -> None:
        self.room = room
        self.sizes: dict[int, int] = {}

    def allocate(self, nbytes: int) -> int:
        if sum(self.sizes.values()) + nbytes > self.room:
            raise DeviceError("cuMemAlloc failed: out of memory", OUT_OF_MEMORY)
        address = GRAIN
        while any(address < start + size and start < address + nbytes for start, size in self.sizes.items()):
            address = max(start + size for start, size in self.sizes.items() if start < address + nbytes)
        self.sizes[address] = nbytes
        return address

    def free(self, address: int) -> None:
        del self.sizes[address]


class PoolMachine(RuleBasedStateMachine):
    """Blocks are taken, dropped and trimmed in any order."""

    blocks: Bundle[Any] = Bundle("blocks")

    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        self.pool = Pool(self.store.allocate, self.store.free)
        self.live: list[list[MemoryBlock]] = []

    @rule(target=blocks, nbytes=SIZES, room=st.one_of(st.none(), st.integers(0, ROOM)))
    def take(self, nbytes: int, room: int | None) -> Any:
        cell: list[MemoryBlock] = []
        try:
            cell.append(self.pool.take(nbytes, room))
        except DeviceError:
            # It has trimmed before it gave up, and there still was no room.
            assert self.pool.held == self.in_use()
            assert self.pool.held + rounded(nbytes) > (ROOM if room is None else room) or room is None
            return cell
        block = cell[0]
        assert block.size >= nbytes
        assert block.size - rounded(nbytes) <= rounded(nbytes) // WASTE
        assert nbytes == 0 or block.address % GRAIN == 0
        self.live.append(cell)
        return cell

    @rule(cell=consumes(blocks))
    def drop(self, cell: list[MemoryBlock]) -> None:
        cell.clear()
        self.live = [each for each in self.live if each]

    @rule()
    def trim(self) -> None:
        self.pool.trim()
        assert self.pool.held == self.in_use()

    def in_use(self) -> int:
        return sum(cell[0].size for cell in self.live)

    @invariant()
    def no_byte_has_two_owners(self) -> None:
        spans = sorted((cell[0].address, cell[0].size) for cell in self.live if cell[0].size)
        assert all(start + size <= after for (start, size), (after, _) in pairwise(spans))
        assert all(self.store.sizes[start] == size for start, size in spans)

    @invariant()
    def what_is_counted_is_what_is_there(self) -> None:
        assert self.pool.used == sum(cell[0].nbytes for cell in self.live)
        assert self.pool.held == sum(self.store.sizes.values())


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40)


def test_a_dropped_block_is_given_out_again() -> None:
    """The driver is asked once."""
    store = Store()
    pool = Pool(store.allocate, store.free)
    first = pool.take(10_000).address
    assert pool.take(9_900).address == first
    assert len(store.sizes) == 1


def test_the_block_that_is_wanted_is_given_if_it_is_idle() -> None:
    """Whatever came back later; else the latest. One that is in use, or of another size, is nobody else's."""
    pool = Pool((store := Store()).allocate, store.free)
    blocks = [pool.take(1000) for _ in range(4)]
    other = pool.take(5000).address
    addresses = [block.address for block in blocks]
    assert not pool.has_idle(1000)
    blocks.clear()
    assert pool.has_idle(1000)
    assert pool.has_idle(900)
    assert not pool.has_idle(LARGE)
    first = pool.take(1000, wanted=addresses[1])
    assert first.address == addresses[1]
    second, third = pool.take(1000, wanted=addresses[1]), pool.take(1000, wanted=other)
    assert first.address not in (second.address, third.address)
    assert {second.address, third.address} <= set(addresses)
    assert len(store.sizes) == 5


def test_an_error_that_is_no_want_of_memory_is_passed_on() -> None:
    """Nothing is trimmed for it, and nothing is counted."""

    def allocate(nbytes: int) -> int:
        raise DeviceError("lost", 700)

    pool = Pool(allocate, lambda address: None)
    with pytest.raises(DeviceError, match="lost"):
        pool.take(5)
    assert (pool.used, pool.held) == (0, 0)


def test_a_block_may_be_dropped_while_its_pool_is_locked() -> None:
    """A finaliser that the collector runs inside `take` only leaves a note."""
    store = Store()
    held: list[MemoryBlock] = []

    def allocate(nbytes: int) -> int:
        held.clear()
        return store.allocate(nbytes)

    pool = Pool(allocate, store.free)
    held.append(pool.take(100))
    block = pool.take(200_000)
    assert pool.used == block.nbytes


def test_an_array_keeps_its_pinned_memory() -> None:
    """Pinned memory lives as long as any view of its array."""
    with installed():
        found = driver()
        with found.gpu.current():
            array = array_over(found.pinned.take(4096), 4096)
            view = array.view(np.float32).reshape(32, 32)[3:5]
            del array
            gc.collect()
            assert found.pinned.used == 4096
            view[...] = 1
            del view
            gc.collect()
            assert found.pinned.used == 0


@given(st.lists(st.one_of(st.integers(1, SLAB // 4), st.none()), max_size=60), st.randoms(use_true_random=False))
def test_pieces_of_slabs_never_overlap(asked: list[int | None], random: Random) -> None:
    """Pieces are apart from each other and inside what the driver gave; when all are free, all of it is given back."""
    store = Store()
    slabs = Slabs(store.allocate, store.free)
    live: dict[int, int] = {}
    for nbytes in asked:
        if nbytes is not None:
            size = rounded(nbytes)
            address = slabs.allocate(size)
            assert any(start <= address and address + size <= start + room for start, room in store.sizes.items())
            assert all(address + size <= other or other + room <= address for other, room in live.items())
            live[address] = size
        elif live:
            address = random.choice(sorted(live))
            del live[address]
            slabs.free(address)
    for address in live:
        slabs.free(address)
    assert not store.sizes
