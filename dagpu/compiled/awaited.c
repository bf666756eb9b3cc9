/* What `await` drives: the steps in a task of trio of an op, or of the next value of a feed (feed_next.c).
 *
 * The references are _run_in_task and _landed in dagpu.runtime.interpreter. A call that is over at the first look has two
 * steps: it is launched and gives the other tasks their turn, and it lands. All else goes on in generators of Python: a
 * call that is not served here from its beginning, and one that has to wait, or that fails, from its launch.
 */
#include "calls.h"

/* NEW: nothing has happened. READY: it is launched. LAUNCHED: it has also given the other tasks their turn. PASSED_ON: a
 * generator of Python goes on. */
typedef enum { NEW, READY, LAUNCHED, PASSED_ON, OVER } Stage;

typedef struct {
    PyObject_HEAD
    Stage stage;
    int is_running; /* within a step code of Python, or another thread, may ask for one more */
    const Awaiting *how;
    PyObject *subject; /* the op, or the feed that is asked for its next value; NULL for a landing alone */
    PyObject *landing;
    PyObject *steps; /* the generator or coroutine of Python that goes on */
} Awaited;

static PyTypeObject AwaitedType;
static PyObject *s_throw, *s_close;

PyObject *awaited_new(const Awaiting *how, PyObject *subject, PyObject *landing) {
    Awaited *self = PyObject_GC_New(Awaited, &AwaitedType);
    if (!self) return NULL;
    self->stage = landing ? READY : NEW;
    self->is_running = 0;
    self->how = how;
    self->subject = Py_XNewRef(subject);
    self->landing = Py_XNewRef(landing);
    self->steps = NULL;
    PyObject_GC_Track((PyObject *)self);
    return (PyObject *)self;
}

/* Begin a step. Return -1 with an error if one is under way. */
static int enter(Awaited *self) {
    if (!self->is_running) return self->is_running = 1, 0;
    return PyErr_Format(PyExc_ValueError, "%s already executing", self->how->unasked ? "coroutine" : "generator"), -1;
}

/* Note that a call is over. An error that is set stays set. */
static void end(Awaited *self) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    self->stage = OVER;
    Py_CLEAR(self->steps);
    Py_CLEAR(self->landing);
    if (self->subject && self->how->leave) self->how->leave(self->subject);
    Py_CLEAR(self->subject);
    PyErr_Restore(type, value, trace);
}

/* ---- the way of Python ---------------------------------------------------------------------------------------------- */

/* Send a value to the generator that goes on. */
static PySendResult pass_on(Awaited *self, PyObject *value, PyObject **result) {
    self->stage = PASSED_ON;
    PyObject *steps = Py_NewRef(self->steps);
    PySendResult how = PyIter_Send(steps, value, result);
    Py_DECREF(steps);
    if (how == PYGEN_ERROR) without_our_frames();
    if (how != PYGEN_NEXT) end(self);
    return how;
}

/* Let Python go on from the launch, after which it gives the other tasks their turn. */
static int follow(Awaited *self) {
    PyObject *turn = NULL;
    self->steps = self->how->follow(self->subject, self->landing);
    Py_CLEAR(self->landing);
    PySendResult how = self->steps ? PyIter_Send(self->steps, Py_None, &turn) : PYGEN_ERROR;
    Py_XDECREF(turn);
    if (how == PYGEN_RETURN) PyErr_SetString(PyExc_SystemError, "a launch was not followed");
    if (how == PYGEN_NEXT) self->stage = PASSED_ON;
    else end(self);
    return how == PYGEN_NEXT ? 0 : -1;
}

/* Call a method of the generator that goes on. Return what it yields; NULL with an error, or with the end. */
static PyObject *ask(Awaited *self, PyObject *method, PyObject *const *arguments, Py_ssize_t n) {
    PyObject *stack[4] = {self->steps};
    for (Py_ssize_t i = 0; i < n; ++i) stack[i + 1] = arguments[i];
    Py_INCREF(stack[0]);
    PyObject *result = PyObject_VectorcallMethod(method, stack, (size_t)n + 1, NULL);
    if (!result) {
        if (!PyErr_ExceptionMatches(PyExc_StopIteration)) without_our_frames();
        end(self);
    }
    Py_DECREF(stack[0]);
    return result;
}

