/* The next value of a feed whose only stage is an observed op, if that is an update that is made here (updates.c).
 *
 * The references are Feed.next and Feed.__anext__ in dagpu.reactive.flows.feed. Any other value is left to these.
 */
#include "calls.h"

static PyObject *s_quick, *s_append, *s_since, *s_go_on, *s_hand_out_again;
static PyObject *general_next, *general_anext; /* the methods of Python */

int feed_next_ready(void) {
    struct { PyObject **at; const char *text; } all[] = {
        {&s_quick, "quick"}, {&s_append, "append"}, {&s_since, "since"}, {&s_go_on, "_go_on"},
        {&s_hand_out_again, "hand_out_again"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
        if (!(*all[i].at = PyUnicode_InternFromString(all[i].text))) return -1;
    return 0;
}

/* The time of the feed's clock, as a new reference. */
static PyObject *time_of(PyObject *feed) { return PyObject_CallNoArgs(SLOT(feed, slots.feed_clock)); }

/* Return 1 if a feed has all that a value is noted in: a program may set its stats, and delete parts of these. */
static int is_whole(PyObject *feed) {
    PyObject *stats = SLOT(feed, slots.feed_stats);
    if (!stats || !Py_IS_TYPE(stats, (PyTypeObject *)known.stats) || !SLOT(feed, slots.feed_clock)) return 0;
    return SLOT(stats, slots.stats_values) && SLOT(stats, slots.stats_handed) && SLOT(stats, slots.stats_latencies)
        && SLOT(stats, slots.stats_left) && SLOT(stats, slots.stats_for_producer) && SLOT(stats, slots.stats_for_consumer);
}

static PyObject *launch_next(PyObject *feed) {
    PyObject *stage = SLOT(feed, slots.feed_stage), *landing = NULL, *now = NULL, *asked = NULL, *quick = NULL;
    if (!stage || !Py_IS_TYPE(stage, (PyTypeObject *)known.observed) || SLOT(feed, slots.feed_asked) != Py_None
        || SLOT(feed, slots.feed_track) != Py_None || !is_whole(feed))
        return Py_NewRef(known.miss);
    Py_INCREF(stage);
    quick = PyObject_GetAttr(stage, s_quick);
    int good = !quick ? -1 : PyTuple_Check(quick) && PyTuple_GET_SIZE(quick) == 3;
    if (good == 1) good = (now = time_of(feed)) && (asked = PyTuple_Pack(2, now, stage)) ? 1 : -1;
    if (good == 1) Py_XDECREF(exchange_slot(feed, slots.feed_asked, Py_NewRef(asked)));
    if (good == 1 && (good = may_go_on()) == 1)
        landing = update_launch(PyTuple_GET_ITEM(quick, 0), stage, PyTuple_GET_ITEM(quick, 1), PyTuple_GET_ITEM(quick, 2));
    else if (good == 0) landing = Py_NewRef(known.miss);
    if (asked && (!landing || landing == known.miss)) Py_XDECREF(exchange_slot(feed, slots.feed_asked, Py_NewRef(Py_None)));
    Py_XDECREF(now);
    Py_XDECREF(asked);
    Py_XDECREF(quick);
    Py_DECREF(stage);
    return landing;
}

static PyObject *await_next(PyObject *feed) { return PyObject_CallOneArg(general_next, feed); }
static PyObject *await_anext(PyObject *feed) { return PyObject_CallOneArg(general_anext, feed); }
static PyObject *follow_next(PyObject *feed, PyObject *landing) {
    return PyObject_CallMethodOneArg(feed, s_go_on, landing);
}

/* Add seconds to a slot. */
static int add_seconds(PyObject *stats, Py_ssize_t slot, double seconds) {
    PyObject *sum = PyFloat_FromDouble(PyFloat_AsDouble(SLOT(stats, slot)) + seconds);
    if (sum) Py_DECREF(exchange_slot(stats, slot, sum));
    return sum ? 0 : -1;
}

/* Append a time to a list of the latest ones. */
static int append_time(PyObject *stats, Py_ssize_t slot, PyObject *time) {
    PyObject *done = PyObject_CallMethodOneArg(SLOT(stats, slot), s_append, time);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* See Stats.count_call and Stats.hand_over. */
static int count_value(PyObject *stats, PyObject *asked_, PyObject *now_, double since) {
    double asked = PyFloat_AsDouble(asked_), now = PyFloat_AsDouble(now_);
    PyObject *left = exchange_slot(stats, slots.stats_left, Py_NewRef(now_));
    int failed = add_seconds(stats, slots.stats_for_producer, now - asked) < 0;
    if (!failed && left != Py_None) failed = add_seconds(stats, slots.stats_for_consumer, asked - PyFloat_AsDouble(left)) < 0;
    Py_DECREF(left);
    PyObject *values = PyNumber_Add(SLOT(stats, slots.stats_values), one), *latency = PyFloat_FromDouble(now - since);
    failed |= !values || !latency;
    if (values) Py_DECREF(exchange_slot(stats, slots.stats_values, values));
    if (!failed) failed = append_time(stats, slots.stats_handed, now_) < 0 || append_time(stats, slots.stats_latencies, latency) < 0;
    Py_XDECREF(latency);
    return failed || PyErr_Occurred() ? -1 : 0;
}

/* Let a stage hand out the value once more, which an error has kept from the task: a Ctrl-C in its clock. */
static void lose_value(PyObject *stage) {
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyObject *done = PyObject_CallMethodNoArgs(stage, s_hand_out_again);
    if (!done) PyErr_WriteUnraisable(stage);
    Py_XDECREF(done);
    PyErr_Restore(type, error, trace);
}

static PyObject *finish_next(PyObject *feed, PyObject *value) {
    PyObject *asked = exchange_slot(feed, slots.feed_asked, Py_NewRef(Py_None)), *since = NULL;
    PyObject *now = asked && PyTuple_Check(asked) && PyTuple_GET_SIZE(asked) == 2 && is_whole(feed) ? time_of(feed) : NULL;
    int good = now && is_whole(feed);
    if (!good && !PyErr_Occurred()) PyErr_SetString(PyExc_AttributeError, "the stats of a feed were changed while it was asked");
    if (good) good = (since = PyObject_GetAttr(PyTuple_GET_ITEM(asked, 1), s_since)) != NULL;
    double from = good ? PyFloat_AsDouble(since) : 0;
    if (good) good = !PyErr_Occurred() && count_value(SLOT(feed, slots.feed_stats), PyTuple_GET_ITEM(asked, 0), now, from) == 0;
    if (good && !Py_IS_TYPE(value, (PyTypeObject *)known.shared_tensor)) {
        PyObject *own = PyObject_CallOneArg(known.own_containers, value);
        Py_SETREF(value, own);
    }
    if (!good) Py_CLEAR(value);
    if (!value && asked && PyTuple_Check(asked) && PyTuple_GET_SIZE(asked) == 2) lose_value(PyTuple_GET_ITEM(asked, 1));
    Py_XDECREF(asked);
    Py_XDECREF(now);
    Py_XDECREF(since);
    return value;
}

/* Note that no task waits for the next value any more. */
static void leave_next(PyObject *feed) { Py_XDECREF(exchange_slot(feed, slots.feed_asked, Py_NewRef(Py_None))); }

static const Awaiting a_next = {launch_next, await_next, follow_next, finish_next, leave_next,
                                "coroutine 'Feed.next' was never awaited"};
static const Awaiting an_anext = {launch_next, await_anext, follow_next, finish_next, leave_next,
                                  "coroutine 'Feed.__anext__' was never awaited"};

static PyObject *method_next(PyObject *feed, PyObject *unused) {
    return known.turn && known.observed ? awaited_new(&a_next, feed, NULL) : await_next(feed);
}
static PyObject *method_anext(PyObject *feed, PyObject *unused) {
    return known.turn && known.observed ? awaited_new(&an_anext, feed, NULL) : await_anext(feed);
}

/* next_method(Feed, function): the method `next` in C. */
PyObject *py_next_method(PyObject *module, PyObject *args) {
    static PyMethodDef definition = {"next", method_next, METH_NOARGS, NULL};
    return method_of(args, "($self)", &definition, &general_next);
}

/* anext_method(Feed, function): the method `__anext__` in C. */
PyObject *py_anext_method(PyObject *module, PyObject *args) {
    static PyMethodDef definition = {"__anext__", method_anext, METH_NOARGS, NULL};
    return method_of(args, "($self)", &definition, &general_anext);
}
