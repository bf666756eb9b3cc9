"""Sources with an include, and the name that each of them includes."""

NAMED = {
    "plainly": '#include "h.h"',
    "by a folder's": "#include <h.h>",
    "behind a comment": '/* here */ #include "h.h"',
    "behind a comment of several lines": '/* here\n   and there */ #include "h.h"',
    "with comments within": '# /* a */ include /* b\n */ "h.h" // c',
    "as a digraph": '%:include "h.h"',
    "over several lines": '#inc\\\nlude \\\r\n "h.h"',
    "as an import": '#import "h.h"',
    "by its next": '#include_next "h.h"',
    "to see if it is there": '#if __has_include("h.h")\n#endif',
    "to see if its next is there": "#if defined(A) && __has_include_next( <h.h> )\n#endif",
    "behind a string with a comment's beginning": 'const char* s = "/*";\n#include "h.h"\n// */',
    "behind a character": 'char c = \'"\';\n#include "h.h" // "',
    "behind digits": "int n = 1'000; // '\n#include \"h.h\"",
    "behind an apostrophe": '#error it isn\'t\n#include "h.h"',
    "behind a raw literal": 'auto s = R"x(\n"/* )y"\n)x";\n#include "h.h"',
    "where it is not compiled": '#if 0\n#include "h.h"\n#endif',
}
