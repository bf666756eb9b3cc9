/* The boarding of a flight: its memory, its graph and its stream are taken before the launch, and given back after it.
 *
 * The references are idle_graph_launch and launch_captured in dagpu.backends.cuda.replay.starts, and copy_launch in
 * lone_copies beside it.
 */
#include "flight.h"

#define MARKS 4 /* dagpu.backends.cuda.resources.streams.MARKS */

static PyObject *s_lost, *s_is_small, *s_address;

int boarding_ready(void) {
    struct { PyObject **at; const char *text; } all[] = {
        {&s_lost, "lost"}, {&s_is_small, "is_small"}, {&s_address, "address"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
        if (!(*all[i].at = PyUnicode_InternFromString(all[i].text))) return -1;
    return 0;
}

/* Return 1 if the context of this thread has no value of a variable, or None; 0 if it has another, -1 with an error. */
static int is_unset(PyObject *variable) {
    PyObject *value = NULL;
    if (PyContextVar_Get(variable, NULL, &value) < 0) return -1;
    int unset = !value || value == Py_None;
    Py_XDECREF(value);
    return unset;
}

/* Return 1 if an idle graph may be launched now at all. */
static int may_fly(Flight *self, Boarding *boarding) {
    if (self->is_useless || (!self->exec && !self->makes && !PyList_GET_SIZE(self->idle))) return 0;
    if (!self->knows_context) { /* once there is a graph: to find that out takes a launch */
        python_begins(boarding);
        PyObject *needs = PyObject_CallNoArgs(self->needs_context);
        if (!needs) return -1;
        self->knows_context = needs == Py_True ? -1 : 1;
        Py_DECREF(needs);
    }
    if (self->knows_context < 0 || !flight_knows_driver()) return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->devices); ++i) {
        PyObject *each = PyTuple_GET_ITEM(self->devices, i), *lost = PyObject_GetAttr(PyTuple_GET_ITEM(each, 0), s_lost);
        Py_ssize_t retired = PyObject_Size(PyTuple_GET_ITEM(each, 1)), arrivals = PyObject_Size(PyTuple_GET_ITEM(each, 2));
        Py_XDECREF(lost);
        if (!lost || retired < 0 || arrivals < 0) return -1;
        if (lost != Py_None || retired || arrivals) return 0;
    }
    return SLOT(known.exit_guard, slots.guard_begun) == Py_False ? is_unset(known.recorder) : 0;
}

/* Take an event for the end of a captured graph, unless its stream is full, or work for it is still being submitted. */
static int board_captured(Flight *self, Boarding *boarding) {
    PyObject *submitting = SLOT(self->stream, slots.stream_submitting), *marks = SLOT(self->stream, slots.stream_marks);
    Py_ssize_t runs = submitting ? PyObject_Size(submitting) : -1, full = marks ? PyObject_Size(marks) : -1;
    if (runs < 0 || full < 0) return -1;
    if (runs || full >= MARKS) return 0;
    boarding->graph = PyObject_CallNoArgs(self->take_stream);
    if (!boarding->graph) return -1;
    boarding->stream = Py_NewRef(self->stream);
    return 1;
}

/* Take a stream of its own for a run. */
static int take_stream(Flight *self, Boarding *boarding) {
    boarding->stream = list_pop(self->exclusive);
    if (!boarding->stream && !PyErr_Occurred()) {
        python_begins(boarding);
        boarding->stream = PyObject_CallNoArgs(self->take_stream);
    }
    if (boarding->stream && Py_IS_TYPE(boarding->stream, (PyTypeObject *)known.cuda_stream)) return 1;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_SystemError, "this is no stream");
    return -1;
}

/* Take memory and a stream for a copy. Python tells where to, where from and how many bytes the driver has to copy, unless
 * it has to do more than that. */
static int board_copy(Flight *self, PyObject *memory, Boarding *boarding) {
    python_begins(boarding);
    boarding->bases = PyObject_CallOneArg(self->take_memory, memory);
    if (!boarding->bases) return -1;
    if (!PyTuple_Check(boarding->bases) || PyTuple_GET_SIZE(boarding->bases) != 3) return 0;
    return take_stream(self, boarding);
}

/* Put the address of a block of memory at a base. Return 1; 0 if there is no block. */
static int set_base(PyObject *memory, Pair *pair, PyObject *bases) {
    PyObject *block = PyList_GET_ITEM(memory, pair->buffer);
    if (block == Py_None) return 0;
    PyObject *address = Py_IS_TYPE(block, (PyTypeObject *)known.memory_block)
        ? Py_XNewRef(SLOT(block, slots.block_address)) : PyObject_GetAttr(block, s_address);
    if (!address) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_SystemError, "a block of memory has no address");
        return -1;
    }
    PyList_SetItem(bases, pair->base, address);
    return 1;
}

