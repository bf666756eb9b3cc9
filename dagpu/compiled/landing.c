/* A call that is awaited in a task: it is launched, the other tasks have their turn, and it lands.
 *
 * The reference is DirectCall.in_task. awaited.c drives it, and where it has to wait `_landed` in dagpu.runtime.interpreter.
 */
#include "calls.h"

static PyTypeObject LandingType;

int may_serve(PyObject *op) {
    Serving it;
    if (!known.new_tensor || !PyObject_TypeCheck(op, (PyTypeObject *)known.device_op)) return 0;
    int good = find_serving(op, &it);
    PyObject *prepared = good == 1 ? SLOT(it.loaded, slots.plan_prepared) : NULL;
    PyObject *flight = prepared ? PyObject_GetAttr(prepared, s_flight) : NULL;
    clear_serving(&it);
    if (PyErr_Occurred()) return -1;
    int serves = flight && Py_IS_TYPE(flight, &FlightType) && flight_is_awaited(flight);
    Py_XDECREF(flight);
    return serves;
}

Landing *landing_new(void) {
    Landing *self = PyObject_New(Landing, &LandingType);
    if (!self) return NULL;
    trip_init(&self->trip);
    self->run = self->pace = self->update = NULL;
    return self;
}

int landing_follow(Landing *self, PyObject *pace, int outcome, int code, const char *name, int refused) {
    self->pace = Py_NewRef(pace);
    self->run = outcome == UNDER_WAY ? launched_run(self->trip.flight, self->trip.call.memory, &self->trip.boarding)
                                     : trip_refused(&self->trip, code, name, refused);
    return self->run ? 1 : PyErr_Occurred() ? -1 : 0;
}

PyObject *landing_launch(PyObject *op) {
    if (!known.new_tensor || !PyObject_TypeCheck(op, (PyTypeObject *)known.device_op)) return Py_NewRef(known.miss);
    Landing *self = landing_new();
    if (!self) return NULL;
    PyObject *settings = NULL, *origin = NULL;
    Serving it;
    int outcome, code, refused, good = find_serving(op, &it);
    const char *name;
    if (good == 1) good = may_run(1);
    if (good == 1) good = take_settings(&settings);
    if (good == 1) good = trip_plan(&self->trip, &it, settings);
    if (good == 1) good = flight_is_awaited(self->trip.flight);
    if (good == 1) good = (origin = start_now()) ? 1 : -1;
    if (good == 1) good = trip_begin(&self->trip, op, &it, origin, 0.0, &outcome, &code, &name, &refused);
    if (good == 1) {
        PyObject *pace = SLOT(settings, slots.settings_spin) == Py_None ? SLOT(it.loaded, slots.plan_pace) : Py_None;
        good = landing_follow(self, pace, outcome, code, name, refused);
    }
    clear_serving(&it);
    Py_XDECREF(settings);
    Py_XDECREF(origin);
    if (section_close(&self->trip.section) < 0) good = -1;
    if (good == 1) return (PyObject *)self;
    Py_DECREF(self);
    if (good < 0) return NULL;
    count_refused();
    return Py_NewRef(known.miss);
}

/* result(): the result, once `run` is over. */
static PyObject *landing_result(PyObject *self_, PyObject *unused) {
    Landing *self = (Landing *)self_;
    if (!self->trip.call.begun) return PyErr_SetString(PyExc_RuntimeError, "the call has ended"), NULL;
    PyObject *result = self->update && update_made(self->update) < 0 ? NULL : trip_result(&self->trip);
    if (result && self->update) { /* else `end` notes that it has failed */
        if (update_landed(self->update) < 0) Py_CLEAR(result);
        else Py_CLEAR(self->update);
    }
    if (result || !self->update) trip_end(&self->trip);
    if (section_close(&self->trip.section) < 0) Py_CLEAR(result);
    return result;
}

/* land(): the result, if the run is over within the spin; else `MISS`: Python has to wait for `run`, then asks `result`. */
PyObject *landing_land(PyObject *self_, PyObject *unused) {
    Landing *self = (Landing *)self_;
    int over = launched_poll(self->run, self->trip.spin);
    return over < 0 ? NULL : over ? landing_result(self_, NULL) : Py_NewRef(known.miss);
}

/* end(): release the locks. `run` is over. */
PyObject *landing_end(PyObject *self_, PyObject *unused) {
    Landing *self = (Landing *)self_;
    PyObject *update = self->update;
    self->update = NULL;
    if (update) update_failed(update, self->run);
    Py_XDECREF(update);
    trip_end(&self->trip);
    return Py_NewRef(Py_None);
}

static PyObject *landing_run(PyObject *self, void *unused) { return Py_NewRef(((Landing *)self)->run); }
static PyObject *landing_pace(PyObject *self, void *unused) { return Py_NewRef(((Landing *)self)->pace); }

/* A landing that is dropped before its `end` waits for its run: its memory is locked until then. */
static void landing_dealloc(PyObject *self_) {
    Landing *self = (Landing *)self_;
    if (self->run && self->trip.call.begun) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        if (launched_poll(self->run, 0.0) != 1) {
            PyObject *waited = call_named(self->run, "wait");
            if (!waited) PyErr_WriteUnraisable(self->run);
            Py_XDECREF(waited);
        }
        PyErr_Restore(type, value, trace);
    }
    Py_DECREF(landing_end(self_, NULL));
    Py_XDECREF(self->run);
    Py_XDECREF(self->pace);
    Py_TYPE(self_)->tp_free(self_);
}

static PyMethodDef methods[] = {
    {"land", landing_land, METH_NOARGS, "land(): the result, if the run is over within the spin; else `MISS`: wait for `run`."},
    {"result", landing_result, METH_NOARGS, "result(): the result, once `run` is over."},
    {"end", landing_end, METH_NOARGS, "end(): release the locks, once `run` is over."},
    {NULL},
};
static PyGetSetDef attributes[] = {
    {"run", landing_run, NULL, "The `Run` of the call."},
    {"pace", landing_pace, NULL, "The pace of the plan, or None."},
    {NULL},
};
static PyAsyncMethods drives = {.am_await = await_landing};
static PyTypeObject LandingType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dagpu.compiled._reader.Landing",
    .tp_doc = "A call that has been launched in a task.",
    .tp_basicsize = sizeof(Landing),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = landing_dealloc,
    .tp_as_async = &drives,
    .tp_methods = methods,
    .tp_getset = attributes,
};
int landing_ready(void) { return PyType_Ready(&LandingType); }
