"""CUDA source to cubin: the cache and its keys, compiling once, which compiler is asked, errors as users read them.

Stand-ins for NVRTC and nvcc serve where no compiler is needed; the last part asks the real ones, if they are here.
"""

import os
import re
import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpu.backends.cuda import compiler as compiler_module
from dagpu.backends.cuda.compile_cache import DiskCache, default_cache_dir, digest
from dagpu.backends.cuda.compiler import Compiled, Compiler, Unit, split_source_name
from dagpu.backends.cuda.cubin import kernel_symbols, plain_name
from dagpu.backends.cuda.diagnostics import Source, read_log
from dagpu.backends.cuda.includes import included_files
from dagpu.backends.cuda.nvcc import find_nvcc
from dagpu.backends.cuda.nvrtc import Refusal, load_nvrtc
from dagpu.errors import CompileError, DeviceError
from tests.test_cuda_includes import NAMED

SAXPY = """\
__global__ void saxpy(float* y, float a, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}
"""
TILES = """\
__global__ void saxpy(Tile<float, 2> y, float a, View<const float, 2> x) {
    for (auto i : y) y[i] += a * x[i];
}
"""
SYMBOL = "_Z5saxpyPffPKfi"


def unit(text: str = SAXPY, **changes: object) -> Unit:
    plain = Unit("saxpy", text, "/home/me/saxpy.py", 12, prelude=False, defines=(), options=(), arch="sm_90")
    return replace(plain, **changes)  # type: ignore[arg-type]  # the fields differ in type; Unit is what is tested


def cubin(*symbols: str, helpers: Sequence[str] = ()) -> bytes:
    """The smallest ELF file whose symbol table has these kernels, and functions that are none."""
    names, table = b"\0", struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    for symbol in [*helpers, *symbols]:
        entry = 0x10 if symbol in symbols else 0
        table += struct.pack("<IBBHQQ", len(names), 0x12, entry, 1, 0, 8)
        names += symbol.encode() + b"\0"
    head = b"\x7fELF\x02\x01".ljust(0x28, b"\0") + struct.pack("<Q", 64 + len(table) + len(names))
    head = head.ljust(0x3A, b"\0") + struct.pack("<HHH", 64, 3, 0)
    sections = [(0, 0, 0, 0), (2, 64, len(table), 2), (3, 64 + len(table), len(names), 0)]
    rows = [struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, at, size, link, 0, 0, 0) for kind, at, size, link in sections]
    return head + table + names + b"".join(rows)


class FakeNvrtc:
    """Gives what it is told to, and keeps what it was asked."""

    major = 13

    def __init__(self, result: bytes | Refusal | None = None, identity: str = "NVRTC 13.0") -> None:
        self.name = self.identity = identity
        self.result = cubin(SYMBOL) if result is None else result
        self.asked: list[tuple[str, str, tuple[str, ...]]] = []
        self.act: Callable[[], None] = lambda: None

    def compile(self, text: str, file: str, options: Sequence[str]) -> bytes | Refusal:
        self.asked.append((text, file, tuple(options)))
        self.act()
        return self.result


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


def refusal(compiler: Compiler, wanted: Unit) -> str:
    with pytest.raises(CompileError) as caught:
        compiler.compile(wanted)
    return str(caught.value)


# ---- names in a cubin -----------------------------------------------------------------------------
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
    assert Compiler(FakeNvrtc(data), "", tmp_path).compile(unit()) == Compiled(data, "_ZN2my5saxpyEPf")


def test_a_kernel_that_is_missing_or_ambiguous_is_an_error(tmp_path: Path) -> None:
    missing = refusal(Compiler(FakeNvrtc(cubin("_Z4axpyPf")), "", tmp_path / "a"), unit())
    assert "'saxpy', CUDA source at /home/me/saxpy.py:12: it compiles, but has no kernel of that name" in missing
    assert "its kernels: axpy" in missing
    double = refusal(Compiler(FakeNvrtc(cubin("_Z5saxpyPf", "_ZN1a5saxpyEPf")), "", tmp_path / "b"), unit())
    assert "2 kernels are called so: _Z5saxpyPf, _ZN1a5saxpyEPf. A kernel is launched by name" in double


