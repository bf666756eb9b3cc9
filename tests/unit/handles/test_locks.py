"""The locks that runs take on memory: who may read, who may write, and that they are given back in full."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpu import BorrowError, device
from dagpu.handles.handle_state import Storage
from dagpu.testing import Locks


@given(st.randoms(use_true_random=False))
def test_there_are_many_readers_or_one_writer(random: Random) -> None:
    """Runs lock, take over each other's locks and give theirs back, in any order. What two of them may not have is
    refused, and then nothing has changed; and each block knows how many read it and who writes it, to the end."""
    storages = [Storage(device("host"), 4) for _ in range(3)]
    runs = [Locks(None) for _ in range(4)]
    held: list[dict[Storage, bool]] = [{} for _ in runs]
    for _ in range(30):
        number, other = random.sample(range(len(runs)), 2)
        run, mine = runs[number], held[number]
        match random.randrange(5):
            case 0:
                run.release()
                mine.clear()
            case 1:
                run.adopt(runs[other])
                for storage, exclusive in held[other].items():
                    mine[storage] = exclusive or mine.get(storage, False)
                held[other].clear()
            case _:
                chosen = random.sample(storages, random.randint(1, 3))
                wanted = {storage: random.random() < 0.3 for storage in chosen}
                theirs = [each for each in held if each is not mine]
                if any(s in each and (each[s] or wanted[s]) for each in theirs for s in wanted):
                    with pytest.raises(BorrowError):
                        run.acquire(wanted)
                else:
                    run.acquire(wanted)
                    for storage, exclusive in wanted.items():
                        mine[storage] = exclusive or mine.get(storage, False)
        for storage in storages:
            writers = [run for run, each in zip(runs, held, strict=True) if each.get(storage)]
            readers = [each for each in held if storage in each and not each[storage]]
            assert storage.lock.writer is (writers[0] if writers else None)
            assert len(writers) <= 1
            assert storage.lock.readers == len(readers)
    for run in runs:
        run.release()
    assert all((storage.lock.writer, storage.lock.readers) == (None, 0) for storage in storages)
