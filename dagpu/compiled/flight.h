/* A flight: a run as one launch of a graph, or as one copy. boarding.c takes what a run needs, and flight.c launches it. */
#ifndef DAGPU_FLIGHT_H
#define DAGPU_FLIGHT_H
#include "nodes.h"

typedef struct { Py_ssize_t buffer, base; } Pair;
typedef struct { Pair at; PyObject *pool, *nbytes, *size; } Output;
/* A flight of a plan whose graph has been captured once has the graph and the stream of the user's, which others may use
 * too: the end of a run is an event, in the place of the graph of a boarding. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    void *exec;          /* the graph that was captured; NULL for idle graphs */
    PyObject *stream;    /* the stream of that */
    PyObject *held, *devices, *idle, *exclusive, *graphs; /* of each device itself, its dropped graphs and its arrivals */
    PyObject *borrow, *give_back, *take_memory, *take_stream, *describe, *follow, *refuse, *needs_context;
    Py_ssize_t n_bases, n_inputs, n_outputs;
    Pair *inputs;
    Output *outputs;
    Py_ssize_t n_arenas, *arenas; /* the bases of temporaries */
    int gathers, knows_context, is_useless, is_small;
    enum { GRAPHS, FROM_HOST, TO_HOST, BETWEEN } makes; /* graphs, or a copy */
    struct { Py_ssize_t to, from; uint64_t to_offset, from_offset; size_t nbytes; } between; /* bases and distances */
} Flight;

/* Code of Python runs next. */
static inline void python_begins(Boarding *boarding) {
    if (boarding->section) section_open(boarding->section);
}

/* Remove and return the last item of a list; NULL without an error if there is none. */
static inline PyObject *list_pop(PyObject *list) {
    Py_ssize_t n = PyList_GET_SIZE(list);
    if (!n) return NULL;
    PyObject *found = Py_NewRef(PyList_GET_ITEM(list, n - 1));
    if (PyList_SetSlice(list, n - 1, n, NULL) < 0) Py_CLEAR(found);
    return found;
}

/* Return true once the driver's functions are known. */
int flight_knows_driver(void);
int boarding_ready(void);
/* Forget what was taken. */
void boarding_clear(Boarding *boarding);

#endif
