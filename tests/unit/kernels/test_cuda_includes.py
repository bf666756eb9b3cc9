"""The include files of a source, in any notation: at least those that a compiler reads, or a report of unknown ones."""

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dagpu.kernels.preprocessing import included_files, read
from tests.unit.backends.cuda.compile.included_sources import NAMED

NOT_NAMED = {
    "in a comment": '// #include "h.h"\n/*\n#include "h.h"\n*/',
    "in a comment that goes on": '// here \\\n#include "h.h"',
    "in a raw literal": 'auto s = R"(\n#include "h.h"\n)";',
    "within a line": 'int x; #include "h.h"',
    "as another directive": '#define include "h.h"\n#pragma include "h.h"\n#includes "h.h"',
}
NOT_UNDERSTOOD = {
    "a macro": "#include HEADER",
    "a macro, asked for": "#if __has_include(HEADER)\n#endif",
    "a trigraph": '??=include "h.h"',
    "a trigraph as a splice": '// here ??/\n#include "h.h"',
    "a space behind a backslash": '// here \\ \n#include "h.h"',
    "a lone return": '// here\r#include "h.h"',
    "a splice beside a raw literal": 'auto s = R"(\\\n)";',
    "an embedded file": '#embed "h.h"',
    "a module": 'import "h.h";',
    "the day": "const char* day = __DATE__;",
}


@pytest.mark.parametrize("how", NAMED)
def test_a_header_is_found_however_it_is_included(how: str) -> None:
    """The text names it, and nothing else is unclear."""
    found = read(NAMED[how] + "\n")
    assert [name.text for name in found.names] == ["h.h"]
    assert found.understood


@pytest.mark.parametrize("how", NOT_NAMED)
def test_what_only_looks_like_an_include_is_none(how: str) -> None:
    """It stands in a comment, a literal or another line."""
    found = read(NOT_NAMED[how] + "\n")
    assert found.names == ()
    assert found.understood


@pytest.mark.parametrize("how", NOT_UNDERSTOOD)
def test_what_is_not_understood_is_said(how: str) -> None:
    """Then nobody takes the files that were found for all."""
    assert not read(NOT_UNDERSTOOD[how] + "\n").understood


def test_code_has_neither_comments_nor_splices() -> None:
    """Words in it are looked for; literals stay as they are."""
    text = '/* a */ # /* __LINE__ */ define X "// no" // b\nint __LI\\\nNE__; /* c\n */ y\n'
    assert read(text).code == '  #   define X "// no"  \nint __LINE__;   y\n'


def test_the_environments_folders_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that nvcc and its host compiler take from variables; of flags that nobody can split nothing is known."""
    for number, name in enumerate(("CPATH", "CPLUS_INCLUDE_PATH", "NVCC_APPEND_FLAGS")):
        folder = tmp_path / f"with space {number}"
        folder.mkdir()
        (folder / f"h{number}.h").write_text("")
        monkeypatch.setenv(name, f"-O2 '-I{folder}'" if "FLAGS" in name else f"/nowhere:{folder}")
    text = "#include <h0.h>\n#include <h1.h>\n#include <h2.h>\n"
    found = included_files(text, tmp_path, ())
    assert [file.path.name for file in found.files] == ["h0.h", "h1.h", "h2.h"]
    assert found.complete
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DX='")
    assert not included_files(text, tmp_path, ()).complete


@pytest.mark.parametrize("option", ["@flags", "-Xcompiler=-Ihidden", "--options-file=flags", "-optf"])
def test_options_that_bring_more_options_are_not_understood(option: str, tmp_path: Path) -> None:
    """They may name folders."""
    assert not included_files("", tmp_path, (option, "flags")).complete


HEADERS = {
    "a.h": "",
    "b.h": '#include "inner/c.h"\n',
    "inner/c.h": '#include "d.h"\n',
    "inner/d.h": "",
    "far/a.h": "",
    "far/e.h": "#include_next <e.h>\n#include <a.h>\n",
    "farther/e.h": "",
}
GAPS = st.sampled_from(["", " ", "\t", "/* a */", "/* b\n */ ", "\\\n", "/* /* */", '/* " */'])
DIRECTIVES = st.tuples(
    GAPS,
    st.sampled_from(["#", "#", "%:", "??="]),
    GAPS,
    st.sampled_from(["include", "include", "inc\\\nlude", "import", "include_next"]),
    GAPS,
    st.sampled_from(['"a.h"', "<a.h>", '"b.h"', "<e.h>", '"inner/c.h"', '"in\\\nner/c.h"']),
    st.sampled_from(["", " // x", " // x \\\n y", "/* c\n*/", " // ??/\n y", "\r"]),
    st.just("\n"),
).map("".join)
NOISE = st.sampled_from([
    'const char* s = "/*";\n', "char c = '\"';\n", "int n = 1'000; // '\n", "// x \\\n", "// x ??/\n", "// x \\ \n",
    'auto s = R"(\n', ')";\n', 'auto s = u8R"y( /* )" )y";\n', "/* open\n", "*/\n", "#if 0\n", "#if 1\n", "#else\n",
    "#endif\n", "it isn't\n", "'\n", '"\n', "int FOOR;\n", "#define A \"b\n", "// */\n", '/*"*/ "\\"/*" // "\n',
    "#if __has_include(<a.h>)\n", "int x; ", "\r\n",
])  # fmt: skip
TEXTS = st.lists(st.one_of(DIRECTIVES, NOISE), min_size=1, max_size=5).map("".join)


def read_by_gcc(folder: Path, texts: list[str]) -> list[set[Path] | None]:
    """For each text the files that gcc reads; None where it refuses the text."""
    for number, text in enumerate(texts):
        (folder / f"t{number}.cpp").write_bytes((text + "\n").encode())
    files = [f"t{number}.cpp" for number in range(len(texts))]
    command = ["gcc", "-MM", "-nostdinc", "-w", "-std=c++14", "-Ifar", "-Ifarther", *files]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    rules = dict(re.findall(r"^t(\d+)\.o: ((?:[^\n\\]|\\\n)*)", done.stdout, re.MULTILINE))
    refused = set(re.findall(r"^t(\d+)\.cpp:.*error:", done.stderr, re.MULTILINE))
    return [
        {(folder / name).resolve() for name in rules[str(number)].replace("\\\n", " ").split()[1:]}
        if str(number) in rules and str(number) not in refused
        else None
        for number in range(len(texts))
    ]


# ---- beside a compiler


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
def test_a_compiler_reads_no_more(tmp_path: Path) -> None:
    """In texts put together at random every file that gcc reads is found, unless the text is reported as not
    understood."""
    seen = Counter[str]()

    @settings(max_examples=8, phases=[Phase.generate])  # the text that fails is short: there is nothing to shrink
    @given(st.lists(TEXTS, min_size=25, max_size=25))
    def check(texts: list[str]) -> None:
        with TemporaryDirectory(dir=tmp_path) as place:
            folder = Path(place)
            for name, text in HEADERS.items():
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_text(text)
            options = [f"-I{folder / name}" for name in ("far", "farther")]
            for text, files in zip(texts, read_by_gcc(folder, texts), strict=True):
                found = included_files(text + "\n", folder, options)
                seen["understood"] += found.complete
                if files is not None and found.complete:
                    seen["accepted"] += 1
                    seen["with headers"] += len(files) > 0
                    assert files <= {file.path.resolve() for file in found.files}, text

    check()
    assert seen["accepted"] > 50
    assert seen["with headers"] > 20
