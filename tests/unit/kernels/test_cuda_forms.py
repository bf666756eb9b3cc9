"""Existing CUDA texts are read as they are: ten of each form, held against the compiler where there is one."""

import re
from collections.abc import Sequence

import pytest

from dagpu.backends.cuda.compile.cubins import kernel_facts, kernel_symbols, plain_name
from dagpu.backends.cuda.compile.nvidia_compilers import find_nvcc, find_toolkit_headers, load_nvrtc
from dagpu.kernels.cuda_parameters import CudaParam, c_text
from dagpu.kernels.cuda_signature import parse_cuda_signature
from tests.unit.kernels.cuda_texts import FORMS, Text

CASES = [
    pytest.param(text, id=f"{form} {number}") for form, texts in FORMS.items() for number, text in enumerate(texts)
]


def read(text: Text) -> Sequence[CudaParam]:
    return parse_cuda_signature(text.cuda, text.name, abi="pointers", options=text.options).params


@pytest.mark.parametrize("text", CASES)
def test_a_text_is_read(text: Text) -> None:
    """Its parameters come out, with their types, constness and names."""
    assert ", ".join(map(c_text, read(text))) == text.params


def size_of(param: CudaParam) -> int:
    if param.is_tensor:
        return 8
    assert param.record is not None or param.ctype
    sizes = {"bool": 1, "bfloat16": 2}
    digits = re.sub(r"\D", "", param.ctype)
    return param.record.size if param.record is not None else sizes.get(param.ctype) or int(digits) // 8


NVRTC = load_nvrtc()


@pytest.mark.skipif(NVRTC is None, reason="needs NVRTC")
@pytest.mark.parametrize("form", FORMS)
def test_the_compiler_reads_it_alike(form: str) -> None:
    """The sizes of the parameters are those that the compiler lays out."""
    assert NVRTC is not None
    headers = find_toolkit_headers(find_nvcc(), NVRTC.major)
    for number, text in enumerate(FORMS[form]):
        cuda = text.cuda
        if "half" in cuda and headers is None:
            continue
        head = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n" if "half" in cuda else ""
        head += "namespace std { using ::size_t; }\n" * ("std::size_t" in cuda)
        head += "namespace cuda { namespace std { using int32_t = int; } }\n" * ("cuda::std" in cuda)
        entry = parse_cuda_signature(cuda, text.name, abi="pointers", options=text.options).instance
        tail = f"template <auto* F> struct Use {{}}; template struct Use<&{entry}>;" if "<" in entry else ""
        options = ["-arch=sm_80", "-std=c++17", *text.options, *([f"-I{headers}"] if headers else [])]
        made = NVRTC.compile(f"{head}{cuda}\n{tail}\n", "text.cu", options)
        assert isinstance(made, bytes), (form, number, made)
        symbols = [symbol for symbol in kernel_symbols(made) if plain_name(symbol) == "k"]
        assert len(symbols) == 1, (form, number, symbols)
        sizes = [size for _, size in kernel_facts(made, symbols[0]).parameters]
        assert sizes == list(map(size_of, read(text))), (form, number)