# ---- what the compiler is given ---------------------------------------------------------------------
def test_the_text_is_placed_in_the_users_file(tmp_path: Path) -> None:
    """With the prelude before it, its options before the user's, and the folder of the file for its headers."""
    nvrtc = FakeNvrtc()
    wanted = unit(TILES, prelude=True, defines=("DAGPU_STRIDED",), options=("-lineinfo",), file='/home/"me"/a.py')
    Compiler(nvrtc, "", tmp_path).compile(wanted)
    (text, file, options) = nvrtc.asked[0]
    first, second, rest = text.split("\n", 2)
    assert first == f'#include "{compiler_module.PRELUDE}"'
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
    """And nowhere else, for their headers are slow to compile; a comment is no use."""
    nvrtc = FakeNvrtc()
    Compiler(nvrtc, "", tmp_path).compile(unit(code + "\n" + TILES, prelude=True))
    assert {option[2:] for option in nvrtc.asked[0][2] if option.startswith("-DDAGPU")} == defined


@pytest.mark.parametrize(
    ("name", "parts"),
    [("a/file.py:12", ("a/file.py", 12)), ("saxpy.cu", ("saxpy.cu", 1)), ("odd:name.cu", ("odd:name.cu", 1))],
)
def test_file_and_line_of_a_source_name(name: str, parts: tuple[str, int]) -> None:
    assert split_source_name(name) == parts


# ---- the cache --------------------------------------------------------------------------------------
def test_a_source_is_compiled_once_for_all_processes(tmp_path: Path) -> None:
    """A second compiler on the same folder, as another process has, finds the cubin there."""
    first, second = FakeNvrtc(), FakeNvrtc()
    made = Compiler(first, "", tmp_path).compile(unit())
    assert Compiler(second, "", tmp_path).compile(unit()) == made
    assert (len(first.asked), len(second.asked)) == (1, 0)


@pytest.mark.parametrize(
    "changed",
    [
        unit(SAXPY + "// more"),
        unit(arch="sm_80"),
        unit(options=("-lineinfo",)),
        unit(defines=("A",)),
        unit(prelude=True),
    ],
)
def test_all_that_matters_is_in_the_key(changed: Unit, tmp_path: Path) -> None:
    nvrtc = FakeNvrtc()
    compiler = Compiler(nvrtc, "", tmp_path)
    compiler.compile(unit())
    compiler.compile(changed)
    assert len(nvrtc.asked) == 2


def test_another_compiler_version_compiles_again(tmp_path: Path) -> None:
    newer = FakeNvrtc(identity="NVRTC 13.1")
    Compiler(FakeNvrtc(), "", tmp_path).compile(unit())
    Compiler(newer, "", tmp_path).compile(unit())
    assert len(newer.asked) == 1


@pytest.mark.parametrize(
    ("text", "options", "times"),
    [
        (SAXPY, (), 1),
        (SAXPY, ("-lineinfo",), 2),
        ("int l = __LINE__;" + SAXPY, (), 2),
        ("// __LINE__\n" + SAXPY, (), 1),
        ('const char* s = "//"; int l = __LINE__;' + SAXPY, (), 2),
        ("int l = __LI\\\nNE__;" + SAXPY, (), 2),
    ],
)
def test_moving_a_kernel_compiles_again_only_where_its_place_shows(
    text: str, options: tuple[str, ...], times: int, tmp_path: Path
) -> None:
    nvrtc = FakeNvrtc()
    compiler = Compiler(nvrtc, "", tmp_path)
    compiler.compile(unit(text, options=options))
    compiler.compile(unit(text, options=options, line=13))
    assert len(nvrtc.asked) == times


