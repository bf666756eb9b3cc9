"""CUDA source to cubin: the cache and its keys, compiling once, which compiler is asked, errors as users read them.

Stand-ins for NVRTC and nvcc serve where no compiler is needed; the last part asks the real ones, if they are here.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from dagpu.backends.cuda.compile.compiler import Compiled, Compiler
from dagpu.backends.cuda.compile.cubins import kernel_symbols, plain_name
from dagpu.backends.cuda.compile.nvidia_compilers import Refusal, find_nvcc, load_nvrtc
from dagpu.backends.kernel_text.units import PRELUDE, kernel_unit
from dagpu.common.errors import DeviceError
from dagpu.handles.device_handles import INSTALL_NVRTC
from tests.programs.arithmetic import scale
from tests.unit.backends.cuda.compile.compiler_fakes import SAXPY, SYMBOL, FakeNvrtc, cubin, refusal, unit

TILES = """\
__global__ void saxpy(Tile<float, 2> y, float a, View<const float, 2> x) {
    for (auto i : y) y[i] += a * x[i];
}
"""


def fake_nvcc(folder: Path, *, output: bytes = b"", log: str = "") -> str:
    """An executable that stands in for nvcc: it writes `output` to the file after -o, or fails with `log`."""
    (folder / "output").write_bytes(output)
    (folder / "log").write_text(log)
    script = folder / "nvcc"
    script.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> "{folder}/calls"\n'
        'test "$1" = --version && echo release 13.0 && exit 0\n'
        'while test "$1" != -o; do shift; done\n'
        f'test -s "{folder}/log" && cat "{folder}/log" >&2 && exit 1\n'
        f'cp "{folder}/output" "$2"\n'
    )
    script.chmod(0o755)
    return str(script)


# ---- names in a cubin


def test_kernels_of_a_cubin() -> None:
    """Functions that are no kernels are not among them."""
    assert kernel_symbols(cubin("_Z1kPf", "plain", helpers=["_Z6helperf"])) == ["_Z1kPf", "plain"]


@pytest.mark.parametrize("damaged", [b"", b"not ELF", cubin("k")[:-30], cubin("k")[:40]])
def test_a_damaged_cubin_is_a_value_error(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="ELF"):
        kernel_symbols(damaged)


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("saxpy", "saxpy"),
        ("_Z5saxpyPffPKfi", "saxpy"),
        ("_ZN2my5saxpyE1VIfE", "saxpy"),
        ("_ZN1a1b2k2EPf", "k2"),
        ("_ZL1kPf", "k"),
        ("_ZN36_GLOBAL__N__00000000_4_u_py_7fd2504e2k3EPf", "k3"),
        ("_Z7saxpy_2Pf", "saxpy_2"),
    ],
)
def test_the_plain_name_of_a_symbol(symbol: str, name: str) -> None:
    assert plain_name(symbol) == name


def test_the_symbol_comes_with_the_cubin(tmp_path: Path) -> None:
    """A kernel is found in a namespace, and not mistaken for one whose name begins alike."""
    data = cubin("_ZN2my5saxpyEPf", "_Z7saxpy_2Pf")
    assert Compiler(FakeNvrtc(data), "", tmp_path).compile(unit()) == Compiled(
        data, "_ZN2my5saxpyEPf", compiler="NVRTC 13.0"
    )


def test_a_kernel_that_is_missing_or_ambiguous_is_an_error(tmp_path: Path) -> None:
    missing = refusal(Compiler(FakeNvrtc(cubin("_Z4axpyPf")), "", tmp_path / "a"), unit())
    assert "'saxpy', CUDA source at /home/me/saxpy.py:12: it compiles, but has no kernel of that name" in missing
    assert "its kernels: axpy" in missing
    double = refusal(Compiler(FakeNvrtc(cubin("_Z5saxpyPf", "_ZN1a5saxpyEPf")), "", tmp_path / "b"), unit())
    assert "2 kernels have that name: _Z5saxpyPf, _ZN1a5saxpyEPf. A kernel is launched by name" in double


def test_constant_variables_are_found_by_their_names(tmp_path: Path) -> None:
    """In a namespace and with internal linkage, too. One of another size, or none, or several, are an error."""
    internal = "_ZN36_GLOBAL__N__00000000_4_u_py_7fd2504e4taps"
    data = cubin(SYMBOL, variables={f"{internal}E": 20, "bias": 4, "_ZN2ns4openE": 12, "taps_2": 8})
    asked = unit(constants=(("taps", 20), ("bias", 4), ("open", 0)))
    made = Compiler(FakeNvrtc(data), "", tmp_path).compile(asked)
    assert made.constants == (f"{internal}E", "bias", "_ZN2ns4openE")
    for number, (constants, variables, says) in enumerate(
        [
            (("taps", 16), {"taps": 20}, "'taps' has 20 bytes, and by its declaration 16"),
            (("taps", 20), {"bias": 4}, "its parameter 'taps' sets a __constant__ variable that the kernel does not"),
            (("taps", 20), {"taps": 20, "_ZN1a4tapsE": 20}, "2 variables have the name 'taps'"),
        ]
    ):
        nvrtc = FakeNvrtc(cubin(SYMBOL, variables=variables))
        assert says in refusal(Compiler(nvrtc, "", tmp_path / str(number)), unit(constants=(constants,)))


# ---- what the compiler is given


def test_the_text_is_placed_in_the_users_file(tmp_path: Path) -> None:
    """With the prelude before it, its options before the user's, and the folder of the file for its headers."""
    nvrtc = FakeNvrtc()
    wanted = unit(TILES, prelude=True, defines=("DAGPU_STRIDED",), options=("-lineinfo",), file='/home/"me"/a.py')
    Compiler(nvrtc, "", tmp_path).compile(wanted)
    (text, file, options) = nvrtc.asked[0]
    first, second, rest = text.split("\n", 2)
    assert first == f'#include "{PRELUDE}"'
    assert second == '#line 12 "/home/\\"me\\"/a.py"'
    assert rest == TILES + "\n"
    assert file == wanted.file
    assert options[:5] == ("-std=c++17", "-arch=sm_90", "-DDAGPU_STRIDED", '-I/home/"me"', "-lineinfo")


