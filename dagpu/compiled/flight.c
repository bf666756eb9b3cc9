/* A run as one launch of a graph, of an idle one or of one that was captured, or as one copy.
 *
 * The references are idle_graph_launch, launch_captured and launch_lane in dagpu.backends.cuda.replay.starts, and
 * copy_launch in lone_copies beside it. The driver's calls are made here, without the GIL.
 */
#include "flight.h"
#include <time.h>

static struct {
    int (*launch)(void *, void *), (*query)(void *), (*synchronize)(void *), (*set_params)(void *, void *, void *);
    int (*push)(void *), (*pop)(void **);
    int (*record)(void *, void *), (*query_event)(void *), (*synchronize_event)(void *);
    int (*copy_in)(uint64_t, const void *, size_t, void *), (*copy_out)(void *, uint64_t, size_t, void *);
    int (*copy_within)(uint64_t, uint64_t, size_t, void *), (*set_copy)(void *, void *, void *, void *);
} driver;

int flight_knows_driver(void) { return driver.launch != NULL; }

/* set_driver(addresses): the addresses of the driver's functions by their names. */
PyObject *py_set_driver(PyObject *module, PyObject *addresses) {
    struct { const char *name; void *at; } all[] = {
        {"cuGraphLaunch", &driver.launch}, {"cuStreamQuery", &driver.query},
        {"cuStreamSynchronize", &driver.synchronize}, {"cuGraphExecKernelNodeSetParams", &driver.set_params},
        {"cuCtxPushCurrent", &driver.push}, {"cuCtxPopCurrent", &driver.pop}, {"cuEventRecord", &driver.record},
        {"cuEventQuery", &driver.query_event}, {"cuEventSynchronize", &driver.synchronize_event},
        {"cuMemcpyHtoDAsync", &driver.copy_in}, {"cuMemcpyDtoHAsync", &driver.copy_out},
        {"cuMemcpyDtoDAsync", &driver.copy_within}, {"cuGraphExecMemcpyNodeSetParams", &driver.set_copy},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
        PyObject *address = PyMapping_GetItemString(addresses, all[i].name);
        if (!address) return NULL;
        void *found = PyLong_AsVoidPtr(address);
        Py_DECREF(address);
        if (PyErr_Occurred()) return NULL;
        memcpy(all[i].at, &found, sizeof found);
    }
    return Py_NewRef(Py_None);
}

/* ---- the flight -------------------------------------------------------------------------------------------------- */


static void set_pair(void *to, PyObject *row) {
    *(Pair *)to = (Pair){PyLong_AsSsize_t(PyTuple_GET_ITEM(row, 0)), PyLong_AsSsize_t(PyTuple_GET_ITEM(row, 1))};
}

static void set_output(void *to, PyObject *row) {
    Output *output = to;
    set_pair(&output->at, row);
    output->pool = PyTuple_GET_ITEM(row, 2);
    output->nbytes = PyTuple_GET_ITEM(row, 3);
    output->size = PyTuple_GET_ITEM(row, 4);
    if (!PyObject_TypeCheck(output->pool, (PyTypeObject *)known.pool)) PyErr_SetString(PyExc_TypeError, "an output has a pool");
}

static PyObject *s_handle;

static int64_t nanoseconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Poll a stream or an event, by the function that asks for it, for this number of nanoseconds. Return the driver's code.
 * No GIL. */
static int poll(int (*query)(void *), void *work, int64_t spin) {
    int64_t end = 0;
    for (;;) {
        int code = query(work);
        if (code != IS_BUSY || spin <= 0) return code;
        int64_t now = nanoseconds();
        if (!end) end = now + spin;
        if (now >= end) return IS_BUSY;
    }
}

/* Wait for a stream or an event: look for `spin` seconds, then block. Without `block` look longer, see LONG_SPIN: of several
 * devices one may be lost, for which the others would wait. Return the driver's code, and set the name of its call. No GIL. */
static int wait_for(void *work, int (*query)(void *), int (*block)(void *), double spin, const char **name) {
    int is_event = query == driver.query_event;
    *name = is_event ? "cuEventQuery" : "cuStreamQuery";
    double longer = PyFloat_AS_DOUBLE(known.long_spin);
    int found = poll(query, work, (int64_t)((block || spin > longer ? spin : longer) * 1e9));
    if (found != IS_BUSY || !block) return found;
    *name = is_event ? "cuEventSynchronize" : "cuStreamSynchronize";
    return block(work);
}