def test_an_edited_header_compiles_again(tmp_path: Path) -> None:
    """However deep it is included: beside the source, beside another header, in a folder of -I."""
    (tmp_path / "near.cuh").write_text("#include <far.cuh>\n")
    (tmp_path / "inc").mkdir()
    nvrtc = FakeNvrtc()
    compiler = Compiler(nvrtc, "", tmp_path / "cache")
    options = ("-I", str(tmp_path / "inc"))
    wanted = unit('#include "near.cuh"\n' + SAXPY, file=str(tmp_path / "k.cu"), options=options)
    for content in ("int a;", "int b;", "int b;"):
        (tmp_path / "inc" / "far.cuh").write_text(content)
        compiler.compile(wanted)
    assert len(nvrtc.asked) == 2


@pytest.mark.parametrize("how", NAMED)
def test_an_edited_header_compiles_again_however_it_is_included(how: str, tmp_path: Path) -> None:
    """In all the ways in which C++ lets a source name a file."""
    nvrtc = FakeNvrtc()
    compiler = Compiler(nvrtc, "", tmp_path / "cache")
    wanted = unit(f"{NAMED[how]}\n{SAXPY}", file=str(tmp_path / "k.cu"))
    for content in ("int a;", "int b;", "int b;"):
        (tmp_path / "h.h").write_text(content)
        compiler.compile(wanted)
    assert len(nvrtc.asked) == 2


@pytest.mark.parametrize("text", ["#include HEADER\n", '??=include "h.h"\n', "const char* day = __DATE__;\n"])
def test_a_source_that_is_not_understood_is_kept_out_of_the_cache(text: str, tmp_path: Path) -> None:
    """What it depends on cannot be told, so neither can whether that has changed."""
    nvrtc = FakeNvrtc()
    compiler = Compiler(nvrtc, "", tmp_path)
    for _ in range(2):
        compiler.compile(unit(text + SAXPY))
    assert len(nvrtc.asked) == 2
    assert list(tmp_path.iterdir()) == []


def test_headers_that_include_each_other_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text('#include "b.h"')
    (tmp_path / "b.h").write_text('#include "a.h"')
    found = included_files('#include "a.h"\n#include <stdint.h>', tmp_path, ())
    assert found.complete
    assert [file.path.name for file in found.files] == ["a.h", "b.h"]


@pytest.mark.parametrize("damage", [b"", b"dagpu cubin 1\n", b"\x7fELF", None])
def test_a_damaged_entry_is_compiled_again_and_mended(damage: bytes | None, tmp_path: Path) -> None:
    nvrtc = FakeNvrtc()
    compiler = Compiler(nvrtc, "", tmp_path)
    made = compiler.compile(unit())
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(entry.read_bytes()[:-1] if damage is None else damage)
    assert [compiler.compile(unit()) for _ in range(2)] == [made, made]
    assert len(nvrtc.asked) == 2


def test_a_folder_that_cannot_be_written_is_only_a_missed_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    nvrtc = FakeNvrtc()
    compiler = Compiler(nvrtc, "", tmp_path / "file" / "cache")
    assert compiler.compile(unit()) == compiler.compile(unit())
    assert len(nvrtc.asked) == 2


def test_an_entry_whose_place_is_taken_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "k.cubin").mkdir()
    (tmp_path / "k.cubin" / "x").write_text("")
    cache = DiskCache(tmp_path)
    cache.store("k", b"cubin")
    assert cache.load("k") is None
    assert [path.name for path in tmp_path.iterdir()] == ["k.cubin"]


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$DAGPU_CACHE_DIR, else $XDG_CACHE_HOME unless it is relative, else ~/.cache."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.delenv("DAGPU_CACHE_DIR", raising=False)
    assert default_cache_dir() == tmp_path / ".cache" / "dagpu"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache_dir() == Path("/xdg/dagpu")
    monkeypatch.setenv("DAGPU_CACHE_DIR", "/mine")
    assert default_cache_dir() == Path("/mine")
    for relative in ("cache", "./cache", "~/cache"):
        monkeypatch.setenv("DAGPU_CACHE_DIR", relative)
        with pytest.raises(ValueError, match=re.escape(f"DAGPU_CACHE_DIR={relative!r} is not the absolute path")):
            default_cache_dir()