def test_a_standard_of_the_users_replaces_ours(tmp_path: Path) -> None:
    nvrtc = FakeNvrtc()
    Compiler(nvrtc, "", tmp_path).compile(unit(options=("-std=c++20",)))
    assert [option for option in nvrtc.asked[0][2] if option.startswith("-std")] == ["-std=c++20"]


@pytest.mark.parametrize(
    ("code", "defined"),
    [
        ("half x;", {"DAGPU_HALF"}),
        ("__half2 x;", {"DAGPU_HALF"}),
        ("__nv_bfloat16 x; half y;", {"DAGPU_HALF", "DAGPU_BFLOAT16"}),
        ("nv_bfloat162 x;", {"DAGPU_BFLOAT16"}),
        ("// one half of it\n/* half */ int halfway;", set[str]()),
    ],
)
def test_16_bit_floats_are_there_where_they_are_used(code: str, defined: set[str], tmp_path: Path) -> None:
    """The headers of 16-bit floats are included only for sources that use them, for they are slow to compile; a
    comment does not count as a use."""
    nvrtc = FakeNvrtc()
    Compiler(nvrtc, "", tmp_path).compile(unit(code + "\n" + TILES, prelude=True))
    assert {option[2:] for option in nvrtc.asked[0][2] if option.startswith("-DDAGPU")} == defined


@pytest.mark.parametrize(
    ("name", "parts"),
    [("a/file.py:12", ("a/file.py", 12)), ("saxpy.cu", ("saxpy.cu", 1)), ("odd:name.cu", ("odd:name.cu", 1))],
)
def test_file_and_line_of_a_source_name(name: str, parts: tuple[str, int]) -> None:
    """They are those of the unit, for messages of the compiler."""
    found = kernel_unit(replace(scale.spec, source_name=name), (), "sm_90")
    assert (found.file, found.line) == parts


# ---- which compiler


