# Random numbers. All but `rand` and the seed getters are there only if PyCUDA was built with CURAND, and importing the
# module fails if it was not.
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias, overload

import numpy as np
from numpy.typing import DTypeLike
from typing_extensions import TypeVar

from pycuda._driver import _Enum
from pycuda._typing import DTypeOf, Shape
from pycuda.driver import DeviceAllocation, Function, Stream
from pycuda.gpuarray import GPUArray

_ScalarT = TypeVar("_ScalarT", bound=np.generic)
# Given a count: so many seeds.
_SeedGetter: TypeAlias = Callable[[int], GPUArray[np.int32]]
_UInt32s: TypeAlias = GPUArray[np.uint32]
_UInt64s: TypeAlias = GPUArray[np.uint64]

def get_curand_version() -> tuple[int, int, int]: ...
@overload
def rand(shape: Shape, *, stream: Stream | None = None) -> GPUArray[np.float32]: ...
@overload
def rand(shape: Shape, dtype: DTypeOf[_ScalarT], stream: Stream | None = None) -> GPUArray[_ScalarT]: ...
@overload
def rand(shape: Shape, dtype: DTypeLike, stream: Stream | None = None) -> GPUArray[Any]: ...
def seed_getter_uniform(n: int) -> GPUArray[np.int32]: ...
def seed_getter_unique(n: int) -> GPUArray[np.int32]: ...

class direction_vector_set(_Enum):
    VECTOR_32: ClassVar[direction_vector_set]
    SCRAMBLED_VECTOR_32: ClassVar[direction_vector_set]
    VECTOR_64: ClassVar[direction_vector_set]
    SCRAMBLED_VECTOR_64: ClassVar[direction_vector_set]

# Elements of 64 bits for the sets of 64 bits, else of 32; shape (count, bits).
def generate_direction_vectors(count: int, direction: direction_vector_set | None = None) -> GPUArray[Any]: ...
def generate_scramble_constants32(count: int) -> _UInt32s: ...
def generate_scramble_constants64(count: int) -> _UInt64s: ...

class _RandomNumberGeneratorBase:
    gen_info: ClassVar[list[tuple[str, str, str]]]
    gen_log_info: ClassVar[list[tuple[str, str, str, str]]]
    gen_poisson_info: ClassVar[list[tuple[str, str, str]]]
    gen_poisson_inplace_info: ClassVar[list[tuple[str, str, str]]]
    block_count: int
    generators: dict[str, Function]
    @property
    def generators_per_block(self) -> int: ...
    @property
    def state(self) -> DeviceAllocation: ...
    def fill_uniform(self, data: GPUArray[Any], stream: Stream | None = None) -> None: ...
    def fill_normal(self, data: GPUArray[Any], stream: Stream | None = None) -> None: ...
    def fill_log_normal(
        self, data: GPUArray[Any], mean: float, stddev: float, stream: Stream | None = None
    ) -> None: ...
    # Without a lambda, the array's own elements are the lambdas.
    @overload
    def fill_poisson(
        self,
        data: GPUArray[np.uint32] | GPUArray[np.float32] | GPUArray[np.float64],
        lambda_value: None = None,
        stream: Stream | None = None,
    ) -> None: ...
    @overload
    def fill_poisson(self, data: GPUArray[np.uint32], lambda_value: float, stream: Stream | None = None) -> None: ...
    @overload
    def gen_uniform(
        self, shape: Shape, dtype: DTypeOf[_ScalarT], stream: Stream | None = None
    ) -> GPUArray[_ScalarT]: ...
    @overload
    def gen_uniform(self, shape: Shape, dtype: DTypeLike, stream: Stream | None = None) -> GPUArray[Any]: ...
    @overload
    def gen_normal(
        self, shape: Shape, dtype: DTypeOf[_ScalarT], stream: Stream | None = None
    ) -> GPUArray[_ScalarT]: ...
    @overload
    def gen_normal(self, shape: Shape, dtype: DTypeLike, stream: Stream | None = None) -> GPUArray[Any]: ...
    @overload
    def gen_log_normal(
        self, shape: Shape, dtype: DTypeOf[_ScalarT], mean: float, stddev: float, stream: Stream | None = None
    ) -> GPUArray[_ScalarT]: ...
    @overload
    def gen_log_normal(
        self, shape: Shape, dtype: DTypeLike, mean: float, stddev: float, stream: Stream | None = None
    ) -> GPUArray[Any]: ...
    # The dtype must be numpy.uint32.
    def gen_poisson(
        self, shape: Shape, dtype: DTypeOf[np.uint32], lambda_value: float | None, stream: Stream | None = None
    ) -> _UInt32s: ...
    def call_skip_ahead(self, i: int, stream: Stream | None = None) -> None: ...
    def call_skip_ahead_array(self, i: GPUArray[Any], stream: Stream | None = None) -> None: ...

class _PseudoRandomNumberGeneratorBase(_RandomNumberGeneratorBase):
    def call_skip_ahead_sequence(self, i: int, stream: Stream | None = None) -> None: ...
    def call_skip_ahead_sequence_array(self, i: GPUArray[Any], stream: Stream | None = None) -> None: ...

class XORWOWRandomNumberGenerator(_PseudoRandomNumberGeneratorBase):
    has_box_muller: ClassVar[bool]
    def __init__(self, seed_getter: _SeedGetter | None = None, offset: int = 0) -> None: ...

class MRG32k3aRandomNumberGenerator(_PseudoRandomNumberGeneratorBase):
    has_box_muller: ClassVar[bool]
    def __init__(self, seed_getter: _SeedGetter | None = None, offset: int = 0) -> None: ...
    def call_skip_ahead_subsequence(self, i: int, stream: Stream | None = None) -> None: ...
    def call_skip_ahead_subsequence_array(self, i: GPUArray[Any], stream: Stream | None = None) -> None: ...

class _SobolRandomNumberGeneratorBase(_RandomNumberGeneratorBase):
    has_box_muller: ClassVar[bool]

class _ScrambledSobolRandomNumberGeneratorBase(_RandomNumberGeneratorBase):
    has_box_muller: ClassVar[bool]

class Sobol32RandomNumberGenerator(_SobolRandomNumberGeneratorBase):
    def __init__(self, dir_vector: _UInt32s | None = None, offset: int = 0) -> None: ...

class ScrambledSobol32RandomNumberGenerator(_ScrambledSobolRandomNumberGeneratorBase):
    def __init__(
        self, dir_vector: _UInt32s | None = None, scramble_vector: _UInt32s | None = None, offset: int = 0
    ) -> None: ...

class Sobol64RandomNumberGenerator(_SobolRandomNumberGeneratorBase):
    def __init__(self, dir_vector: _UInt64s | None = None, offset: int = 0) -> None: ...

class ScrambledSobol64RandomNumberGenerator(_ScrambledSobolRandomNumberGeneratorBase):
    def __init__(
        self, dir_vector: _UInt64s | None = None, scramble_vector: _UInt64s | None = None, offset: int = 0
    ) -> None: ...
