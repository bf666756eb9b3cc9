"""A kernel's own CUDA text runs on the host: a C++ compiler compiles it, and each of its accesses is checked.

`compilers` finds the compiler, `source_text` makes C++ of the text, with the headers in `include`, `loaded_kernel`
compiles, keeps and loads it, `launching` runs it by the program in `runtime`, and `found_faults` says what was wrong.
"""
