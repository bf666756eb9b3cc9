/* A launch that is under way, as a `Run`.
 *
 * The reference is a CudaRun that is polled by its stream. A `Launched` owns what its boarding has taken, and is one of
 * the live runs of its devices, until its stream is idle. Most are over at the first look. Where one is not, or the driver
 * refuses a call, a CudaRun goes on with it, and all that is asked of it is passed on to that.
 */
#include "compiled.h"
#include <pthread.h>
#include <time.h>

typedef struct {
    PyObject_HEAD
    PyObject *flight, *memory, *live;
    PyObject *run; /* the run of Python that goes on; NULL for none */
    Boarding boarding;
    int is_flying; /* neither over, nor passed on */
    unsigned taken_after; /* so many forks */
    int is_taken;  /* a thread polls it, or passes it on: the others wait, and free nothing of it */
} Launched;

static PyTypeObject LaunchedType;

static unsigned forks; /* the forks between the first process and this one: who has taken a launch before is not here */
static void count_fork(void) { ++forks; }

/* Take a launch, which another thread may have while it is in the driver, or in code of Python. */
static void take(Launched *self) {
    while (self->is_taken && self->taken_after == forks) {
        struct timespec moment = {0, 20000};
        Py_BEGIN_ALLOW_THREADS
        nanosleep(&moment, NULL);
        Py_END_ALLOW_THREADS
    }
    self->is_taken = 1;
    self->taken_after = forks;
}

/* Note that a launch is no live run any more. It is taken. */
static void leave(Launched *self) {
    self->is_flying = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->live); ++i)
        if (PySet_Discard(PyTuple_GET_ITEM(self->live, i), (PyObject *)self) < 0) PyErr_WriteUnraisable((PyObject *)self);
}

/* Let a run of Python go on, after the driver has refused a call with this code, or with 0. It is taken. */
static int pass_on(Launched *self, int code, const char *name) {
    leave(self);
    self->run = code ? flight_refused(self->flight, self->memory, &self->boarding, code, name, -2)
                     : flight_follow(self->flight, self->memory, &self->boarding);
    return self->run ? 0 : -1;
}

/* Poll a launch for this number of seconds. Return 1 if it is over, 0 if not, -1 with an error. */
static int poll(Launched *self, double seconds) {
    const char *name;
    take(self);
    int good = !self->run;
    if (self->is_flying) {
        int code = flight_poll(self->flight, &self->boarding, seconds, &name);
        if (!code) {
            leave(self);
            flight_land(self->flight, &self->boarding);
        }
        good = code == -1 ? -1 : !code;
        if (code && code != -1 && code != IS_BUSY && pass_on(self, code, name) < 0) good = -1;
    }
    self->is_taken = 0;
    return good;
}

int launched_poll(PyObject *run, double seconds) {
    return Py_IS_TYPE(run, &LaunchedType) ? poll((Launched *)run, seconds) : 0;
}

