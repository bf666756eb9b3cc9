"""What kernels leave behind to show that they ran: a list of numbers, in the order in which they were written.

On the host a kernel's body appends to it. A GPU writes into page-locked host memory, whose address the kernel gets as
a number: word 0 counts the marks, those after it are the marks.
"""

from typing import Any, Final

LENGTH: Final = 4096
"""Words of the device's list; a test leaves far fewer marks."""

DEVICE_MARK: Final = """
__device__ void leave_mark(long long address, int number) {
    if (address == 0 || blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x + threadIdx.y + threadIdx.z != 0) return;
    int* words = reinterpret_cast<int*>(address);
    words[1 + atomicAdd(words, 1)] = number;
}
"""
"""CUDA: one mark for each launch that calls this in all its threads; none where the address is 0."""


class Marks:
    """One list; `address` is 0 until a device's memory has been lent to it."""

    def __init__(self) -> None:
        self._words: Any = None
        self.address = 0
        self._mine: list[int] = []

    def use(self, words: Any, address: int) -> None:
        """Read the device's marks from `words`, an array of `LENGTH` int32 that the device knows at `address`."""
        self._words, self.address = words, address

    def leave(self, number: int) -> None:
        """A mark from Python."""
        self._mine.append(number)

    def seen(self) -> list[int]:
        """All marks since `clear`. Call it when no kernel is under way."""
        if not self.address:
            return list(self._mine)
        count = int(self._words[0])
        assert count < LENGTH
        return self._mine + [int(number) for number in self._words[1 : 1 + count]]

    def clear(self) -> None:
        """Forget them."""
        self._mine.clear()
        if self.address:
            self._words[:] = 0


MARKS: Final = Marks()
