"""Variables and waits that a text hides from a reader of its words alone: by macros, spellings, splices and headers."""

from pathlib import Path

import pytest

from dagpu.kernels.module_variables import read_module_use
from dagpu.kernels.preprocessing import preprocess

K = "__global__ void k(float* y) "
COUNTS = K + "{ y[0] = ++n; }"
MEETS = K + "{ cooperative_groups::this_grid().sync(); }"


def words(text: str) -> str:
    found = preprocess(text)
    assert not found.unread
    return " ".join(token.text for token in found.tokens)


# ---- macros
@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("#define A B\n#define B 1\nA", "1"),
        ("#define A A + 1\nA", "A + 1"),
        ("#define A B\n#define B A\nA B", "A B"),
        ("#define F(x) x + x\nF(1) F F ((2, 3))", "1 + 1 F ( 2 , 3 ) + ( 2 , 3 )"),
        ("#define F(x) [x]\nF(F(1)) F()", "[ [ 1 ] ] [ ]"),
        ("#define F() 1\nF() F(2)", "1 F ( 2 )"),
        ("#define F(x, y) y x\nF(1, 2) F(1)", "2 1 F ( 1 )"),
        ("#define F(...) g(__VA_ARGS__)\nF(1, 2) F()", "g ( 1 , 2 ) g ( )"),
        ("#define F(a, ...) a __VA_ARGS__\n#define G(a, rest...) rest a\nF(1, 2, 3) G(1, 2, 3)", "1 2 , 3 2 , 3 1"),
        ("#define F(a, b) a##b a ## _##b\nF(x, 1) F(, y)", "x1 x_1 y _y"),
        ("#define N 3\n#define PUT(a, b) a##b\n#define CAT(a, b) PUT(a, b)\nPUT(x, N) CAT(x, N)", "xN x3"),
        ('#define F(x) put(#x, x)\nF("a" b)', "put ( , b )"),
        ("#define F(x) x\n#define G F\nG(1) G", "1 F"),
        ("#define F(x) \\\n  x \\\n  + 1\nF(2)", "2 + 1"),
        ("#define F(x) x\nF(\n1\n", "F ( 1"),
        ("%:define A 1\nA", "1"),
        # all definitions that there may be, and the name itself where there may be none
        ("#ifdef X\n#define A 1\n#else\n#define A 2\n#endif\nA", "A 1 2"),
        ("#define A 1\n#undef A\n#define A 2\nA", "1 2"),
        ("#if 0\n#define A 1\n#endif\nA", "A"),
    ],
)
def test_macros_are_expanded(text: str, expanded: str) -> None:
    """As a compiler expands them; what depends on an unknown condition is there in each form."""
    assert words(text) == expanded


def test_macros_that_grow_without_end_are_given_up() -> None:
    """The text counts as one that cannot be read through."""
    doubled = "".join(f"#define A{n} A{n + 1} A{n + 1}\n" for n in range(40))
    nested = "#define F(x) x\n" + "F(" * 300 + ")" * 300
    for text in (doubled + "A0", nested):
        assert preprocess(text).unread == "has macros that become too large"


