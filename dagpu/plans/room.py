"""The memory of a simulated run: what instructions wait for where a plan has to keep a limit."""

from typing import final

from dagpu.plans.plan import ALIGNMENT, written_over
from dagpu.plans.program import HOST, Launch, Program, Role


@final
class Room:
    """The bytes of temporaries that a simulated run may hold at once, and which instruction takes and gives back which.

    It counts bytes, and not their places in an arena.
    """

    def __init__(self, program: Program, nbytes: float) -> None:
        self.nbytes = nbytes
        """The bytes that instructions wait for. One that starts alone may take more."""
        self.held = 0
        self.most = 0
        """The most bytes that were held at once."""
        accesses, buffers = program.accesses, program.buffers
        count = len(program.instructions)
        self._takes = [0] * count
        """Bytes that each instruction is the first to write."""
        self._over: dict[int, tuple[int, ...]] = {}
        """For an instruction that may write over its inputs, the temporaries of as many bytes among these."""
        self._gone: set[int] = set()
        """The temporaries that were written over."""
        self._ends: list[list[int]] = [[] for _ in range(count)]
        """The temporaries of whose last users each instruction is one."""
        self._users = [0] * len(buffers)
        """For each of them, the users that have not ended."""
        self._sizes = [-(-buffer.nbytes // ALIGNMENT) * ALIGNMENT for buffer in buffers]
        written: set[int] = set()
        for index, instruction in enumerate(program.instructions):
            for buffer in instruction.writes:
                about = buffers[buffer]
                if buffer not in written and about.role is Role.TEMPORARY and about.device != HOST:
                    written.add(buffer)
                    self._takes[index] += self._sizes[buffer]
            nbytes_over = written_over(instruction, program) if type(instruction) is Launch else 0
            if nbytes_over and self._takes[index]:
                found = [each for each in instruction.reads if each in written and buffers[each].nbytes == nbytes_over]
                self._over[index] = tuple(dict.fromkeys(found))
        for buffer in written:
            users = set(accesses.readers[buffer]) or {accesses.writer[buffer]}
            self._users[buffer] = len(users)
            for user in users:
                self._ends[user].append(buffer)

    def _ending_input(self, index: int) -> int:
        """Return an input that an instruction may write over now, as nothing else needs it; -1 for none."""
        for buffer in self._over.get(index, ()):
            if self._users[buffer] == 1 and buffer in self._ends[index]:
                return buffer
        return -1

    def has(self, index: int) -> bool:
        """Return whether an instruction may start now."""
        takes = self._takes[index]
        return not takes or self.held + takes <= self.nbytes or self._ending_input(index) >= 0

    def start(self, index: int) -> None:
        """Take the bytes of an instruction."""
        over = self._ending_input(index)
        self.held += self._takes[index] - (self._sizes[over] if over >= 0 else 0)
        if over >= 0:
            self._gone.add(over)
        self.most = max(self.most, self.held)

    def end(self, index: int) -> None:
        """Give back what ends with an instruction."""
        users = self._users
        for buffer in self._ends[index]:
            users[buffer] -= 1
            if not users[buffer] and buffer not in self._gone:
                self.held -= self._sizes[buffer]