/* Return the CUstream of a stream; NULL with an error. */
static void *stream_of(PyObject *stream) {
    PyObject *raw = SLOT(stream, slots.stream_raw), *number = raw ? PyObject_GetAttr(raw, s_handle) : NULL;
    void *found = number ? pointer_of(number) : NULL;
    Py_XDECREF(number);
    return found;
}

/* Return the CUevent of an event; NULL with an error. */
static void *event_of(PyObject *event) {
    PyObject *number = PyObject_GetAttr(event, s_handle);
    void *found = number ? pointer_of(number) : NULL;
    Py_XDECREF(number);
    return found;
}

int flight_poll(PyObject *flight, Boarding *boarding, double spin, const char **call) {
    int is_event = ((Flight *)flight)->exec != NULL, code;
    void *work = is_event ? event_of(boarding->graph) : stream_of(boarding->stream);
    int (*query)(void *) = is_event ? driver.query_event : driver.query;
    int (*synchronize)(void *) = is_event ? driver.synchronize_event : driver.synchronize;
    *call = is_event ? spin < 0 ? "cuEventSynchronize" : "cuEventQuery" : spin < 0 ? "cuStreamSynchronize" : "cuStreamQuery";
    if (PyErr_Occurred() || PyList_Append(known.inside, Py_None) < 0) return -1;
    Py_BEGIN_ALLOW_THREADS
    code = spin < 0 ? synchronize(work) : poll(query, work, (int64_t)(spin * 1e9));
    Py_END_ALLOW_THREADS
    PyObject *none = list_pop(known.inside);
    Py_XDECREF(none);
    PyErr_Clear();
    return code;
}

/* Return 1 for a flight whose calls of the driver do not take long: an array of the host may have to be staged. */
static int makes_runs(Flight *self) { return self->makes != FROM_HOST && self->makes != TO_HOST; }

int flight_serves_all(PyObject *flight) { return ((Flight *)flight)->exec != NULL || ((Flight *)flight)->makes; }

int flight_is_awaited(PyObject *flight) { return makes_runs((Flight *)flight); }

PyObject *flight_live(PyObject *flight) {
    PyObject *devices = ((Flight *)flight)->devices;
    Py_ssize_t n = PyTuple_GET_SIZE(devices);
    PyObject *all = PyTuple_New(n);
    for (Py_ssize_t i = 0; all && i < n; ++i) {
        PyObject *live = PyObject_GetAttr(PyTuple_GET_ITEM(PyTuple_GET_ITEM(devices, i), 0), s_live);
        if (live && PySet_CheckExact(live)) {
            PyTuple_SET_ITEM(all, i, live);
            continue;
        }
        if (live) PyErr_SetString(PyExc_SystemError, "the live runs of a device are no set");
        Py_XDECREF(live);
        Py_CLEAR(all);
    }
    return all;
}

void flight_forget(Boarding *boarding) { boarding_clear(boarding); }

/* Launch a captured graph, and wait for the event after it. */
static int fly_captured(Flight *self, Boarding *boarding, double spin, int *code, const char **call, int *refused) {
    void *stream = stream_of(boarding->stream), *end = PyErr_Occurred() ? NULL : event_of(boarding->graph);
    if (PyErr_Occurred() || PyList_Append(known.inside, Py_None) < 0) return -1;
    int found, launched;
    const char *name = "cuGraphLaunch";
    void *exec = self->exec;
    Py_BEGIN_ALLOW_THREADS
    found = driver.launch(exec, stream);
    launched = !found;
    if (!found) {
        name = "cuEventRecord";
        found = driver.record(end, stream);
    }
    if (!found && spin > 0) found = wait_for(end, driver.query_event, driver.synchronize_event, spin, &name);
    Py_END_ALLOW_THREADS
    PyObject *none = list_pop(known.inside);
    Py_XDECREF(none);
    PyErr_Clear();
    *code = found;
    *call = name;
    *refused = launched ? -2 : -1;
    return found ? REFUSED : spin > 0 ? LANDED : UNDER_WAY;
}

/* Copy from or to the host, and wait for the end. The driver itself stages an array that is not page-locked, before its call
 * returns. */
