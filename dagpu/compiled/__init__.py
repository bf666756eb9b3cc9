"""The compiled reader, in C: compiled.h says what its parts do. dagpu.common.compiled loads it."""
