"""examples/decode: its CUDA C++ kernels run on the host, against their host bodies; its sizes; other shapes."""

import dataclasses
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from dagpu import bf16, f32, from_host, use_device
from dagpu.backends.host import host_run
from dagpu.backends.host.arrays import writable_array
from dagpu.backends.host.cuda_text.launching import run_text
from dagpu.backends.host.numpy_execution import execute
from dagpu.testing import Instruction, KernelSpec, Launch, Tiles
from tests.simulated.cuda import driver
from tests.simulated.runs import fresh_machine as fresh_machine
from tests.support.example_scripts import example
from tests.unit.backends.cuda.kernels.prelude_texts import in_namespace, nvcc

LINEAR = {"project_qkv", "attend"}  # their tiles have four axes, a grid of CUDA's three
PREFETCH = """asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes)
                 : "memory");"""
NAMES = ("embed", "project_qkv", "attend", "add_attention", "gate_up", "add_down", "score", "pick")


@pytest.fixture(scope="module")
def decode() -> Any:
    """The module that the example runs."""
    return example("decode.decoding")


def model_of(decode: Any, element: type[Any] = f32, **sizes: int) -> Any:
    """A model with these sizes, and the script's where none are given."""
    chosen = dataclasses.replace(decode.Sizes(), **sizes)
    chosen.check(len(decode.PROMPT) + 1)
    return decode.random_model(chosen, element, 1)


def specs_of(model: Any) -> list[KernelSpec]:
    """The model's kernels, in the order of NAMES."""
    pick = example("decode.layers").pick
    parts = (model.vocabulary, model.attention, model.feed_forward)
    found = {name: getattr(part, name) for part in parts for name in NAMES if hasattr(part, name)}
    return [(found | {"pick": pick})[name].spec for name in NAMES]


# ---- the CUDA text on the host


class Compared(NamedTuple):
    """The largest difference between one output of a launch and that of the host body.

    `cache` is True for the cache.
    """

    kernel: str
    cache: bool
    difference: float


class Device:
    """Executes launches by their CUDA text, and holds what comes of it against the host body."""

    def __init__(self) -> None:
        self.compared: list[Compared] = []

    def __call__(self, instruction: Instruction, memory: list[object], **_: object) -> None:
        if not isinstance(instruction, Launch):
            execute(instruction, memory)
            return
        before = [array.copy() for array in outputs(instruction, memory)]
        execute(instruction, memory)
        expected = [array.copy() for array in outputs(instruction, memory)]
        for array, old in zip(outputs(instruction, memory), before, strict=True):
            array[...] = old
        spec = instruction.kernel  # a prefetch changes no element, and is inline assembly
        assert run_text(replace(instruction, kernel=replace(spec, cuda=spec.cuda.replace(PREFETCH, ""))), memory)
        for array, wanted in zip(outputs(instruction, memory), expected, strict=True):
            self.compared.append(Compared(spec.name, array.shape[2:3] == (2,), distance(array, wanted)))


def outputs(launch: Launch, memory: list[object]) -> list["np.ndarray[Any, Any]"]:
    return [writable_array(memory[a.view.buffer], a.view.layout) for a in launch.args if isinstance(a, Tiles)]


def distance(found: "np.ndarray[Any, Any]", wanted: "np.ndarray[Any, Any]") -> float:
    """The largest difference, as a part of the largest element, or of 1 where that is less."""
    one, other = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.abs(other) < 1e29  # the maximum of no scores, which both have
    assert np.array_equal(one[~finite], other[~finite])
    return float(np.abs(one - other)[finite].max(initial=0) / max(1.0, np.abs(other)[finite].max(initial=0)))


# Rows of one load and of several, a group of three, more positions than a block takes at a time, a last block of the
# table that is smaller: what the small sizes of the script leave out.
SIZES = {"layers": 1, "hidden": 72, "heads": 6, "vocabulary": 125, "positions": 640, "splits": 2}