static int fly_copy(Flight *self, Boarding *boarding, double spin, int *code, const char **call, int *refused) {
    void *stream = stream_of(boarding->stream), *to = NULL, *from = NULL;
    size_t nbytes = 0;
    if (!PyErr_Occurred()) to = pointer_of(PyTuple_GET_ITEM(boarding->bases, 0));
    if (!PyErr_Occurred()) from = pointer_of(PyTuple_GET_ITEM(boarding->bases, 1));
    if (!PyErr_Occurred()) nbytes = PyLong_AsSize_t(PyTuple_GET_ITEM(boarding->bases, 2));
    if (PyErr_Occurred() || PyList_Append(known.inside, Py_None) < 0) return -1;
    int is_in = self->makes == FROM_HOST, found, launched;
    const char *name = is_in ? "cuMemcpyHtoDAsync" : "cuMemcpyDtoHAsync";
    Py_BEGIN_ALLOW_THREADS
    found = is_in ? driver.copy_in((uintptr_t)to, from, nbytes, stream) : driver.copy_out(to, (uintptr_t)from, nbytes, stream);
    launched = !found;
    if (!found) found = wait_for(stream, driver.query, driver.synchronize, spin, &name);
    Py_END_ALLOW_THREADS
    PyObject *none = list_pop(known.inside);
    Py_XDECREF(none);
    PyErr_Clear();
    *code = found;
    *call = name;
    *refused = launched ? -2 : -1;
    return found ? REFUSED : LANDED;
}

/* Copy within a device, or between two, and wait for at most `spin` seconds. */
static int fly_between(Flight *self, Boarding *boarding, double spin, int *code, const char **call, int *refused) {
    void *stream = stream_of(boarding->stream);
    uint64_t to = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(PyList_GET_ITEM(boarding->bases, self->between.to));
    uint64_t from = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(PyList_GET_ITEM(boarding->bases, self->between.from));
    if (PyErr_Occurred() || PyList_Append(known.inside, Py_None) < 0) return -1;
    to += self->between.to_offset;
    from += self->between.from_offset;
    int found, launched, is_alone = PyTuple_GET_SIZE(self->devices) == 1;
    const char *name = "cuMemcpyDtoDAsync";
    Py_BEGIN_ALLOW_THREADS
    found = driver.copy_within(to, from, self->between.nbytes, stream);
    launched = !found;
    if (launched && spin > 0) found = wait_for(stream, driver.query, is_alone ? driver.synchronize : NULL, spin, &name);
    Py_END_ALLOW_THREADS
    PyObject *none = list_pop(known.inside);
    Py_XDECREF(none);
    PyErr_Clear();
    *code = found;
    *call = name;
    *refused = launched ? -2 : -1;
    if (found == IS_BUSY) return UNDER_WAY;
    return found ? REFUSED : spin > 0 ? LANDED : UNDER_WAY;
}

int flight_fly(PyObject *flight, PyObject *memory, Boarding *boarding, double spin, int *code, const char **call, int *refused) {
    if (((Flight *)flight)->exec) return fly_captured((Flight *)flight, boarding, spin, code, call, refused);
    if (((Flight *)flight)->makes == BETWEEN) return fly_between((Flight *)flight, boarding, spin, code, call, refused);
    if (((Flight *)flight)->makes) return fly_copy((Flight *)flight, boarding, spin, code, call, refused);
    Nodes *nodes = (Nodes *)boarding->nodes;
    int is_alone = PyTuple_GET_SIZE(((Flight *)flight)->devices) == 1;
    PyObject *parameters = SLOT(boarding->graph, slots.graph_parameters);
    void *stream = stream_of(boarding->stream);
    *code = 0;
    *refused = -1;
    *call = "";
    if (!parameters || !Py_IS_TYPE(parameters, (PyTypeObject *)known.launch_parameters) || !nodes->exec) {
        PyErr_SetString(PyExc_SystemError, "the graph has no parameters");
        return -1;
    }
    if (PyErr_Occurred()) return -1;
    Py_ssize_t changed = nodes_relocate(nodes, parameters, boarding->bases, memory, 0);
    if (changed < 0 || PyList_Append(known.inside, Py_None) < 0) { /* some parameters may be written, and their nodes are not */
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        if (PyObject_SetAttrString(boarding->graph, "broken", Py_True) < 0) PyErr_Clear();
        PyErr_Restore(type, value, trace);
        return -1;
    }
    int found = 0, node_refused = -1, launched = 0;
    const char *name = "cuGraphLaunch";
    uint64_t epoch = nodes->epoch;
    Py_BEGIN_ALLOW_THREADS
    if (changed) { /* without a context the driver of CUDA 13.0 ends the process */
        void *popped;
        name = "cuCtxPushCurrent";
        found = driver.push(nodes->context);
        if (!found) {
            for (int kernels = 0; kernels < 2; ++kernels) /* copies first, as `GraphExec` does */
                for (Py_ssize_t i = 0; !found && i < nodes->n_nodes; ++i) {
                    Node *each = &nodes->nodes[i];
                    if (each->epoch != epoch || (each->context == NULL) != kernels) continue;
                    name = kernels ? "cuGraphExecKernelNodeSetParams" : "cuGraphExecMemcpyNodeSetParams";
                    found = kernels ? driver.set_params(nodes->exec, each->node, each->params)
                                    : driver.set_copy(nodes->exec, each->node, each->params, each->context);
                    if (found) node_refused = (int)i;
                }
            driver.pop(&popped);
        }
    }
    if (!found) {
        name = "cuGraphLaunch";
        found = driver.launch(nodes->exec, stream);
        launched = !found;
    }
    if (launched && spin > 0) found = wait_for(stream, driver.query, is_alone ? driver.synchronize : NULL, spin, &name);
    Py_END_ALLOW_THREADS
    PyObject *none = list_pop(known.inside);
    Py_XDECREF(none);
    PyErr_Clear();
    *code = found;
    *call = name;
    *refused = launched ? -2 : node_refused; /* -2: the launch itself was accepted */
    if (found == IS_BUSY) return UNDER_WAY;
    return found ? REFUSED : spin > 0 ? LANDED : UNDER_WAY;
}