@pytest.mark.parametrize(
    "text",
    [
        "__attribute__((device)) int n; ",
        "__attribute__((aligned(8), device)) int n; ",
        "int n __attribute__((device)); ",
        "int __device__ n; ",
        "int n __device__ = 0; ",
        "__attribute__((managed)) int n; ",
        "__location__(device) int n; ",
        "__annotate__(device) int n; ",
        "__dev\\\nice__ int n; ",
        "__dev\\\r\nice__ int n\\\n; ",
        "#define DEVICE __attribute__((device))\nDEVICE int n; ",
        "#define ANNOTATED(a) __attribute__((a))\nANNOTATED(device) int n; ",
        "#define DEVICE __device__\n#define GLOBAL DEVICE\nGLOBAL int n; ",
        "#define DEVICE() __device__\nDEVICE() int n; ",
        "#define STATE __device__ int n = 0\nSTATE; ",
        "#define OF(T, name) __device__ T name;\nOF(int, n) ",
        "#define OF(name) __device__ int name##_of;\n#define n state_of\nOF(state) ",
        "#ifdef __CUDACC__\n#define DEVICE __device__\n#else\n#define DEVICE\n#endif\nDEVICE int n; ",
        "#ifndef __CUDACC__\n#define __device__\n#endif\n__device__ int n; ",
        "%:define DEVICE __device__\nDEVICE int n; ",
        '_Pragma("nv_diag_suppress 177") __device__ int n; ',
        "template <class T> struct S {}; __device__ S<int> n; ",
    ],
)
def test_a_variable_is_found_however_it_is_written(text: str) -> None:
    """Its space is another spelling, cut into two lines, or comes from a macro."""
    use = read_module_use(text + COUNTS, "k")
    assert len(use.changed) == 1
    assert not use.unread


def test_a_static_variable_of_a_macro_is_found() -> None:
    """In the body of a kernel that calls it, and not in that of another one."""
    text = "#define NEXT(n) static int n = 0; ++n\n" + K + "{ NEXT(calls); } __global__ void other() { NEXT(others); }"
    assert [variable.name for variable in read_module_use(text, "k").changed] == ["calls"]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("DEVICE int n; ", ("-DDEVICE=__device__",)),
        ("DEVICE int n; ", ("-D", "DEVICE=__device__")),
        ("DEVICE int n; ", ("--define-macro=DEVICE=__device__",)),
        ("int n; ", ("-default-device",)),
        ("static int n; int m; ", ("--device-as-default-execution-space",)),
    ],
)
def test_options_are_read(text: str, options: tuple[str, ...]) -> None:
    """They define macros, and may put variables without a space into the device's memory."""
    assert [variable.name for variable in read_module_use(text + COUNTS, "k", None, options).changed] == ["n"]
    assert not read_module_use(text + COUNTS, "k").changed


@pytest.mark.parametrize(
    "text",
    [
        "#define C(name) __constant__ float name[2];\nC(c) ",
        "__attribute__((constant)) float c[2]; ",
        "__const\\\nant__ float c[2]; ",
    ],
)
def test_a_constant_that_nothing_sets_is_found(text: str) -> None:
    """However its space is written. One that is declared const has a constructor."""
    kernel = K + "{ y[0] = c[1]; }"
    assert [variable.name for variable in read_module_use(text + kernel, "k").unset] == ["c"]
    assert not read_module_use(text.replace("float", "const Pair") + kernel, "k").unset


@pytest.mark.parametrize(
    "text",
    [
        "#define MEET(g) g.sync()\n" + K + "{ auto all = cooperative_groups::this_grid(); MEET(all); }",
        K + "{ auto all = cooperative_groups::this_\\\ngrid(); all.sync(); }",
        "using Grid = cooperative_groups::grid_group; "
        + K
        + "{ Grid all = cooperative_groups::this_grid(); all.sync(); }",
        K + "{ Grid all(cooperative_groups::this_grid()); all.sync(); }",
        K + "{ Grid all{cooperative_groups::this_grid()}; all.sync(); }",
    ],
)
def test_a_wait_for_the_grid_is_found(text: str) -> None:
    """By a macro, cut into two lines, and of a grid whose type has another name."""
    assert read_module_use(text, "k").waits_for_grid