def compiled_twice(folder: Path) -> int:
    """How often a source is compiled that two processes want, one after the other."""
    asked = 0
    for _ in range(2):
        nvrtc = FakeNvrtc()
        Compiler(nvrtc, "", folder).compile(unit())
        asked += len(nvrtc.asked)
    return asked


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o702, 0o777])
def test_a_folder_that_others_can_write_to_is_done_without(mode: int, tmp_path: Path) -> None:
    """Whoever can write there could have put any code for the GPU into it. That is said once, with the cure."""
    cache = tmp_path / "cache"
    assert compiled_twice(cache) == 1
    cache.chmod(mode)
    nvrtc = FakeNvrtc()
    compiler = Compiler(nvrtc, "", cache)
    with pytest.warns(RuntimeWarning, match=re.escape(f"kernels in {cache} are not used: others can write to it")):
        compiler.compile(unit())
    compiler.compile(unit())  # a second warning would be an error
    assert len(nvrtc.asked) == 2
    assert len(list(cache.iterdir())) == 1
    cache.chmod(0o755)  # as the message says: chmod go-w
    assert compiled_twice(cache) == 0


def test_a_folder_of_another_user_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """He could have put any code for the GPU into it."""
    assert compiled_twice(tmp_path) == 1
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.warns(RuntimeWarning, match="belongs to another user") as told:
        assert compiled_twice(tmp_path) == 2
    assert len(told) == 2


def test_an_entry_that_others_can_write_to_is_compiled_again(tmp_path: Path) -> None:
    """It is replaced by one that only its owner can write to."""
    assert compiled_twice(tmp_path) == 1
    (entry,) = tmp_path.iterdir()
    assert entry.stat().st_mode & 0o777 == 0o600
    entry.chmod(0o660)
    with pytest.warns(RuntimeWarning, match=re.escape(f"compiled kernels in {entry} are not used")):
        assert compiled_twice(tmp_path) == 1
    assert entry.stat().st_mode & 0o777 == 0o600
    assert compiled_twice(tmp_path) == 0


def test_an_entry_that_is_a_link_is_compiled_again(tmp_path: Path) -> None:
    """It leads to a file that may be anybody's; that file stays as it is."""
    cache = tmp_path / "cache"
    assert compiled_twice(cache) == 1
    (entry,) = cache.iterdir()
    elsewhere = entry.rename(tmp_path / "elsewhere")
    before = elsewhere.read_bytes()
    entry.symlink_to(elsewhere)
    assert compiled_twice(cache) == 1
    assert elsewhere.read_bytes() == before
    assert not entry.is_symlink()


def test_a_folder_that_is_made_is_the_users_alone(tmp_path: Path) -> None:
    """Nobody else can even read it."""
    compiled_twice(tmp_path / "new" / "cache")
    assert (tmp_path / "new" / "cache").stat().st_mode & 0o777 == 0o700


@given(st.lists(st.text(max_size=3), max_size=4), st.lists(st.text(max_size=3), max_size=4))
def test_digests_tell_lists_apart(a: list[str], b: list[str]) -> None:
    """However their parts are cut."""
    assert (digest(a) == digest(b)) == (a == b)


# ---- once, whoever asks --------------------------------------------------------------------------------
@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released once for each thread that is about to wait for another's result."""
    semaphore = threading.Semaphore(0)

    class Watched(Future[object]):
        def result(self, timeout: float | None = None) -> object:
            semaphore.release()
            return super().result(timeout)

    monkeypatch.setattr(compiler_module, "Future", Watched)
    return semaphore