PyObject *launched_run(PyObject *flight, PyObject *memory, Boarding *boarding) {
    PyObject *live = flight_live(flight);
    Launched *self = live ? PyObject_GC_New(Launched, &LaunchedType) : NULL;
    if (!self) { /* the work goes on: a run of Python would need memory too */
        PyObject *type, *value, *trace;
        const char *name;
        PyErr_Fetch(&type, &value, &trace);
        if (!flight_poll(flight, boarding, -1.0, &name)) flight_land(flight, boarding);
        PyErr_Restore(type, value, trace);
        Py_XDECREF(live);
        return NULL;
    }
    self->flight = Py_NewRef(flight);
    self->memory = Py_NewRef(memory);
    self->live = live;
    self->run = NULL;
    self->boarding = *boarding;
    self->boarding.section = NULL;
    *boarding = (Boarding){.section = boarding->section};
    self->is_flying = 1;
    self->is_taken = 0;
    self->taken_after = forks;
    PyObject_GC_Track((PyObject *)self);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(live); ++i) {
        if (!PySet_Add(PyTuple_GET_ITEM(live, i), (PyObject *)self)) continue;
        leave(self);
        self->is_flying = 1; /* its release waits for the work */
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* Return the run of Python that goes on, as a new reference; NULL without an error if it is over. */
static PyObject *run_of(Launched *self) {
    take(self);
    int failed = self->is_flying && pass_on(self, 0, "") < 0;
    self->is_taken = 0;
    return failed || !self->run ? NULL : Py_NewRef(self->run);
}

/* ---- the methods of a run ------------------------------------------------------------------------------------------- */

/* Call a method of the run that goes on. If there is none, return `otherwise`, which this takes over. */
static PyObject *asked(Launched *self, const char *method, PyObject *argument, PyObject *otherwise) {
    PyObject *result = NULL, *run = otherwise ? run_of(self) : NULL;
    if (run) {
        PyObject *function = attribute_named(run, method);
        if (function) result = argument ? PyObject_CallOneArg(function, argument) : PyObject_CallNoArgs(function);
        Py_XDECREF(function);
        Py_DECREF(run);
    } else if (!PyErr_Occurred()) {
        return otherwise;
    }
    Py_XDECREF(otherwise);
    return result;
}

static PyObject *launched_done(PyObject *self_, PyObject *unused) {
    Launched *self = (Launched *)self_;
    if (self->is_taken && self->taken_after == forks) Py_RETURN_FALSE; /* another thread looks */
    int over = poll(self, 0.0);
    if (over < 0) return NULL;
    return over || !self->run ? PyBool_FromLong(over) : asked(self, "done", NULL, PyBool_FromLong(1));
}

static PyObject *polled(PyObject *self_, PyObject *seconds, const char *method) {
    Launched *self = (Launched *)self_;
    double spin = PyFloat_AsDouble(seconds);
    if (spin == -1.0 && PyErr_Occurred()) return NULL;
    int over = poll(self, spin > 0 ? spin : 0.0);
    if (over < 0) return NULL;
    return over || !self->run ? PyBool_FromLong(over) : asked(self, method, seconds, PyBool_FromLong(1));
}

static PyObject *launched_method_poll(PyObject *self, PyObject *seconds) { return polled(self, seconds, "poll"); }
static PyObject *launched_succeeds(PyObject *self, PyObject *seconds) { return polled(self, seconds, "succeeds"); }

static PyObject *launched_wait(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    if (n > 1) return PyErr_SetString(PyExc_TypeError, "wait takes a timeout"), NULL;
    return asked((Launched *)self, "wait", n ? args[0] : NULL, PyBool_FromLong(1));
}

static PyObject *launched_readable(PyObject *self, PyObject *unused) {
    return asked((Launched *)self, "readable", NULL, Py_NewRef(Py_None));
}
static PyObject *launched_woken(PyObject *self, PyObject *unused) {
    return asked((Launched *)self, "woken", NULL, Py_NewRef(Py_None));
}

static PyObject *launched_when_done(PyObject *self_, PyObject *wake) {
    Launched *self = (Launched *)self_;
    PyObject *run = run_of(self);
    if (!run) return PyErr_Occurred() ? NULL : PyObject_CallNoArgs(wake);
    PyObject *method = attribute_named(run, "when_done"), *result = method ? PyObject_CallOneArg(method, wake) : NULL;
    Py_XDECREF(method);
    Py_DECREF(run);
    return result;
}

/* Everything is submitted: there is nothing to cancel, unless another run goes on. */
static PyObject *launched_cancel(PyObject *self_, PyObject *unused) {
    Launched *self = (Launched *)self_;
    return self->run ? call_named(self->run, "cancel") : Py_NewRef(Py_None);
}

static PyObject *launched_failures(PyObject *self, PyObject *unused) {
    return asked((Launched *)self, "failures", NULL, PyList_New(0));
}
static PyObject *launched_spoilt(PyObject *self, PyObject *unused) {
    return asked((Launched *)self, "spoilt", NULL, PyFrozenSet_New(NULL));
}

/* The run that goes on sees that the device is lost. */
static PyObject *launched_lose(PyObject *self, PyObject *error) {
    PyObject *run = run_of((Launched *)self);
    if (!run && PyErr_Occurred()) return NULL;
    Py_XDECREF(run);
    return Py_NewRef(Py_None);
}

static PyObject *launched_true(PyObject *self, void *unused) { return PyBool_FromLong(1); }
static PyObject *launched_cancellable(PyObject *self_, void *unused) {
    Launched *self = (Launched *)self_;
    return self->run ? attribute_named(self->run, "cancellable") : PyBool_FromLong(0);
}
static PyObject *launched_finishing(PyObject *self_, void *unused) {
    Launched *self = (Launched *)self_;
    return self->run ? attribute_named(self->run, "finishing") : PyBool_FromLong(!self->is_flying);
}

static int launched_traverse(PyObject *self_, visitproc visit, void *arg) {
    Launched *self = (Launched *)self_;
    Py_VISIT(self->flight);
    Py_VISIT(self->memory);
    Py_VISIT(self->live);
    Py_VISIT(self->run);
    return 0;
}

/* A launch that is dropped is waited for: its memory is in use until then. */
static void launched_dealloc(PyObject *self_) {
    Launched *self = (Launched *)self_;
    PyObject *type, *value, *trace;
    const char *name;
    PyObject_GC_UnTrack(self_);
    PyErr_Fetch(&type, &value, &trace);
    if (self->is_flying) {
        self->is_flying = 0;
        if (!flight_poll(self->flight, &self->boarding, -1.0, &name)) flight_land(self->flight, &self->boarding);
    }
    flight_forget(&self->boarding);
    Py_XDECREF(self->flight);
    Py_XDECREF(self->memory);
    Py_XDECREF(self->live);
    Py_XDECREF(self->run);
    PyErr_Restore(type, value, trace);
    Py_TYPE(self_)->tp_free(self_);
}

static PyMethodDef methods[] = {
    {"done", launched_done, METH_NOARGS, "See `Run.done`."},
    {"poll", launched_method_poll, METH_O, "See `Run.poll`."},
    {"succeeds", launched_succeeds, METH_O, "See `Run.succeeds`."},
    {"wait", (PyCFunction)(void (*)(void))launched_wait, METH_FASTCALL, "See `Run.wait`."},
    {"readable", launched_readable, METH_NOARGS, "See `Run.readable`."},
    {"woken", launched_woken, METH_NOARGS, "See `Run.woken`."},
    {"when_done", launched_when_done, METH_O, "See `Run.when_done`."},
    {"cancel", launched_cancel, METH_NOARGS, "See `Run.cancel`."},
    {"failures", launched_failures, METH_NOARGS, "See `Run.failures`."},
    {"spoilt", launched_spoilt, METH_NOARGS, "See `Run.spoilt`."},
    {"lose", launched_lose, METH_O, "See `LiveRun.lose`."},
    {NULL},
};
static PyGetSetDef attributes[] = {
    {"is_launch", launched_true, NULL, "See `Run.is_launch`."},
    {"cancellable", launched_cancellable, NULL, "See `Run.cancellable`."},
    {"finishing", launched_finishing, NULL, "See `LiveRun.finishing`."},
    {NULL},
};
static PyTypeObject LaunchedType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dagpu.compiled._reader.Launched",
    .tp_doc = "A launch that is under way, as a `Run`.",
    .tp_basicsize = sizeof(Launched),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = launched_dealloc,
    .tp_traverse = launched_traverse, /* no tp_clear: the sets of live runs are cleared when a run is over */
    .tp_methods = methods,
    .tp_getset = attributes,
    .tp_free = PyObject_GC_Del,
};
int launched_ready(void) {
    if (pthread_atfork(NULL, NULL, count_fork)) return PyErr_NoMemory(), -1;
    return PyType_Ready(&LaunchedType);
}
