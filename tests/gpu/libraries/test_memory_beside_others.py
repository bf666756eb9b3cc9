"""A GPU whose memory PyTorch holds: what it keeps idle makes room for dagpu, and what it uses does not."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from numpy.testing import assert_array_equal

from dagpu import Device, In, OutOfMemoryError, Tensor, adopt, f32, foreign, full, ones, u8, use_device, zeros
from dagpu.interop import new

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.exclusive

GIB = 1 << 30


@pytest.fixture(autouse=True)
def on_gpu(cuda: Device) -> Iterator[Device]:
    """The GPU, of which neither library keeps idle memory before, and PyTorch none after."""
    with use_device(cuda):
        gc.collect()
        torch.cuda.empty_cache()
        with pytest.raises(OutOfMemoryError):  # which frees what dagpu's pool keeps
            zeros((2 * cuda.memory_info()[1],), u8).sync()
        yield cuda
        gc.collect()
        torch.cuda.empty_cache()


def fill_by_torch(but: int) -> list[Any]:
    """Tensors of PyTorch in all of the GPU's memory, but for so many bytes and a GiB at most."""
    held: list[Any] = []
    while (free := torch.cuda.mem_get_info()[0]) > but + GIB:
        held.append(torch.empty(min(free - but, GIB), dtype=torch.uint8, device="cuda"))
    return held


def test_what_pytorch_keeps_idle_makes_room(on_gpu: Device) -> None:
    """PyTorch has dropped its tensors and holds their memory; a run of ours gets it."""
    held = fill_by_torch(2 * GIB)
    count = len(held)
    del held
    gc.collect()
    assert torch.cuda.memory_reserved() >= (count - 1) * GIB
    large = full(((count // 2) * GIB,), 3, u8).sync()
    assert torch.cuda.memory_reserved() < GIB
    assert large.slice(slice(-4, None)).to_host().sync().tolist() == [3] * 4


def test_what_pytorch_uses_stays(on_gpu: Device) -> None:
    """The error says how much PyTorch holds. Its tensors are whole, and smaller runs go on."""
    held = fill_by_torch(4 * GIB)
    held[0].fill_(7)
    asked = 8 * GIB
    for _ in range(3):
        with pytest.raises(OutOfMemoryError, match=r"; PyTorch holds [0-9,]{10,}\.") as caught:
            zeros((asked,), u8).sync()
        assert caught.value.code == 2
    assert ones((4,)).to_host().sync().tolist() == [1.0] * 4
    assert bool((held[0] == 7).all())
    kept = adopt(held.pop(0), u8)
    assert kept.slice(slice(0, 2)).to_host().sync().tolist() == [7, 7]


def test_a_body_for_which_pytorch_has_no_memory(on_gpu: Device) -> None:
    """PyTorch's error fails the results of that op alone; with room, the same op succeeds."""
    wanted = [64 * GIB]

    @foreign(capture="never")
    def greedy(x: In[f32]) -> Tensor[f32]:
        return new(x)

    @greedy.on("torch")
    def _(x: Any, out: Any) -> None:
        room = torch.empty(wanted[0], dtype=torch.uint8, device="cuda")
        out.copy_(x + room[:1])

    held = fill_by_torch(8 * GIB)
    x = full((8,), 2.0).sync().share()
    with pytest.raises(torch.cuda.OutOfMemoryError) as caught:
        greedy(x.clone()).sync()
    assert any("greedy" in note for note in caught.value.__notes__)
    assert ones((2,)).to_host().sync().tolist() == [1, 1]
    del held
    wanted[0] = 1
    gc.collect()
    found = greedy(x).to_host().sync()
    assert_array_equal(found.shape, (8,))