@pytest.mark.parametrize("fails", [False, True])
def test_threads_that_ask_at_once_share_one_compilation(
    fails: bool, waiting: threading.Semaphore, tmp_path: Path
) -> None:
    """And its result, or its error; the cache has no part in it here."""
    (tmp_path / "file").write_text("")
    nvrtc = FakeNvrtc(Refusal("/home/me/saxpy.py(13): error: wrong\n") if fails else None)

    def until_all_wait() -> None:
        for _ in range(3):
            waiting.acquire(timeout=60)

    nvrtc.act = until_all_wait
    compiler = Compiler(nvrtc, "", tmp_path / "file" / "cache")

    def ask() -> object:
        try:
            return compiler.compile(unit())
        except CompileError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        results = [future.result() for future in [pool.submit(ask) for _ in range(4)]]
    assert len(nvrtc.asked) == 1
    assert len(set(results)) == 1
    assert isinstance(results[0], str if fails else Compiled)


def test_an_interrupted_thread_leaves_the_others_to_compile(waiting: threading.Semaphore, tmp_path: Path) -> None:
    """An interrupt is one thread's own affair."""
    nvrtc = FakeNvrtc()
    compiling = threading.Event()

    def interrupt() -> None:
        if len(nvrtc.asked) == 1:
            compiling.set()
            waiting.acquire(timeout=60)
            raise KeyboardInterrupt

    nvrtc.act = interrupt
    compiler = Compiler(nvrtc, "", tmp_path)
    caught: list[BaseException] = []

    def lead() -> None:
        try:
            compiler.compile(unit())
        except KeyboardInterrupt as error:
            caught.append(error)

    leader = threading.Thread(target=lead)
    leader.start()
    assert compiling.wait(60)
    assert compiler.compile(unit()).symbol == SYMBOL
    leader.join()
    assert (len(caught), len(nvrtc.asked)) == (1, 2)


# ---- which compiler ---------------------------------------------------------------------------------------
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
    with pytest.raises(DeviceError, match=r"'saxpy', CUDA source at /home/me/saxpy.py:12: .*pip install cuda-bindings"):
        Compiler(None, "", tmp_path).compile(unit())


def test_a_compiler_that_cannot_be_started_is_a_device_error(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="cannot be run"):
        Compiler(None, str(tmp_path / "gone" / "nvcc"), tmp_path).compile(unit())


def test_options_that_ask_for_other_output_are_refused(tmp_path: Path) -> None:
    """And nothing is kept of it."""
    for output in (b"", b".version 9.0"):
        message = refusal(Compiler(FakeNvrtc(output), "", tmp_path), unit(options=("-ptx",)))
        assert "the options ask for other output than a cubin" in message
        assert "Correct options= of the kernel." in message
    assert list(tmp_path.iterdir()) == []


# ---- errors -------------------------------------------------------------------------------------------------
def test_an_error_is_shown_against_the_users_line(tmp_path: Path) -> None:
    """The line as the user wrote it, also where nvcc has expanded __global__; warnings are left out."""
    log = """\
/home/me/saxpy.py(13): warning #177-D: variable "b" was declared but never referenced
  int b;
      ^

Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"

/home/me/saxpy.py(13): error: identifier "foo" is undefined
  __attribute__((global)) void saxpy(float* y) { int b; y[0] = foo; }
                                                               ^

1 error detected in the compilation of "x.cu".
"""
    text = "// saxpy\n\t__global__ void saxpy(float* y) { int b; y[0] = foo; }"
    assert refusal(Compiler(FakeNvrtc(Refusal(log)), "", tmp_path), unit(text)) == (
        "kernel 'saxpy', CUDA source at /home/me/saxpy.py:13: NVRTC 13.0 refused it.\n"
        '  /home/me/saxpy.py:13: identifier "foo" is undefined\n'
        "    \t__global__ void saxpy(float* y) { int b; y[0] = foo; }\n"
        "    \t                                                ^\n"
        "Correct the lines shown."
    )


