"""The audit of a body of a foreign op: the captured work is held against what the op declares.

It reads each address that a kernel, copy or fill is given directly. It sees no pointer that lies in device memory, and
its messages say so.
"""

from collections.abc import Sequence
from typing import NamedTuple, final

from dagpu.backends.common.checks.checked_bodies import ends_of, layout_of, output_name
from dagpu.backends.cuda.driver.driver_protocol import CapturedNode, EnqueuedWork, Gpu
from dagpu.backends.cuda.resources.pools import Pool
from dagpu.backends.cuda.resources.temporaries import Temporaries
from dagpu.common.errors import DeviceLostError, ForeignError
from dagpu.common.places import describe
from dagpu.handles.device_handles import UserBody
from dagpu.plans.program import Launch


@final
class OperandSpan(NamedTuple):
    """The memory of a tensor argument in one call of a body."""

    param: int
    """Its index among the parameters."""
    is_output: bool
    start: int
    nbytes: int
    """Bytes from the first byte to the end of the last; 0 for a tensor without elements."""


def operand_spans(launch: Launch, addresses: Sequence[int]) -> list[OperandSpan]:
    """Return the spans of the tensor arguments of a launch, whose first elements are at these addresses."""
    found: list[OperandSpan] = []
    for (index, param), address in zip(launch.kernel.tensors, addresses, strict=True):
        low, high = ends_of(layout_of(launch, index))
        found.append(OperandSpan(index, param.form.is_written, address + low, high - low))
    return found


def who(launch: Launch) -> str:
    """Name an op for a message: where it is declared, and where it is called."""
    kernel = launch.kernel
    return f"{kernel.name}, declared at {describe(kernel.origin)}, called at {describe(launch.origin)}"


@final
class BodyAudit:
    """The audit of the work that a body enqueues for one call."""

    def __init__(
        self, launch: Launch, body: UserBody, node: CapturedNode, temporaries: Temporaries, gpu: Gpu, pool: Pool
    ) -> None:
        self._launch = launch
        self._body = body
        self._node = node
        """The captured call."""
        self._temporaries = temporaries
        """The memory of the body's temporaries."""
        self._gpu = gpu
        self._pool = pool
        scratch = launch.scratch
        self._spans = operand_spans(launch, node.addresses)
        self._scratch = 0 if scratch is None else scratch.layout.nbytes

    def check(self, work: Sequence[EnqueuedWork]) -> None:
        """Check the captured work.

        A word that points into memory of dagpu that is no operand may only look like a pointer. The body is captured
        once more at other addresses then; a word that is not the same in both is not refused, and the body notes it.

        Raises:
            ForeignError: the body enqueues nothing, points at memory that is no operand, or never at an output.
        """
        written = [span for span in self._spans if span.is_output and span.nbytes]
        if not work and written:
            raise self._wrong(
                "enqueued nothing on the lane's stream",
                "Its work is on another stream: use the current one, or lane.handle in a raw body",
            )
        strange = [(each.name, word) for each in work for word in dict.fromkeys(each.words) if self._is_strange(word)]
        if strange:
            kept = self._words_elsewhere()
            for name, word in strange:
                if word in kept:
                    raise ForeignError(
                        f"{who(self._launch)}: {name} of its {self._body.described} points at {word:#x}, memory of "
                        "dagpu that is no operand of this call. Declare it as In or Out. If it is no pointer, declare "
                        'the op with @foreign(verify="none").'
                    )
            odd = [word for _, word in strange if not self._is_end(word)]
            if odd:
                self._body.noted = _remark(len(odd))
        for span in written:
            if not any(span.start <= word < span.start + span.nbytes for each in work for word in each.words):
                raise self._wrong(
                    f"enqueued no kernel, copy or fill that points at {output_name(self._launch.kernel, span.param)}",
                    "Write the output. If a pointer to it lies in device memory, where the audit does not see it, "
                    'declare the op with @foreign(verify="none")',
                )

    def _is_strange(self, word: int) -> bool:
        """Return True if a word is an address in dagpu's memory that the body has not been given.

        The end of an operand is one: it may be the start of the next block. A kernel that is given ends has others in
        a capture elsewhere.
        """
        if not self._pool.owns(word):
            return False
        scratch = self._node.scratch
        if any(span.start <= word < span.start + span.nbytes for span in self._spans):
            return False
        return not (scratch <= word < scratch + self._scratch or self._temporaries.has(word))

    def _is_end(self, word: int) -> bool:
        """Return True if a word is the end of an operand or of the scratch memory."""
        ends = [span.start + span.nbytes for span in self._spans]
        return word in ends or word == self._node.scratch + self._scratch

    def _words_elsewhere(self) -> frozenset[int]:
        """Return the words of a capture in which all operands are elsewhere; none if there is no such capture."""
        node = self._node
        try:
            block = self._pool.take(max([span.nbytes for span in self._spans] + [self._scratch, 1]))
            moved = CapturedNode(
                node.enqueue, (block.address,) * len(node.addresses), block.address if node.scratch else 0, node.numbers
            )
            work = self._gpu.captured_work(moved)
        except DeviceLostError:
            raise
        except Exception:  # the body has been captured once: this time it may fail in any way
            return frozenset()
        return frozenset([word for each in work for word in each.words])

    def _wrong(self, what: str, cure: str) -> ForeignError:
        return ForeignError(f"{who(self._launch)}: its {self._body.described} {what}. {cure}.")


def _remark(words: int) -> str:
    return (
        f"{words} words of its kernels' parameters look like pointers into dagpu's memory, and are not the same in "
        "every capture, so they count as none"
    )