PyObject *flight_follow(PyObject *flight, PyObject *memory, Boarding *boarding) {
    Flight *self = (Flight *)flight;
    PyObject *arenas = boarding->arenas ? boarding->arenas : Py_None;
    PyObject *graph = boarding->graph ? boarding->graph : Py_None;
    python_begins(boarding);
    PyObject *run = PyObject_CallFunctionObjArgs(self->follow, graph, boarding->stream, memory, arenas, NULL);
    boarding_clear(boarding);
    return run;
}

PyObject *flight_refused(PyObject *flight, PyObject *memory, Boarding *boarding, int code, const char *call, int refused) {
    Flight *self = (Flight *)flight;
    PyObject *arenas = boarding->arenas ? boarding->arenas : Py_None;
    PyObject *graph = boarding->graph ? boarding->graph : Py_None;
    python_begins(boarding);
    PyObject *run = PyObject_CallFunction(
        self->refuse, "OOOOisii", graph, boarding->stream, memory, arenas, code, call, refused == -2, refused);
    boarding_clear(boarding);
    return run;
}

/* flight(memory, spin): a `Strategy`. */
static PyObject *flight_call(PyObject *flight, PyObject *const *args, size_t flags, PyObject *names) {
    if (PyVectorcall_NARGS(flags) != 2 || (names && PyTuple_GET_SIZE(names)) || !PyList_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "a flight takes the memory and the spin of a run");
        return NULL;
    }
    double spin = PyFloat_AsDouble(args[1]);
    if (spin == -1.0 && PyErr_Occurred()) return NULL;
    Boarding boarding = {.section = NULL};
    if (!makes_runs((Flight *)flight) && !(spin > 0)) return Py_NewRef(Py_None); /* whoever does not wait has a `Run` */
    int code, refused, good = flight_board(flight, args[0], &boarding, 0);
    const char *call;
    if (good != 1) return good ? NULL : Py_NewRef(Py_None);
    int outcome = flight_fly(flight, args[0], &boarding, spin, &code, &call, &refused);
    if (outcome == LANDED) {
        flight_land(flight, &boarding);
        return Py_NewRef(known.completed);
    }
    if (outcome == UNDER_WAY) return launched_run(flight, args[0], &boarding);
    if (outcome == REFUSED) return flight_refused(flight, args[0], &boarding, code, call, refused);
    flight_leave(flight, &boarding);
    return NULL;
}

/* Return an attribute of an attribute. */
static PyObject *part_of(PyObject *object, const char *whole, const char *part) {
    PyObject *between = PyObject_GetAttrString(object, whole), *found = between ? PyObject_GetAttrString(between, part) : NULL;
    Py_XDECREF(between);
    return found;
}

/* Return what a flight asks before a launch: a tuple of each device, its dropped graphs, and what it has from other
 * libraries. */
static PyObject *watched_of(PyObject *devices) {
    PyObject *all = PySequence_List(devices), *found = NULL;
    for (Py_ssize_t i = 0; all && i < PyList_GET_SIZE(all); ++i) {
        PyObject *device = PyList_GET_ITEM(all, i), *retired = part_of(device, "retired", "gone");
        PyObject *arrivals = retired ? part_of(device, "exchange", "arrivals") : NULL;
        PyObject *row = arrivals ? PyTuple_Pack(3, device, retired, arrivals) : NULL;
        Py_XDECREF(retired);
        Py_XDECREF(arrivals);
        if (!row) Py_CLEAR(all);
        else PyList_SetItem(all, i, row);
    }
    if (all) found = PyList_AsTuple(all);
    Py_XDECREF(all);
    return found;
}

