"""Reads CUDA text for tests. By default the kernel is named `k` and takes tiles and views."""

from typing import Literal

import pytest

from dagpu.common.errors import KernelArgumentError
from dagpu.kernels.cuda_signature import CudaParam, CudaSignature, parse_cuda_signature

Abi = Literal["views", "pointers"]


def parse(source: str, name: str = "k", abi: Abi = "views") -> CudaSignature:
    return parse_cuda_signature(source, name, abi=abi)


def only(declaration: str, abi: Abi = "views", before: str = "") -> CudaParam:
    """Return the parameter of a kernel that declares only this one."""
    (param,) = parse(f"{before}\n__global__ void k({declaration}) {{}}", abi=abi).params
    return param


def refusal(source: str, name: str = "k", abi: Abi = "views") -> str:
    with pytest.raises(KernelArgumentError) as caught:
        parse(source, name, abi)
    return str(caught.value)