def test_an_error_in_the_prelude_is_the_users_line_that_asked_for_it() -> None:
    """The innermost of the user's; headers of the user's own are shown themselves."""
    log = """\
/lib/dagpu.cuh(3): error: expression must have class type but it has type "int"
  template<class T> __device__ T twice(T p) { return p.foo() + 1; }
                                                     ^
          detected during:
            instantiation of "T dagpu::twice(T) [with T=int]" at line 4
            instantiation of "T dagpu::four(T) [with T=int]" at line 12 of /home/me/a.py
            instantiation of "T mine(T) [with T=int]" at line 13 of /home/me/a.py

/home/me/mine.cuh(1): error: expected a ";"
  int a
       ^
          detected during instantiation of "void f()" at line 13 of /home/me/a.py

"""
    source = Source("/home/me/a.py", 12, "one\ntwo", (("/home/me/mine.cuh", "int a"),))
    first, second = read_log(log, source)
    assert (first.file, first.line) == ("/home/me/a.py", 12)
    assert first.text.endswith('has type "int" (in dagpu.cuh, which this line uses)')
    assert (second.file, second.line, second.text) == ("/home/me/mine.cuh", 1, 'expected a ";"')


def test_many_errors_are_counted_and_five_are_shown(tmp_path: Path) -> None:
    """The same error of two instantiations is one."""
    log = "".join(f'/home/me/saxpy.py(13): error: identifier "z{i // 2}" is undefined\n\n' for i in range(14))
    message = refusal(Compiler(FakeNvrtc(Refusal(log)), "", tmp_path), unit())
    assert message.count("is undefined") == 5
    assert "\n  and 2 more\n" in message


@pytest.mark.parametrize(
    ("log", "told", "cure"),
    [
        (
            "/home/me/saxpy.py:13:10: fatal error: loc.cuh: No such file or directory\ncompilation terminated.",
            "/home/me/saxpy.py:13: loc.cuh: No such file or directory",
            "options=('-I/its/folder',)",
        ),
        (
            "ptxas error   : Entry function '_Z1kPf' uses too much shared data (0x61a80 bytes, 0xc000 max)",
            "uses too much shared data",
            ".shared_memory(...)",
        ),
        ("ptxas fatal   : Unresolved extern function '_Z1gf'", "function '_Z1gf'", "Define the function"),
        ("nvcc fatal   : Unknown option '--foo'", "Unknown option '--foo'", "Correct options="),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_999'", "compute_999", "install a newer CUDA"),
        ("sh: 1: gcc: not found\n", "gcc: not found", "needs a host compiler"),
        (
            'At end of source: error: expected a "}"\n/home/me/saxpy.py(12): note #3196-D: to match this "{"\n  x {\n',
            '/home/me/saxpy.py:12: expected a "}" to match the one here',
            "Correct the lines shown.",
        ),
        (
            "/home/me/saxpy.py(13): error: no function fits\n            argument types are: (int)\n  f(1);\n  ^\n\n",
            "saxpy.py:13: no function fits; argument types are: (int)\n",
            "Correct the lines shown.",
        ),
        ("something went wrong\n", "something went wrong", "Correct the source"),
        ("", "says nothing more", "Correct the source"),
    ],
)
def test_messages_of_every_stage_are_read_and_come_with_a_cure(log: str, told: str, cure: str, tmp_path: Path) -> None:
    message = refusal(Compiler(FakeNvrtc(Refusal(log)), "", tmp_path), unit())
    assert told in message
    assert cure in message.splitlines()[-1]


@given(st.text("a.(1): error^ \n~\t", max_size=200))
def test_no_log_is_too_odd_to_be_read(log: str) -> None:
    read_log("a.cu(1): error: x\n" + log, Source("a.cu", 1, "int"))


# ---- the real compilers ---------------------------------------------------------------------------------------
@pytest.fixture(params=["nvrtc", "nvcc"])
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Compiler:
    """NVRTC with nvcc behind it, and nvcc alone."""
    if request.param == "nvrtc":
        nvrtc = load_nvrtc()
        if nvrtc is None:
            pytest.skip("NVRTC is not installed: pip install cuda-bindings nvidia-cuda-nvrtc")
        return Compiler(nvrtc, None, tmp_path / "cache")
    if find_nvcc() is None:
        pytest.skip("nvcc is not installed")
    return Compiler(None, None, tmp_path / "cache")


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