/* Take an idle graph, or another one by the way of Python. Return 1 if there is one that has been instantiated. */
static int take_graph(Flight *self, Boarding *boarding) {
    if (!self->is_small) { /* not known before there is a topology */
        PyObject *small = PyObject_GetAttr(self->graphs, s_is_small);
        if (!small) return -1;
        self->is_small = small == Py_True;
        Py_DECREF(small);
    }
    if (self->is_small) boarding->graph = list_pop(self->idle);
    if (!boarding->graph && !PyErr_Occurred()) {
        python_begins(boarding);
        PyObject *found = PyObject_CallOneArg(self->borrow, boarding->bases);
        if (found && found != Py_None) boarding->graph = found;
        else Py_XDECREF(found);
    }
    if (PyErr_Occurred()) return -1;
    if (!boarding->graph) return 0;
    if (!Py_IS_TYPE(boarding->graph, (PyTypeObject *)known.graph_exec)) return 0;
    PyObject *raw = SLOT(boarding->graph, slots.graph_raw);
    if (!raw || raw == Py_None) return 0;
    PyObject *nodes = SLOT(boarding->graph, slots.graph_nodes);
    if (!nodes || nodes == Py_None) { /* it has not been described yet */
        python_begins(boarding);
        PyObject *made = PyObject_CallOneArg(self->describe, boarding->graph);
        if (!made) return -1;
        Py_DECREF(made);
        nodes = SLOT(boarding->graph, slots.graph_nodes);
    }
    if (nodes && Py_IS_TYPE(nodes, &NodesType)) boarding->nodes = Py_NewRef(nodes);
    else self->is_useless = 1; /* the graphs of a plan have the same nodes */
    return boarding->nodes ? 1 : 0;
}

/* Return the bases of an earlier run, borrowed; NULL if Python has to tell. */
static PyObject *bases_before(Flight *self, Boarding *boarding) {
    PyObject *parameters = SLOT(boarding->graph, slots.graph_parameters);
    if (!parameters || !Py_IS_TYPE(parameters, (PyTypeObject *)known.launch_parameters)) return NULL;
    PyObject *before = SLOT(parameters, slots.parameters_bases);
    return before && PyList_CheckExact(before) && PyList_GET_SIZE(before) >= self->n_bases ? before : NULL;
}

/* Take memory for the outputs that have none, at the addresses of an earlier run of a graph where these are idle. Return 1
 * if there is one that Python has to take, 0 if not, -1 with an error. */
static int take_outputs(Flight *self, PyObject *memory, Boarding *boarding) {
    PyObject *before = boarding->graph ? bases_before(self, boarding) : NULL;
    if (boarding->graph && !before) return 1;
    for (Py_ssize_t i = 0; i < self->n_outputs; ++i) {
        Output *output = &self->outputs[i];
        if (PyList_GET_ITEM(memory, output->at.buffer) != Py_None) continue;
        PyObject *wanted = Py_NewRef(before ? PyList_GET_ITEM(before, output->at.base) : zero);
        PyObject *block = pool_take(output->pool, output->nbytes, output->size, wanted);
        Py_DECREF(wanted);
        if (!block) return PyErr_Occurred() ? -1 : 1;
        PyList_SetItem(boarding->bases, output->at.base, Py_NewRef(SLOT(block, slots.block_address)));
        PyList_SetItem(memory, output->at.buffer, block);
    }
    return 0;
}

/* Set the bases of all inputs, and of the outputs that have memory; note whether one has none. */
static int find_bases(Flight *self, PyObject *memory, Boarding *boarding, int *missing) {
    int good = 1;
    boarding->bases = PyList_New(self->n_bases);
    if (!boarding->bases) return -1;
    for (Py_ssize_t i = 0; i < self->n_bases; ++i) PyList_SET_ITEM(boarding->bases, i, Py_NewRef(zero));
    for (Py_ssize_t i = 0; good == 1 && i < self->n_inputs; ++i) good = set_base(memory, &self->inputs[i], boarding->bases);
    for (Py_ssize_t i = 0; good == 1 && i < self->n_outputs; ++i) {
        int found = set_base(memory, &self->outputs[i].at, boarding->bases);
        if (found < 0) good = -1;
        *missing |= !found;
    }
    return good;
}