/* Flight(devices, idle, exclusive, graphs, functions, bases, inputs, outputs, arenas, gathers, exec, stream, makes): `makes` is 1 for a copy
 * from the host, 2 for one to the host, and the bases, distances and bytes of another copy. */
static PyObject *flight_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *devices, *idle, *exclusive, *graphs, *functions, *inputs, *outputs, *exec, *stream, *watched;
    Py_ssize_t bases;
    PyObject *makes = Py_None;
    PyObject *arenas;
    int gathers;
    if (!PyArg_ParseTuple(args, "OO!O!OO!nOOOpOO|O:Flight", &devices, &PyList_Type, &idle, &PyList_Type,
                          &exclusive, &graphs, &PyTuple_Type, &functions, &bases, &inputs, &outputs, &arenas, &gathers,
                          &exec, &stream, &makes))
        return NULL;
    if (PyTuple_GET_SIZE(functions) != 8) return PyErr_SetString(PyExc_TypeError, "a flight takes 8 functions"), NULL;
    if (must_know(&known.memory_block, &known.completed, "Flight") < 0) return NULL;
    watched = watched_of(devices);
    if (!watched) return NULL;
    Flight *self = (Flight *)type->tp_alloc(type, 0);
    PyObject *held = self ? PyTuple_Pack(2, args, watched) : NULL; /* the rest is borrowed from it */
    Py_DECREF(watched);
    if (!held) {
        Py_XDECREF(self);
        return NULL;
    }
    self->call = flight_call;
    self->held = held;
    self->devices = watched;
    self->idle = idle;
    self->exclusive = exclusive;
    self->graphs = graphs;
    self->exec = exec == Py_None ? NULL : pointer_of(exec);
    self->stream = stream;
    if (self->exec && !Py_IS_TYPE(stream, (PyTypeObject *)known.cuda_stream))
        PyErr_SetString(PyExc_TypeError, "a captured graph has a stream");
    PyObject **all[] = {&self->borrow, &self->give_back, &self->take_memory, &self->take_stream,
                        &self->describe, &self->follow, &self->refuse, &self->needs_context};
    for (int i = 0; i < 8; ++i) *all[i] = PyTuple_GET_ITEM(functions, i);
    self->n_bases = bases;
    self->gathers = gathers;
    if (PyTuple_Check(makes)) {
        self->makes = BETWEEN;
        if (!PyArg_ParseTuple(makes, "nnKKn", &self->between.to, &self->between.from, &self->between.to_offset,
                              &self->between.from_offset, &self->between.nbytes)) {
            Py_DECREF(self);
            return NULL;
        }
        if (self->between.to < 0 || self->between.to >= bases || self->between.from < 0 || self->between.from >= bases)
            PyErr_SetString(PyExc_ValueError, "a copy names a base that does not exist");
    } else if (makes != Py_None) {
        self->makes = PyLong_AsLong(makes);
    }
    self->n_inputs = fill_array(inputs, 2, sizeof(Pair), (void **)&self->inputs, set_pair);
    if (self->n_inputs >= 0) self->n_outputs = fill_array(outputs, 5, sizeof(Output), (void **)&self->outputs, set_output);
    if (self->n_outputs >= 0) self->n_arenas = fill_array(arenas, 1, sizeof(Py_ssize_t), (void **)&self->arenas, set_index);
    if (PyErr_Occurred()) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int flight_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((Flight *)self)->held);
    return 0;
}

static void flight_dealloc(PyObject *self) {
    Flight *flight = (Flight *)self;
    PyObject_GC_UnTrack(self);
    PyMem_Free(flight->inputs);
    PyMem_Free(flight->outputs);
    PyMem_Free(flight->arenas);
    Py_CLEAR(flight->held);
    Py_TYPE(self)->tp_free(self);
}

PyTypeObject FlightType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dagpu.compiled._reader.Flight",
    .tp_doc = "Launches idle graphs of a plan as the function does that `idle_graph_launch` returns.",
    .tp_basicsize = sizeof(Flight),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = flight_new,
    .tp_dealloc = flight_dealloc,
    .tp_traverse = flight_traverse, /* no tp_clear: what it holds breaks the cycles */
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Flight, call),
};

int flight_ready(void) {
    return boarding_ready() < 0 || !(s_handle = PyUnicode_InternFromString("handle")) ? -1 : 0;
}
