/* The rows of a table in C: table.c makes them of a guard, and rows.c reads calls by them. */
#ifndef DAGPU_ROWS_H
#define DAGPU_ROWS_H
#include "compiled.h"

typedef struct {
    Py_ssize_t at, end; /* the container or node, and the number of values once its items are among them */
    PyTypeObject *kind;
    PyObject *items;    /* a function that returns the items; NULL for a tuple or list itself */
    PyObject *code;     /* the code that built a node; NULL for any */
    PyObject *offset;
} Inner;
typedef struct { Py_ssize_t at; PyObject *wanted; } Same;
typedef struct { Py_ssize_t at; PyTypeObject *kind; PyObject *wanted; } Equal;
typedef struct { Py_ssize_t at; PyObject *accepts, *fact; } Check;
typedef struct { Py_ssize_t at, before; } Again;
typedef struct {
    Py_ssize_t at, buffer, moves;
    PyTypeObject *kind;
    PyObject *layout, *device, *nbytes;
    int lock; /* 1 for writing, 0 for reading, -1 for none */
} Handle;
typedef struct { Py_ssize_t number, first; } Alias;
typedef struct { Py_ssize_t number, at; PyObject *cut; } Cut;
typedef struct {
    Py_ssize_t at, cell;
    PyTypeObject *kind, *wanted; /* `wanted` is NULL where only the check can tell */
    PyObject *check, *low, *high; /* `check` is NULL for a number that no kernel gets */
    int is_quick;                 /* the limits of an int fit into 64 bits, or it is a float */
    int64_t least, most;
    double from, to;
} Number;
typedef struct { Py_ssize_t at, cell; PyObject *element, *shape; } Array;

typedef struct {
    PyObject_HEAD
    PyObject *held; /* all objects that the rows refer to */
    Py_ssize_t flat, buffers, n_values;
    int is_whole, is_plain; /* all values are leaves; nothing but leaves has a condition */
    Py_ssize_t n_inner, n_same, n_equal, n_checks, n_again, n_different, n_places, n_handles, n_pairs, n_cuts, n_borrows,
        n_numbers, n_arrays, memories;
    Inner *inner;
    Same *same;
    Equal *equal;
    Check *checks;
    Again *again;
    Py_ssize_t *different, *places, *borrows;
    Handle *handles;
    Alias *pairs;
    Cut *cuts;
    Number *numbers;
    Array *arrays;
} Rows;

/* rows(arguments, named): what `Guard.read` returns. */
PyObject *rows_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *names);

#endif