# ---- headers
def write(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        (folder / f"{name}.cuh").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("header", "source"),
    [
        ("__device__ int n;", '#include "a.cuh"\n' + COUNTS),
        ("#pragma once\n__device__ int n;", '#include "a.cuh"\n#include "a.cuh"\n' + COUNTS),
        ("#ifndef A\n#define A\n__device__ int n;\n#endif\n", '#include "a.cuh"\n' + COUNTS),
        ("#define DEVICE __device__", '#include "a.cuh"\nDEVICE int n; ' + COUNTS),
        ("#define COUNT ++n;", '__device__ int n;\n#include "a.cuh"\n' + K + "{ COUNT }"),
        ("inline __device__ int next() { return ++n; }", '__device__ int n;\n#include "a.cuh"\n' + K + "{ next(); }"),
        ("++n;", "__device__ int n; " + K + '{\n#include "a.cuh"\n}'),
        ('#include "b.cuh"\n', '#include "a.cuh"\n' + COUNTS),
        ("__device__ int n;", '#if __CUDA_ARCH__ > 700\n#include "a.cuh"\n#endif\n' + COUNTS),
        ("__device__ int n;", '#inc\\\nlude "a.cuh"\n' + COUNTS),
    ],
)
def test_headers_beside_the_source_are_read(header: str, source: str, tmp_path: Path) -> None:
    """What they declare, and what their functions and macros do; a header that includes itself ends there."""
    folder = write(tmp_path, a=header, b='#include "a.cuh"\n__device__ int n;')
    use = read_module_use(source, "k", folder)
    assert [variable.name for variable in use.changed] == ["n"]
    assert not use.unread
    assert not read_module_use(K + '{ y[0] = 1; }\n#include "a.cuh"\n', "k", folder).changed


def test_headers_in_the_folders_of_the_options_are_read(tmp_path: Path) -> None:
    """In quotes, and those that lie beside such a header. In angle brackets they are a library's, unless they lie
    beside the source."""
    write(tmp_path, a='#include "b.cuh"', b="__device__ int n;")
    for options in ((f"-I{tmp_path}",), ("-I", str(tmp_path))):
        assert read_module_use(f'#include "a.cuh"\n{COUNTS}', "k", None, options).changed
        assert not read_module_use(f"#include <a.cuh>\n{COUNTS}", "k", None, options).changed
    assert read_module_use(f"#include <a.cuh>\n{COUNTS}", "k", tmp_path).changed


def test_a_variable_of_a_header_has_its_place(tmp_path: Path) -> None:
    """A constant that nothing sets is told with the header and the line in it."""
    folder = write(tmp_path, a="#ifndef A_CUH\n#define A_CUH // a guard\n\n__constant__ float c[2];\n#endif\n")
    (unset,) = read_module_use('#include "a.cuh"\n' + K + "{ y[0] = c[1]; }", "k", folder).unset
    assert unset.place == "a.cuh line 4"


def test_a_wait_for_the_grid_in_a_header_is_found(tmp_path: Path) -> None:
    """In a function that the kernel calls."""
    folder = write(tmp_path, a="__device__ void meet() { cooperative_groups::this_grid().sync(); }")
    assert read_module_use('#include "a.cuh"\n' + K + "{ meet(); }", "k", folder).waits_for_grid
    assert not read_module_use('#include "a.cuh"\n' + K + "{ }", "k", folder).waits_for_grid


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("#define FILE <a.cuh>\n#include FILE\n", "includes a file that a macro names (name the file itself)"),
        ("int x; // ??/\n", "has lines that compilers may divide differently"),
    ],
)
def test_a_text_that_cannot_be_read_through_says_why(text: str, why: str, tmp_path: Path) -> None:
    """It may have variables that its launches share. In a branch that is never compiled it does no harm."""
    assert read_module_use(text + K + "{ }", "k", tmp_path).unread == why
    assert not read_module_use('#include "not here.h"\n#include <cuda_fp16.h>\n' + K + "{ }", "k", tmp_path).unread


def test_a_dead_branch_includes_nothing(tmp_path: Path) -> None:
    """Nor does it hide anything."""
    folder = write(tmp_path, a="__device__ int n;")
    use = read_module_use('#if 0\n#include "a.cuh"\n#include FILE\n#endif\n' + COUNTS, "k", folder)
    assert (use.changed, use.unread) == ((), "")
