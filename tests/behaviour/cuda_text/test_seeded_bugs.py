"""Mistakes in CUDA texts are found on the host, each with its line."""

import pytest

from dagpu import KernelBoundsError
from tests.behaviour.cuda_text.seeded_bugs import BUGS, QUICK
from tests.behaviour.cuda_text.texts import N, declared, result
from tests.conftest import MARKS

CASES = [pytest.param(name, marks=() if name in QUICK else MARKS) for name in BUGS]


@pytest.mark.host_only("the texts run on the host")
@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_found(name: str) -> None:
    """The error has its class, its element and the line of the text, quoted."""
    bug = BUGS[name]
    with pytest.raises(bug.error) as caught:
        result(declared(bug.body, bug.before, bug.block), **bug.run)
    said = str(caught.value)
    assert type(caught.value) is bug.error
    assert bug.says in said
    if bug.line:
        assert bug.body.splitlines()[bug.line - 1].strip()[:100] in said


@pytest.mark.host_only("the texts run on the host")
@pytest.mark.parametrize("index", [N, N + 64, 2 * N, 10**6, 2**31 - 1, -1, -N, -(2**31)])
def test_no_index_of_32_bits_leads_into_another_tensor(index: int) -> None:
    """However far an index is out of bounds, its error says of which tensor, and the neighbours keep their contents."""
    with pytest.raises(KernelBoundsError, match=f"element {index} of {N} of 'y'"):
        result(declared(f"  y[{index}ll] = x[0];", block=(1,)), grid=(1,))
    with pytest.raises(KernelBoundsError, match=f"reads 4 bytes out of bounds, element {index} of {N} of 'x'"):
        result(declared(f"  y[0] = x[{index}ll];", block=(1,)), grid=(1,))


def test_the_table() -> None:
    """It has sixty mistakes, and a quick one of most kinds."""
    assert len(BUGS) >= 60
    assert set(QUICK) <= set(BUGS)