@pytest.mark.host_only("it runs the CUDA text on the CPU")
@pytest.mark.parametrize(("element", "ffn"), [(f32, 1032), (bf16, 2056)])
def test_cuda_and_host_bodies_agree(decode: Any, element: type[Any], ffn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every launch of a step, done by either on the same memory, gives the same but for rounding."""
    model, device = model_of(decode, element, ffn=ffn, **SIZES), Device()
    empty = decode.empty_cache(model)
    kept = np.random.default_rng(1).normal(size=empty.shape).astype(element)
    monkeypatch.setattr(host_run, "execute", device)
    for position in (5, 639):
        cache, token = from_host(kept).sync(), from_host(np.array([position % 125], np.int32)).sync()
        decode.step(model, token.share(), cache.borrow_mut(), position).sync()
    assert {compared.kernel for compared in device.compared} == set(NAMES)
    # What is rounded to bfloat16 may fall to either side.
    far = [compared for compared in device.compared if compared.difference > (2**-7 if compared.cache else 1e-6)]
    assert not far


@pytest.mark.host_only("it needs no device")
def test_kernels_compile(decode: Any, tmp_path: Path) -> None:
    """nvcc compiles the kernels for bfloat16, with no registers spilled to memory."""
    texts: dict[str, list[str]] = {"plain": [], "linear": []}
    for spec in specs_of(model_of(decode, bf16)):
        text = f"namespace {spec.name}_text {{\n{spec.cuda}\n}}\n"
        texts["linear" if spec.name in LINEAR else "plain"].append(text)
    whole = "".join(in_namespace(variant, "".join(parts)) for variant, parts in texts.items())
    (tmp_path / "all.cu").write_text(f"#include <cstdint>\n#include <cuda_bf16.h>\n{whole}")
    said = nvcc("-cubin", "-Xptxas", "-v", "all.cu", cwd=tmp_path)
    assert said.count("0 bytes spill stores, 0 bytes spill loads") == len(NAMES)


@pytest.mark.host_only("it brings a GPU of its own")
@pytest.mark.usefixtures("machine")
def test_steps_are_one_graph(decode: Any) -> None:
    """On a GPU (a simulated one, which runs host bodies) all steps but the first are launches of one graph."""
    with use_device("cuda:0"):
        model = model_of(decode)
        following, cache = decode.pipeline_of(model), decode.empty_cache(model)
        token = from_host(np.array([1], np.int32)).sync().share()
        simulated: Any = driver(0).gpu
        before, made = simulated.graphs, []
        for position in range(5):
            token = following(token, cache.borrow_mut(), position).sync().share()
            made.append(simulated.graphs - before)
        assert made == [0, 1, 1, 1, 1]
        assert following.cache_info()[:2] == (4, 1)
        assert decode.decoded(model, following, 6).tokens == decode.reference(model, 6)


# ---- the script


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"heads": 5}, "--heads must be a multiple of --kv-heads"),
        ({"ffn": 100}, "multiples of 8"),
        ({"head": 24}, "power of two"),
        ({"kv_heads": 1, "heads": 17}, "at most 16 times"),
        ({"positions": 4}, "--positions must be at least 5"),
        ({"splits": 5}, "multiple of --splits"),
        ({"ffn": 12_296}, "at most 12,288"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(decode: Any, changed: dict[str, int], told: str) -> None:
    """Sizes that a kernel could not work with are named before anything is made."""
    with pytest.raises(ValueError, match=told):
        dataclasses.replace(decode.Sizes(), **changed).check(5)


@pytest.mark.parametrize(
    "arguments",
    [
        "--dtype bf16 --tokens 12",
        "--layers 1 --kv-heads 4 --head 8 --tokens 5 --positions 9 --splits 9",
        "--hidden 96 --heads 8 --kv-heads 1 --vocabulary 2113 --tokens 6 --check 3",
    ],
)
def test_other_shapes(decode: Any, arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Plain runs, the pipeline and NumPy choose the same tokens for other sizes and for bfloat16 too."""
    decode.main(arguments.split())
    assert "NumPy chooses the same" in capsys.readouterr().out


def test_close_logits_are_no_evidence(decode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If rounding could decide which token is chosen, the reference says so and compares nothing."""
    monkeypatch.setattr(decode, "logits_of", lambda *_: np.array([0.0, 1.0, 1.0001]))
    with pytest.raises(AssertionError, match="choose another --seed"):
        decode.reference(model_of(decode), 1)


def test_a_step_is_shown(decode: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On request: the plan of a step, and a timeline of two, with every kernel in both."""
    timeline = tmp_path / "steps.json"
    decode.main(["--layers", "2", "--tokens", "2", "--explain", "--trace", str(timeline)])
    told, drawn = capsys.readouterr().out, timeline.read_text()
    assert all(name in told and name in drawn for name in NAMES)
    by_kernel = told[told.index("Predicted time by kernel:") :]
    assert re.search(rf"^gate_up +2 +{2 * 192 * 2 * 64 * 4:,} ", by_kernel, re.MULTILINE), by_kernel
