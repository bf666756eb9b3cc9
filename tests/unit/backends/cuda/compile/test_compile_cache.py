"""The cache of cubins: its keys, its files, and one compilation for all who ask at the same time."""

import os
import re
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpu.backends.cuda.compile import compiler as compiler_module
from dagpu.backends.cuda.compile.compiler import Compiled, Compiler
from dagpu.backends.cuda.compile.nvidia_compilers import Refusal
from dagpu.backends.kernel_text.disk_cache import DiskCache, default_cache_dir, digest
from dagpu.backends.kernel_text.units import Unit
from dagpu.common.errors import CompileError
from dagpu.kernels.preprocessing import included_files
from tests.unit.backends.cuda.compile.compiler_fakes import SAXPY, SYMBOL, FakeNvrtc, unit
from tests.unit.backends.cuda.compile.included_sources import NAMED

# ---- the cache


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
    """A source whose includes cannot be told is compiled each time: nothing shows whether they have changed."""
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
    folder = tmp_path / "file" / "cache"
    compiler = Compiler(nvrtc, "", folder)
    with pytest.warns(RuntimeWarning, match=re.escape(f"the folder {folder} cannot be made (Not a directory)")) as told:
        assert compiler.compile(unit()) == compiler.compile(unit())
    assert len(told) == 1
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
    """Return the number of compilations of a source that two processes need, one after the other."""
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


# ---- once, whoever asks


@pytest.mark.filterwarnings("ignore:compiled kernels are not kept")
@pytest.mark.parametrize("fails", [False, True])
def test_threads_that_ask_at_once_share_one_compilation(
    fails: bool, waiting: threading.Semaphore, tmp_path: Path
) -> None:
    """Threads that ask at the same time get the result of one compilation, or its error; the disk cache has no part
    in it."""
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
