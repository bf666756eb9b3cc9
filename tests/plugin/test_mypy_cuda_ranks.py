"""The plugin's reader of CUDA sources beside the run time's: what it says is true; where it is unsure, it is silent."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpu.kernels.cuda_signature import parse_cuda_signature
from dagpu.mypy_plugin.typing.kernel_calls import kernel_ranks


@st.composite
def sources(draw: st.DrawFn) -> str:
    """A CUDA source with one kernel `k`, written in any of many ways."""
    blank = st.sampled_from([" ", "  ", "\n    ", " /* , Tile<int, 7> ) */ ", " // View<\n"])
    parameters = []
    for index in range(draw(st.integers(0, 5))):
        rank, name = draw(st.integers(1, 4)), draw(st.sampled_from(["", f"p{index}"]))
        kind = draw(
            st.sampled_from(
                [
                    "Tile<float,{b}{rank}>",
                    "View<const float,{b}{rank}>",
                    "float",
                    "const dagpu::View<const unsigned int,{b}{rank}{b}>",
                    "::dagpu::Tile<half, {rank}>",
                    "M",
                    "V2",
                ]
            )
        )
        parameters.append(draw(blank) + kind.format(b=draw(blank), rank=rank) + " " + name + draw(blank))
    head = draw(
        st.sampled_from(["", "using V2 = View<const float, 2>;\n", "#define M float\n", "#include <cuda_fp16.h>\n"])
    )
    head += "typedef float V2;\n" if "V2" not in head else ""
    head += "" if "define M" in head else "typedef double M;\n"
    bounds = draw(st.sampled_from(["", "__launch_bounds__(256) "]))
    other = draw(
        st.sampled_from(
            ["", "__device__ float f(float a, int b) { return a; }\n", '__global__ void other(int n) { "k(";  }\n']
        )
    )
    return f"{head}{other}__global__ void{draw(blank)}{bounds}k{draw(blank)}({','.join(parameters)}) {{ }}"


@given(sources())
def test_ranks_agree_with_the_run_time(source: str) -> None:
    """The ranks that the plugin reads are those that the run time reads; where it is not sure, it says nothing."""
    truth = [parameter.rank for parameter in parse_cuda_signature(source, "k", abi="views").params]
    ranks = kernel_ranks(source).get("k")
    if ranks is None:
        assert re.search(r"#define M", source)
        return
    assert len(ranks) == len(truth)
    assert [rank for rank in ranks if rank is not None] == [
        rank for rank, read in zip(truth, ranks, strict=True) if read is not None
    ]


@pytest.mark.parametrize(
    "source",
    [
        "template <class T> __global__ void k(Tile<T, 2> y);\n__global__ void k(Tile<float, 1> y) {}",
        "#ifdef A\n__global__ void k(Tile<float, 1> y) {}\n#else\n__global__ void k(Tile<float, 2> y) {}\n#endif",
        "__global__ void k(Tile<float, 1> y\n#ifdef A\n, int n\n#endif\n) {}",
        "#define Tile View\n__global__ void k(Tile<float, 1> y) {}",
        "// __global__ void k(Tile<float, 1> y) {}",
    ],
)
def test_ranks_that_are_not_plain_are_unknown(source: str) -> None:
    """Overloads, conditions and macros make the plugin say nothing."""
    assert kernel_ranks(source) == {}
