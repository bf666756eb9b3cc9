/* The section of a call, for the code of Python that a call needs.
 *
 * The references are begin_section and end_section in dagpu.common.critical. While code of C alone runs, no signal handler
 * and no finaliser comes in between, so a call opens a section only where it calls Python: then a Ctrl-C is raised at the
 * end of the call, and a run within it is refused. This is so in a task of trio too: its handler is asked for each Ctrl-C.
 */
#include "compiled.h"
#include <signal.h>

static PyObject *s_previous, *s_raised, *s_presses, *s_times, *sigint;

int section_ready(void) {
    struct { PyObject **at; const char *text; } all[] = {
        {&s_previous, "_previous"}, {&s_raised, "raised"}, {&s_presses, "_presses"}, {&s_times, "times"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
        if (!(*all[i].at = PyUnicode_InternFromString(all[i].text))) return -1;
    return (sigint = PyLong_FromLong(SIGINT)) ? 0 : -1;
}

void section_init(Section *section) {
    *section = (Section){NULL, 0, NULL, NULL, NULL};
}

/* Keep the error that is set, to raise it at the end, unless there is one already. */
static void keep_error(Section *section) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (section->type) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
    } else {
        section->type = type;
        section->value = value;
        section->trace = trace;
    }
}

/* Set the handler that defers a Ctrl-C, as _DeferredInterrupt.install does. A Ctrl-C that has come already is raised at the
 * end. */
static int install(PyObject *thread) {
    PyObject *previous = PyObject_CallOneArg(known.get_handler, sigint), *presses = NULL, *times = NULL;
    int good = previous && PyCallable_Check(previous) && previous != known.deferred;
    if (good) good = PyObject_SetAttr(known.deferred, s_previous, previous) == 0 && PyObject_SetAttr(known.deferred, s_raised, Py_None) == 0;
    if (good) good = (presses = PyObject_GetAttr(known.deferred, s_presses)) && (times = PyObject_GetAttr(presses, s_times));
    if (good && PyList_CheckExact(times)) good = PyList_SetSlice(times, 0, PyList_GET_SIZE(times), NULL) == 0;
    PyObject *set = good ? PyObject_CallFunctionObjArgs(known.set_handler, sigint, known.deferred, NULL) : NULL;
    if (set) Py_XDECREF(exchange_slot(thread, slots.thread_hold, Py_NewRef(known.deferred)));
    Py_XDECREF(previous);
    Py_XDECREF(presses);
    Py_XDECREF(times);
    Py_XDECREF(set);
    return set != NULL;
}

void section_open(Section *section) {
    PyObject *type, *value, *trace;
    if (section->thread) return;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *thread = PyObject_GetAttr(known.thread_local_, s_thread);
    if (thread && Py_IS_TYPE(thread, (PyTypeObject *)known.thread_state) && SLOT(thread, slots.thread_where) == known.outside) {
        section->thread = Py_NewRef(thread);
        Py_XDECREF(exchange_slot(thread, slots.thread_where, Py_NewRef(known.critical)));
        if (SLOT(thread, slots.thread_signals) == Py_True) {
            section->installed = install(thread);
            if (!section->installed && PyErr_Occurred()) { /* the driver or the reader has been interrupted before */
                keep_error(section);
                section->installed = install(thread);
            }
        }
    }
    if (PyErr_Occurred()) keep_error(section);
    Py_XDECREF(thread);
    PyErr_Restore(type, value, trace);
}

int section_close(Section *section) {
    if (!section->thread) return 0;
    PyObject *type, *value, *trace, *thread = section->thread;
    PyErr_Fetch(&type, &value, &trace);
    section->thread = NULL;
    if (section->installed) {
        PyObject *done = PyObject_CallFunctionObjArgs(known.end_section, thread, Py_True, NULL);
        if (!done) keep_error(section); /* the Ctrl-C that came within it */
        Py_XDECREF(done);
    }
    Py_XDECREF(exchange_slot(thread, slots.thread_where, Py_NewRef(known.outside)));
    Py_DECREF(thread);
    if (!section->type) {
        PyErr_Restore(type, value, trace);
        return 0;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    PyErr_Restore(section->type, section->value, section->trace);
    section->type = section->value = section->trace = NULL;
    return -1;
}