/* Take memory and a stream for a copy between two places of the devices. */
static int board_between(Flight *self, PyObject *memory, Boarding *boarding, int missing) {
    if (missing) missing = take_outputs(self, memory, boarding);
    if (missing < 0) return -1;
    if (missing) { /* the pool has none, or other memory than that */
        python_begins(boarding);
        PyObject *taken = PyObject_CallOneArg(self->take_memory, memory);
        Py_XDECREF(taken);
        Py_CLEAR(boarding->bases);
        if (!taken || find_bases(self, memory, boarding, &missing) != 1) return -1;
    }
    return take_stream(self, boarding);
}

int flight_board(PyObject *flight, PyObject *memory, Boarding *boarding, int quick) {
    Flight *self = (Flight *)flight;
    *boarding = (Boarding){.section = boarding->section};
    int good = may_fly(self, boarding), missing = self->gathers;
    if (good != 1) return good;
    if (self->exec) return board_captured(self, boarding);
    if (self->makes == FROM_HOST || self->makes == TO_HOST) {
        good = board_copy(self, memory, boarding);
        if (good != 1) flight_leave(flight, boarding);
        return good;
    }
    if (quick && !PyList_GET_SIZE(self->exclusive)) return 0;
    good = find_bases(self, memory, boarding, &missing);
    if (good == 1 && self->makes == BETWEEN) {
        good = board_between(self, memory, boarding, missing);
        if (good != 1) flight_leave(flight, boarding);
        return good;
    }
    if (good == 1) good = take_graph(self, boarding);
    if (good == 1 && missing && !self->gathers) missing = take_outputs(self, memory, boarding);
    if (missing < 0) good = -1;
    if (good == 1) {
        PyObject *kept = SLOT(boarding->graph, slots.graph_arenas);
        int has_kept = kept && PyList_CheckExact(kept) && PyList_GET_SIZE(kept) == self->n_arenas;
        if (missing || !has_kept) {
            python_begins(boarding);
            boarding->arenas = PyObject_CallFunctionObjArgs(self->take_memory, boarding->graph, memory, boarding->bases, NULL);
            if (!boarding->arenas) good = -1;
        }
        for (Py_ssize_t i = 0; good == 1 && !boarding->arenas && i < self->n_arenas; ++i) {
            PyObject *address = PyObject_GetAttr(PyList_GET_ITEM(kept, i), s_address);
            if (!address) good = -1;
            else PyList_SetItem(boarding->bases, self->arenas[i], address);
        }
    }
    if (good == 1) good = nodes_are_mapped((Nodes *)boarding->nodes); /* after all memory has been taken */
    if (good == 1 && ((Nodes *)boarding->nodes)->has_others) {
        PyObject *parameters = SLOT(boarding->graph, slots.graph_parameters);
        if (parameters && Py_IS_TYPE(parameters, (PyTypeObject *)known.launch_parameters)) {
            Py_ssize_t by_python = nodes_relocate((Nodes *)boarding->nodes, parameters, boarding->bases, memory, 1);
            good = by_python < 0 ? -1 : !by_python;
        }
    }
    if (good == 1) good = take_stream(self, boarding);
    if (good != 1) flight_leave(flight, boarding);
    return good;
}

void boarding_clear(Boarding *boarding) {
    Py_CLEAR(boarding->graph);
    Py_CLEAR(boarding->stream);
    Py_CLEAR(boarding->nodes);
    Py_CLEAR(boarding->bases);
    Py_CLEAR(boarding->arenas);
}

void flight_leave(PyObject *flight, Boarding *boarding) {
    Flight *self = (Flight *)flight;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (boarding->graph) { /* by the way of Python: it may be new, or broken */
        if (!PyCFunction_Check(self->give_back)) python_begins(boarding);
        PyObject *done = PyObject_CallOneArg(self->give_back, boarding->graph);
        if (!done) PyErr_WriteUnraisable(boarding->graph);
        Py_XDECREF(done);
    }
    if (!self->exec && boarding->stream && PyList_Append(self->exclusive, boarding->stream) < 0) PyErr_WriteUnraisable(boarding->stream);
    boarding_clear(boarding);
    PyErr_Restore(type, value, trace);
}

void flight_land(PyObject *flight, Boarding *boarding) {
    Flight *self = (Flight *)flight;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (self->exec || self->makes) {
        flight_leave(flight, boarding); /* it is the same: what was taken is an event, or a stream alone */
        PyErr_Restore(type, value, trace);
        return;
    }
    if (PyList_Append(self->idle, boarding->graph) < 0) PyErr_WriteUnraisable(boarding->graph);
    if (PyList_Append(self->exclusive, boarding->stream) < 0) PyErr_WriteUnraisable(boarding->stream);
    boarding_clear(boarding);
    PyErr_Restore(type, value, trace);
}