/* Raise the error that is set in the generator of Python, which releases what the call holds. */
static void fail(Awaited *self) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace) PyException_SetTraceback(value, trace);
    if (follow(self) == 0) {
        PyObject *yielded = ask(self, s_throw, &value, 1);
        Py_XDECREF(yielded);
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

/* ---- the steps ------------------------------------------------------------------------------------------------------ */

int may_go_on(void) {
    PyObject *steps = PyObject_CallNoArgs(known.checkpoint_if_cancelled), *yielded = NULL;
    if (!steps) return -1;
    PySendResult how = PyIter_Send(steps, Py_None, &yielded);
    Py_XDECREF(yielded);
    if (how == PYGEN_NEXT) {
        PyObject *closed = PyObject_CallMethodNoArgs(steps, s_close);
        if (!closed) how = PYGEN_ERROR;
        Py_XDECREF(closed);
    }
    Py_DECREF(steps);
    if (how == PYGEN_ERROR && PyErr_ExceptionMatches(PyExc_RuntimeError)) { /* no task: Python says so in its words */
        PyErr_Clear();
        return 0;
    }
    return how == PYGEN_ERROR ? -1 : how == PYGEN_RETURN;
}

static PySendResult begin(Awaited *self, PyObject *value, PyObject **result) {
    PyObject *landing = self->how->launch(self->subject), *subject = self->subject;
    if (landing && landing != known.miss) {
        self->landing = landing;
        self->stage = LAUNCHED;
        if (PyErr_CheckSignals() < 0) { /* a Ctrl-C in the driver: a profiler of Python would get it as the frame ends */
            fail(self);
            return PYGEN_ERROR;
        }
        *result = Py_NewRef(known.turn);
        return PYGEN_NEXT;
    }
    self->stage = OVER;
    self->subject = NULL; /* from here on it is Python's to leave */
    if (landing) self->steps = self->how->general(subject);
    else without_our_frames();
    Py_XDECREF(landing);
    Py_DECREF(subject);
    return self->steps ? pass_on(self, value, result) : PYGEN_ERROR;
}

static PySendResult land(Awaited *self, PyObject *value, PyObject **result) {
    PyObject *made = landing_land(self->landing, NULL);
    if (made == known.miss) { /* Python looks once more, and waits */
        Py_DECREF(made);
        return follow(self) < 0 ? PYGEN_ERROR : pass_on(self, value, result);
    }
    if (!made) {
        fail(self);
        return PYGEN_ERROR;
    }
    Py_DECREF(landing_end(self->landing, NULL));
    Py_CLEAR(self->landing);
    if (self->how->finish) made = self->how->finish(self->subject, made);
    end(self);
    *result = made;
    return made ? PYGEN_RETURN : PYGEN_ERROR;
}

/* Refuse a coroutine that is over. Return -1 with the error; 0 for a generator: it is asked without end. */
static int refuse_again(Awaited *self) {
    if (self->how->unasked) PyErr_SetString(PyExc_RuntimeError, "cannot reuse already awaited coroutine");
    return self->how->unasked ? -1 : 0;
}

/* Refuse a task that begins to await a coroutine which another one awaits: trio never resumes one with None. */
static int refuse_second(Awaited *self, PyObject *value) {
    if (!self->how->unasked || value != Py_None || (self->stage != LAUNCHED && self->stage != PASSED_ON)) return 0;
    return PyErr_SetString(PyExc_RuntimeError, "coroutine is being awaited already"), -1;
}

static PySendResult step(Awaited *self, PyObject *value, PyObject **result) {
    if (refuse_second(self, value) < 0) return PYGEN_ERROR;
    switch (self->stage) {
    case NEW:
        return begin(self, value, result);
    case READY:
        self->stage = LAUNCHED;
        *result = Py_NewRef(known.turn);
        return PYGEN_NEXT;
    case LAUNCHED:
        return land(self, value, result);
    case PASSED_ON:
        return pass_on(self, value, result);
    default:
        if (refuse_again(self) < 0) return PYGEN_ERROR;
        *result = Py_NewRef(Py_None);
        return PYGEN_RETURN;
    }
}

static PySendResult awaited_send(PyObject *self_, PyObject *value, PyObject **result) {
    Awaited *self = (Awaited *)self_;
    *result = NULL;
    if (enter(self) < 0) return PYGEN_ERROR;
    PySendResult how = step(self, value, result);
    self->is_running = 0;
    return how;
}

/* ---- the methods of a generator ------------------------------------------------------------------------------------- */

static PyObject *awaited_next(PyObject *self) {
    PyObject *result;
    switch (awaited_send(self, Py_None, &result)) {
    case PYGEN_NEXT:
        return result;
    case PYGEN_RETURN:
        if (result != Py_None) _PyGen_SetStopIterationValue(result);
        Py_DECREF(result);
        return NULL;
    default:
        return NULL;
    }
}

static PyObject *awaited_method_send(PyObject *self, PyObject *value) {
    PyObject *result;
    PySendResult how = awaited_send(self, value, &result);
    if (how == PYGEN_RETURN) {
        if (result == Py_None) PyErr_SetNone(PyExc_StopIteration);
        else _PyGen_SetStopIterationValue(result);
        Py_CLEAR(result);
    }
    return how == PYGEN_ERROR ? NULL : result;
}

/* Raise an error where a call waits, or before its launch. */
static PyObject *throw_in(Awaited *self, PyObject *const *arguments, Py_ssize_t n) {
    PyObject *error = arguments[0], *value = n > 1 && arguments[1] != Py_None ? arguments[1] : NULL;
    if ((self->stage == READY || self->stage == LAUNCHED) && follow(self) < 0) return NULL;
    if (self->stage == PASSED_ON) return ask(self, s_throw, arguments, n);
    if (PyExceptionInstance_Check(error) && value)
        return PyErr_SetString(PyExc_TypeError, "instance exception may not have a separate value"), NULL;
    if (!PyExceptionInstance_Check(error) && !PyExceptionClass_Check(error))
        return PyErr_Format(PyExc_TypeError, "exceptions must be classes or instances deriving from BaseException, not %s",
                            Py_TYPE(error)->tp_name), NULL;
    if (self->stage == OVER && refuse_again(self) < 0) return NULL;
    self->stage = OVER;
    Py_CLEAR(self->subject);
    if (PyExceptionInstance_Check(error)) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    else PyErr_SetObject(error, value);
    return NULL;
}

/* throw(error) or throw(type, value, trace): raise an error where the call waits. */
static PyObject *awaited_throw(PyObject *self_, PyObject *const *arguments, Py_ssize_t n) {
    Awaited *self = (Awaited *)self_;
    if (n < 1) return PyErr_SetString(PyExc_TypeError, "throw expected at least 1 argument, got 0"), NULL;
    if (n > 3) return PyErr_Format(PyExc_TypeError, "throw expected at most 3 arguments, got %zd", n), NULL;
    if (enter(self) < 0) return NULL;
    PyObject *result = throw_in(self, arguments, n);
    self->is_running = 0;
    return result;
}

/* End a call, and wait for its run. Return -1 with an error. */
static int close_it(Awaited *self) {
    if ((self->stage == READY || self->stage == LAUNCHED) && follow(self) < 0) return -1;
    if (self->stage == PASSED_ON) {
        PyObject *closed = ask(self, s_close, NULL, 0);
        if (!closed) return -1;
        Py_DECREF(closed);
        end(self);
    }
    self->stage = OVER;
    Py_CLEAR(self->subject);
    return 0;
}

/* close(): end the call, and wait for its run. */
static PyObject *awaited_close(PyObject *self_, PyObject *unused) {
    Awaited *self = (Awaited *)self_;
    if (enter(self) < 0) return NULL;
    int failed = close_it(self);
    self->is_running = 0;
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *awaited_frame(PyObject *self, void *unused) { return Py_NewRef(Py_None); }
static PyObject *awaited_from(PyObject *self_, void *unused) {
    Awaited *self = (Awaited *)self_;
    return Py_NewRef(self->steps ? self->steps : Py_None);
}

static int awaited_traverse(PyObject *self_, visitproc visit, void *arg) {
    Awaited *self = (Awaited *)self_;
    Py_VISIT(self->subject);
    Py_VISIT(self->steps);
    return 0;
}

static int awaited_clear(PyObject *self_) {
    Awaited *self = (Awaited *)self_;
    Py_CLEAR(self->subject);
    Py_CLEAR(self->steps);
    return 0;
}

/* A call that is dropped is closed. One that Python goes on with is closed by its generator. */
static void awaited_finalize(PyObject *self_) {
    Awaited *self = (Awaited *)self_;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    int failed = 0;
    if (self->stage == READY || self->stage == LAUNCHED) failed = close_it(self) < 0;
    else if (self->stage == NEW && self->how->unasked) failed = PyErr_WarnEx(PyExc_RuntimeWarning, self->how->unasked, 1) < 0;
    if (failed) PyErr_WriteUnraisable(self_);
    PyErr_Restore(type, value, trace);
}

static void awaited_dealloc(PyObject *self_) {
    Awaited *self = (Awaited *)self_;
    if (self->stage != OVER && PyObject_CallFinalizerFromDealloc(self_) < 0) return; /* somebody has it again */
    PyObject_GC_UnTrack(self_);
    awaited_clear(self_);
    Py_CLEAR(self->landing);
    Py_TYPE(self_)->tp_free(self_);
}

/* What it is, and of whom. */
static PyObject *awaited_repr(PyObject *self_) {
    Awaited *self = (Awaited *)self_;
    const char *what = self->how->unasked ? "coroutine of the next value" : "steps";
    if (!self->subject) return PyUnicode_FromFormat("<%s of a run>", what);
    return PyUnicode_FromFormat("<%s of %R%s>", what, self->subject, self->stage == NEW ? ", not awaited yet" : "");
}

static PyMethodDef methods[] = {
    {"send", awaited_method_send, METH_O, "See `Generator.send`."},
    {"throw", (PyCFunction)(void (*)(void))awaited_throw, METH_FASTCALL, "See `Generator.throw`."},
    {"close", awaited_close, METH_NOARGS, "See `Generator.close`."},
    {NULL},
};
static PyGetSetDef attributes[] = {
    {"gi_frame", awaited_frame, NULL, "None: it has no frame of Python. Trio asks for it where it shows what a task waits for."},
    {"gi_yieldfrom", awaited_from, NULL, "The generator of Python that goes on, or None."},
    {NULL},
};
static PyAsyncMethods steps = {.am_await = PyObject_SelfIter, .am_send = awaited_send};
static PyTypeObject AwaitedType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dagpu.compiled._reader.Awaited",
    .tp_doc = "The steps of a call that is awaited.",
    .tp_basicsize = sizeof(Awaited),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = awaited_dealloc,
    .tp_finalize = awaited_finalize,
    .tp_repr = awaited_repr,
    .tp_traverse = awaited_traverse,
    .tp_clear = awaited_clear,
    .tp_as_async = &steps,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = awaited_next,
    .tp_methods = methods,
    .tp_getset = attributes,
    .tp_free = PyObject_GC_Del,
};
int awaited_ready(void) {
    if (!(s_throw = PyUnicode_InternFromString("throw")) || !(s_close = PyUnicode_InternFromString("close"))) return -1;
    return PyType_Ready(&AwaitedType);
}

/* ---- ops ------------------------------------------------------------------------------------------------------------ */

static PyObject *general_await; /* the method of Python */

static PyObject *launch_op(PyObject *op) {
    int good = may_serve(op);
    if (good == 1) good = may_go_on();
    return good == 1 ? landing_launch(op) : good ? NULL : Py_NewRef(known.miss);
}

static PyObject *await_op(PyObject *op) { return PyObject_CallOneArg(general_await, op); }
static PyObject *follow_op(PyObject *op, PyObject *landing) { return PyObject_CallOneArg(known.landed, landing); }

static const Awaiting an_op = {launch_op, await_op, follow_op, NULL, NULL, NULL};

PyObject *await_landing(PyObject *landing) { return awaited_new(&an_op, NULL, landing); }

static PyObject *method_await(PyObject *op, PyObject *unused) {
    return known.turn && known.new_tensor ? awaited_new(&an_op, op, NULL) : await_op(op);
}

/* await_method(DeviceOp, function): the method `__await__` in C. */
PyObject *py_await_method(PyObject *module, PyObject *args) {
    static PyMethodDef definition = {"__await__", method_await, METH_NOARGS, NULL};
    return method_of(args, "($self)", &definition, &general_await);
}
