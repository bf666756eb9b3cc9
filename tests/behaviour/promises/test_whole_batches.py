"""A batch is seen whole or not at all: also when a write fails, a Ctrl-C comes, or another task changes a source."""

import signal
import threading
from contextlib import suppress

import numpy as np
import pytest
import trio

from dagpu import (
    OutOfMemoryError,
    Source,
    SourceError,
    Tensor,
    batch,
    f32,
    full,
    i32,
    source,
    use_device,
    zeros,
)
from dagpu.ops import versions
from dagpu.ops.versions import Put
from tests.simulated.cuda import installed


def test_a_write_that_fails_at_the_end_changes_nothing() -> None:
    """The copy that one write needs does not fit: the other one is not made either."""
    with installed(1, gpus=1, memory=1 << 22):
        small, large = source(zeros((8,)).sync()), source(zeros((1 << 18,)).sync())
        held, hog = large.get(), list[Tensor[f32]]()  # so that the write to `large` begins with a copy
        with suppress(OutOfMemoryError):
            while True:
                hog.append(zeros((1 << 16,)).sync())
        with pytest.raises(OutOfMemoryError), batch():  # noqa: PT012  # the end of the block raises
            small.write(slice(0, 4), np.ones(4, f32))
            large.write(slice(0, 4), np.ones(4, f32))
        hog.clear()
        del held
        assert [each.get().to_host().sync()[0] for each in (small, large)] == [0, 0]


def test_a_batch_in_a_batch_is_part_of_it() -> None:
    """What the inner block sets is seen in the outer one, together with what that sets before and after it; and by
    others when the outer one ends. The last `set` of a source counts, and a block that fails takes back its own."""
    first, second, third = source(0), source(0), source(np.zeros(4, f32))
    with batch():
        first.set(1)
        third.write(slice(0, 1), np.ones(1, f32))
        with batch():
            assert first.get() == 1
            first.set(2)
            second.set(2)
            third.write(slice(1, 2), np.full(1, 2, f32))
        assert (first.get(), second.get(), third.get().tolist()) == (2, 2, [1, 2, 0, 0])
        assert (first.revision, second.revision) == (0, 0)
        with suppress(ZeroDivisionError), batch():
            second.set(3)
            raise ZeroDivisionError
        assert second.get() == 2
        with batch(), batch():
            third.write(slice(2, 3), np.full(1, 3, f32))
        first.set(4)
    assert (first.get(), second.get(), third.get().tolist()) == (4, 2, [1, 2, 3, 0])
    assert (first.revision, second.revision, third.revision) == (1, 1, 1)


def test_a_write_meets_what_the_batch_has_set() -> None:
    """It is checked against that value, not against the one before the batch."""
    with use_device("host"):
        numbers, tensor = source(np.zeros(8, f32)), source(zeros((8,)).sync())
        with batch():
            numbers.set(np.full(8, 7, i32))  # another element type
            with pytest.raises(SourceError, match="the part has int32"):
                numbers.write(slice(0, 4), np.full(4, 1.5, f32))
            tensor.set(full((16,), 7.0).sync())
            tensor.write(slice(8, 16), np.ones(8, f32))
        assert tensor.get().to_host().sync()[7:].tolist() == [7, *[1] * 8]


@pytest.mark.parametrize("ends_the_run", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_ctrl_c_amid_the_writes_is_raised_after_them(
    parts: int, ends_the_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write is made once more if a Ctrl-C ends its run."""
    presses = list[int]()

    def interrupted(announced: "versions._Announced") -> None:
        def pressed(put: Put) -> Put:
            def once(value: object, in_place: bool) -> object:
                if not presses:
                    presses.append(1)
                    if ends_the_run:
                        raise KeyboardInterrupt
                    signal.raise_signal(signal.SIGINT)
                return put(value, in_place)

            return once

        made = [
            (version, new._replace(writes=tuple([(box, pressed(put)) for box, put in new.writes])), alone)
            for version, new, alone in announced
        ]
        write(made)

    write = versions._write_announced  # noqa: SLF001  # the place of the Ctrl-C
    monkeypatch.setattr(versions, "_write_announced", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with use_device("host"):
            tensor, number = source(zeros((8,)).sync()), source(0)
            with pytest.raises(KeyboardInterrupt), batch():  # noqa: PT012  # the end of the block raises
                for part in range(parts):
                    width = 8 // parts
                    tensor.write(slice(part * width, (part + 1) * width), np.ones(width, f32))
                number.set(1)
            assert (tensor.get().to_host().sync().tolist(), number.get()) == ([1] * 8, 1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert presses


def test_change_refuses_a_function_that_sets_its_source() -> None:
    """It would be called for ever, since its own change counts as that of another thread."""
    number = source(1)

    def careless(value: int) -> int:
        number.set(value + 1)
        return value + 10

    with pytest.raises(SourceError, match=r"test_whole_batches.py:\d+ calls. Return the new value from it"):
        number.change(careless)


def seen_elsewhere(number: Source[int]) -> int:
    """Return the value that a new thread sees."""
    found = list[int]()
    thread = threading.Thread(target=lambda: found.append(number.get()))
    thread.start()
    thread.join()
    return found[0]


def test_a_batch_takes_no_change_of_a_thread_or_a_child_task() -> None:
    """They inherit the context of the block, and not the block."""
    number = source(1)

    async def child(value: int) -> None:
        number.set(value)

    async def main() -> None:
        with suppress(ValueError), batch():
            await trio.to_thread.run_sync(number.set, 2)
            assert seen_elsewhere(number) == 2
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child, 3)
            assert seen_elsewhere(number) == 3
            number.set(4)
            raise ValueError
        assert number.get() == 3

    trio.run(main)


def test_a_change_in_a_batch_loses_no_change_of_another_thread() -> None:
    """The function is called again when the batch ends."""
    number = source(0)
    with batch():
        number.change(lambda value: value + 1)
        thread = threading.Thread(target=lambda: number.change(lambda value: value + 10))
        thread.start()
        thread.join()
        assert number.get() == 1
    assert number.get() == 11
    with batch():
        number.set(1)
        number.change(lambda value: value * 3)
        thread = threading.Thread(target=number.set, args=(5,))
        thread.start()
        thread.join()
    assert number.get() == 3