@pytest.mark.parametrize(
    "log",
    [
        '/a.py(1): catastrophic error: could not open source file "stdint.h" (no directories in search list)',
        '/a.py(1): catastrophic error: cannot open source file "stdint.h"',
        "/a.py(1): error: A function ... is considered a host function, and ... not allowed in JIT mode. Consider",
        "nvrtc: error: unrecognized option -O8 found",
    ],
)
def test_nvcc_is_asked_for_what_nvrtc_cannot_know(log: str, tmp_path: Path) -> None:
    """A host header, host code, an option of nvcc's; what it gives is cached as well."""
    nvcc = fake_nvcc(tmp_path, output=cubin(SYMBOL))
    compiler = Compiler(FakeNvrtc(Refusal(log)), nvcc, tmp_path / "cache")
    assert [compiler.compile(unit()).symbol for _ in range(2)] == [SYMBOL, SYMBOL]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len([call for call in calls if call.startswith("-cubin -std=c++17 -arch=sm_90")]) == 1


def test_nvcc_is_not_asked_for_plain_mistakes(tmp_path: Path) -> None:
    nvcc = fake_nvcc(tmp_path, output=cubin(SYMBOL))
    nvrtc = FakeNvrtc(Refusal("/home/me/saxpy.py(13): error: wrong"))
    assert "NVRTC 13.0 refused it" in refusal(Compiler(nvrtc, nvcc, tmp_path / "cache"), unit())


def test_nvcc_alone_will_do(tmp_path: Path) -> None:
    nvcc = fake_nvcc(tmp_path, output=cubin(SYMBOL))
    assert Compiler(None, nvcc, tmp_path / "cache").compile(unit()).symbol == SYMBOL


def test_without_a_compiler_the_error_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"'saxpy', CUDA source at /home/me/saxpy.py:12: ") as caught:
        Compiler(None, "", tmp_path).compile(unit())
    assert f"Install NVRTC ({INSTALL_NVRTC})" in str(caught.value)


def test_a_compiler_that_cannot_be_started_is_a_device_error(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="cannot be run"):
        Compiler(None, str(tmp_path / "gone" / "nvcc"), tmp_path).compile(unit())


def test_options_that_ask_for_other_output_are_refused(tmp_path: Path) -> None:
    """An option that asks for another output than a cubin is refused, and leaves no files behind."""
    for output in (b"", b".version 9.0"):
        message = refusal(Compiler(FakeNvrtc(output), "", tmp_path), unit(options=("-ptx",)))
        assert "the options ask for other output than a cubin" in message
        assert "Correct options= of the kernel." in message
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(params=["nvrtc", "nvcc"])
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Compiler:
    """NVRTC with nvcc behind it, and nvcc alone."""
    if request.param == "nvrtc":
        nvrtc = load_nvrtc()
        if nvrtc is None:
            pytest.skip("NVRTC is not installed: pip install '.[nvrtc]'")
        return Compiler(nvrtc, None, tmp_path / "cache")
    if find_nvcc() is None:
        pytest.skip("nvcc is not installed")
    return Compiler(None, None, tmp_path / "cache")


# ---- the real compilers


def test_a_kernel_compiles(real: Compiler) -> None:
    assert real.compile(unit(SAXPY + "__global__ void saxpy_2(float* y) {}")).symbol == SYMBOL


def test_a_kernel_with_tiles_compiles(real: Compiler) -> None:
    made = real.compile(unit(TILES, prelude=True, defines=("DAGPU_STRIDED", "DAGPU_CHECKED")))
    assert plain_name(made.symbol) == "saxpy"


def test_a_mistake_is_shown_on_its_line(real: Compiler) -> None:
    message = refusal(real, unit(TILES.replace("x[i]", "z[i]"), prelude=True))
    lines = message.splitlines()
    assert lines[1] == '  /home/me/saxpy.py:13: identifier "z" is undefined'
    assert lines[2] == "        for (auto i : y) y[i] += a * z[i];"
    assert lines[3].index("^") == lines[2].index("z")


def test_a_header_beside_the_source_is_found(real: Compiler, tmp_path: Path) -> None:
    (tmp_path / "half.cuh").write_text("__device__ float half_of(float x) { return x / 2; }\n")
    text = '#include "half.cuh"\n' + SAXPY.replace("a * x[i]", "half_of(x[i])")
    assert real.compile(unit(text, file=str(tmp_path / "saxpy.cu"))).symbol == SYMBOL
