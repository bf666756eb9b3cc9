/* The nodes of a graph in C: nodes.c describes and updates them, and flight.c launches their graph. */
#ifndef DAGPU_NODES_H
#define DAGPU_NODES_H
#include "compiled.h"

typedef struct { void *node, *params, *context; uint64_t epoch; } Node; /* only that of a copy has a context */
typedef struct { PyObject *pool, *mapped; } Mapped;
typedef struct { char *at; int64_t distance; } Address;
typedef struct { char *at; int letter; } NumberAt; /* the letter of the struct module */
typedef struct {
    Py_ssize_t cell, n_addresses, n_numbers, n_dependents;
    int by_python; /* a node depends on it that Python updates */
    Address *addresses;
    NumberAt *numbers;
    Py_ssize_t *dependents;
} Source;
typedef struct {
    PyObject_HEAD
    PyObject *held; /* what keeps the parameters and the graph of the driver alive */
    void *exec, *context;
    uint64_t epoch;
    int has_others; /* Python updates some nodes */
    Py_ssize_t n_nodes, n_bases, n_sources;
    Py_ssize_t n_mapped;
    Node *nodes;
    Mapped *mapped; /* for copies between devices the pools, and what was mapped there when they were set */
    Source *sources; /* the bases, then the cells with numbers */
} Nodes;

static inline void *pointer_of(PyObject *number) { return PyLong_AsVoidPtr(number); }

/* Fill an array from a sequence of tuples, each of `width` items, by `set(item, tuple)`. Return its length, or -1 with an
 * error. */
Py_ssize_t fill_array(PyObject *sequence, Py_ssize_t width, size_t size, void **array, void (*set)(void *, PyObject *));
/* Set a number of a row that has it alone. */
void set_index(void *to, PyObject *row);

/* Write the addresses and numbers that differ into the parameters, as LaunchParameters.relocate does, and mark the nodes
 * that depend on them. Return the number of these, or -1 with an error. With `only_look`, write nothing, and return 1 if
 * Python has to update a node. Bases beyond those of a run are of memory that stays the graph's own. */
Py_ssize_t nodes_relocate(Nodes *self, PyObject *parameters, PyObject *bases, PyObject *memory, int only_look);

/* Return true if no memory was mapped since the copies between devices were set. */
int nodes_are_mapped(Nodes *self);

#endif
