"""Marks, which kernels write to show that they ran: a list of numbers, in the order in which they were written.

On the host, a kernel's body appends to the list. A GPU writes into page-locked host memory, whose address the kernel
gets as a number. Word 0 counts the marks, and the following words are the marks.
"""

from typing import Any, Final

LENGTH: Final = 4096
"""Number of words of the device's list. A test writes far fewer marks."""

DEVICE_MARK: Final = """
__device__ void leave_mark(long long address, int number) {
    if (address == 0 || blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x + threadIdx.y + threadIdx.z != 0) return;
    int* words = reinterpret_cast<int*>(address);
    words[1 + atomicAdd(words, 1)] = number;
}
"""
"""CUDA function: writes one mark for each launch that calls it in all threads; none if the address is 0."""


class Marks:
    """One list of marks. `address` is 0 until `use` gives it memory that the device can write."""

    def __init__(self) -> None:
        self._words: Any = None
        self.address = 0
        self._mine: list[int] = []

    def use(self, words: Any, address: int) -> None:
        """Read the device's marks from `words`, an array of `LENGTH` int32 that the device knows at `address`."""
        self._words, self.address = words, address

    def leave(self, number: int) -> None:
        """Write a mark from Python."""
        self._mine.append(number)

    def seen(self) -> list[int]:
        """Return all marks since `clear`. No kernel may be running."""
        if not self.address:
            return list(self._mine)
        count = int(self._words[0])
        assert count < LENGTH
        return self._mine + [int(number) for number in self._words[1 : 1 + count]]

    def clear(self) -> None:
        """Delete all marks."""
        self._mine.clear()
        if self.address:
            self._words[:] = 0


MARKS: Final = Marks()
