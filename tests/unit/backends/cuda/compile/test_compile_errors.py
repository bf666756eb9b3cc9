"""Errors of the CUDA compilers as users read them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpu.backends.cuda.compile.compiler import Compiler
from dagpu.backends.cuda.compile.diagnostics import SourceText, read_log
from dagpu.backends.cuda.compile.nvidia_compilers import Refusal
from tests.unit.backends.cuda.compile.compiler_fakes import FakeNvrtc, refusal, unit


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
    source = SourceText("/home/me/a.py", 12, "one\ntwo", (("/home/me/mine.cuh", "int a"),))
    first, second = read_log(log, source)
    assert (first.file, first.line) == ("/home/me/a.py", 12)
    assert first.text.endswith('has type "int" (in dagpu.cuh, which this line uses)')
    assert (second.file, second.line, second.text) == ("/home/me/mine.cuh", 1, 'expected a ";"')


def test_many_errors_are_counted_and_five_are_shown(tmp_path: Path) -> None:
    """Many errors are counted and five are shown. The same error of two instantiations counts once."""
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
            '/usr/include/cooperative_groups.h(50): catastrophic error: cannot open source file "nv/target"\n',
            'cannot open source file "nv/target"',
            "pip install nvidia-cuda-cccl",
        ),
        (
            "/home/me/saxpy.py:13:10: fatal error: cub/cub.cuh: No such file or directory\ncompilation terminated.",
            "saxpy.py:13: cub/cub.cuh: No such file",
            "pip install nvidia-cuda-cccl",
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
        ("", "gives no further text", "Correct the source"),
    ],
)
def test_messages_of_every_stage_are_read_and_come_with_a_cure(log: str, told: str, cure: str, tmp_path: Path) -> None:
    message = refusal(Compiler(FakeNvrtc(Refusal(log)), "", tmp_path), unit())
    assert told in message
    assert cure in message.splitlines()[-1]


@given(st.text("a.(1): error^ \n~\t", max_size=200))
def test_no_log_is_too_odd_to_be_read(log: str) -> None:
    read_log("a.cu(1): error: x\n" + log, SourceText("a.cu", 1, "int"))
