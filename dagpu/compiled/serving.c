/* Where and how a call runs, and the plan that serves it.
 *
 * The references are _run_now and StreamInterpreter.settings in dagpu.runtime.interpreter, direct_call in
 * dagpu.runtime.plan_lookup, and dagpu.common.places.
 */
#include "calls.h"

static PyObject *s_latest, *s_last, *s_version, *s_enabled, *s_name, *s_by_place, *s_plans, *s_call,
    *s_leaves, *s_op;
static PyObject *no_names;

int serving_ready(void) {
    struct { PyObject **at; const char *text; } all[] = {
        {&s_latest, "latest"}, {&s_last, "_last"}, {&s_version, "version"},
        {&s_enabled, "_enabled"}, {&s_name, "name"}, {&s_by_place, "by_place"}, {&s_plans, "plans"},
        {&s_call, "call"}, {&s_leaves, "leaves"}, {&s_op, "op"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
        if (!(*all[i].at = PyUnicode_InternFromString(all[i].text))) return -1;
    return (no_names = PyTuple_New(0)) ? 0 : -1;
}

/* ---- where and how a call runs ----------------------------------------------------------------------------------- */

/* Return the value of a context variable as a new reference; None if it has none. */
static PyObject *value_of(PyObject *variable) {
    PyObject *found = NULL;
    if (PyContextVar_Get(variable, NULL, &found) < 0) return NULL; /* with its own default, if it has one */
    return found ? found : Py_NewRef(Py_None);
}

/* Return 1 if a variable has this value, 0 if not, -1 with an error. */
static int is_value(PyObject *variable, PyObject *wanted) {
    PyObject *found = value_of(variable);
    if (!found) return -1;
    int same = found == wanted ? 1 : PyObject_RichCompareBool(found, wanted, Py_EQ);
    Py_DECREF(found);
    return same;
}

int may_run(int in_task) {
    PyObject *thread = PyObject_GetAttr(known.thread_local_, s_thread);
    if (!thread) return -1;
    int outside = Py_IS_TYPE(thread, (PyTypeObject *)known.thread_state) && SLOT(thread, slots.thread_where) == known.outside;
    Py_DECREF(thread);
    if (!outside) return 0;
    PyObject *library = PyObject_GetAttr(known.async_library, s_name);
    if (!library) return -1;
    int good = in_task ? PyUnicode_Check(library) && !PyUnicode_CompareWithASCIIString(library, "trio") : library == Py_None;
    Py_DECREF(library);
    return good ? is_value(known.block, Py_None) : 0;
}

/* Return the settings of a run that starts now, if nothing that they depend on has changed since the last run; NULL
 * without an error if it has. See StreamInterpreter.settings. */
static PyObject *settings_now(void) {
    PyObject *interpreter = value_of(known.interpreter), *settings = NULL;
    if (!interpreter) return NULL;
    PyObject *last = Py_IS_TYPE(interpreter, (PyTypeObject *)known.interpreter_class)
        ? PyObject_GetAttr(interpreter, s_last) : Py_NewRef(Py_None);
    Py_DECREF(interpreter);
    if (!last || !PyTuple_Check(last)) {
        Py_XDECREF(last);
        return NULL;
    }
    PyObject *facts = PyTuple_GET_ITEM(last, 0), *version = PyDict_GetItemWithError(known.lookup, s_version);
    int same = version ? PyObject_RichCompareBool(version, PyTuple_GET_ITEM(facts, 1), Py_EQ) : -1;
    if (same == 1) same = is_value(known.chosen_device, PyTuple_GET_ITEM(facts, 0));
    if (same == 1) same = is_value(known.chosen_mesh, PyTuple_GET_ITEM(facts, 6));
    for (Py_ssize_t i = 0; same == 1 && i < 4; ++i) {
        PyObject *text = PyDict_GetItemWithError(known.variables, PyTuple_GET_ITEM(known.keys, i));
        if (!text && PyErr_Occurred()) same = -1;
        else if (text != PyTuple_GET_ITEM(facts, 2 + i))
            same = PyObject_RichCompareBool(text ? text : Py_None, PyTuple_GET_ITEM(facts, 2 + i), Py_EQ);
    }
    if (same == 1) settings = Py_NewRef(PyTuple_GET_ITEM(last, 1));
    Py_DECREF(last);
    return settings;
}

int take_settings(PyObject **settings) {
    *settings = settings_now();
    return *settings ? SLOT(*settings, slots.settings_direct) == Py_True : PyErr_Occurred() ? -1 : 0;
}

PyObject *place_now(void) {
    if (PyDict_GetItemWithError(known.origins, s_enabled) != Py_True) return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        PyObject *ours = PyDict_GetItemWithError(known.ours, code->co_filename), *place = NULL;
        if (!ours && !PyErr_Occurred()) { /* a new file */
            ours = PyObject_CallOneArg(known.is_ours, code->co_filename);
            Py_XDECREF(ours); /* it is a truth value */
        }
        if (ours == Py_False) {
            PyObject *at = PyLong_FromLong(PyFrame_GetLasti(frame));
            if (at) place = PyTuple_Pack(2, code, at);
            Py_XDECREF(at);
        }
        PyFrameObject *back = ours == Py_True ? PyFrame_GetBack(frame) : NULL;
        Py_DECREF(code);
        Py_DECREF(frame);
        if (ours != Py_True) return place;
        frame = back;
    }
    return Py_NewRef(Py_None);
}

PyObject *start_now(void) {
    PyObject *set = value_of(known.started);
    if (!set || set != Py_None) return set;
    Py_DECREF(set);
    return place_now();
}

/* ---- the plan that serves an op ---------------------------------------------------------------------------------- */

void clear_serving(Serving *it) {
    Py_CLEAR(it->loaded);
    Py_CLEAR(it->direct);
    Py_CLEAR(it->arguments);
    Py_CLEAR(it->named);
    Py_CLEAR(it->cache);
}

/* Take a plan and one of its direct calls. */
static int take_direct(Serving *it, PyObject *loaded, PyObject *kind) {
    if (!Py_IS_TYPE(loaded, (PyTypeObject *)known.loaded_plan)) return 0;
    PyObject *direct = SLOT(loaded, slots.plan_direct), *found;
    found = direct && PyDict_Check(direct) ? PyDict_GetItemWithError(direct, kind) : NULL;
    if (!found || !Py_IS_TYPE(found, (PyTypeObject *)known.direct_call)) return PyErr_Occurred() ? -1 : 0;
    it->loaded = Py_NewRef(loaded);
    it->direct = Py_NewRef(found);
    return 1;
}

/* Take the latest plan of a cache. */
static int take_latest(Serving *it, PyObject *cache, PyObject *kind) {
    PyObject *loaded = PyObject_GetAttr(cache, s_latest);
    if (!loaded) return -1;
    int good = loaded == Py_None ? 0 : take_direct(it, loaded, kind);
    Py_DECREF(loaded);
    if (good == 1) it->cache = Py_NewRef(cache);
    return good;
}

static int serve_pipeline(Serving *it, PyObject *op) {
    PyObject *content = SLOT(SLOT(op, slots.then_source), slots.value_content);
    if (!content || !PyTuple_Check(content) || PyTuple_GET_SIZE(content) != 2) return 0;
    it->arguments = Py_NewRef(PyTuple_GET_ITEM(content, 0));
    it->named = Py_NewRef(PyTuple_GET_ITEM(content, 1));
    return take_latest(it, SLOT(SLOT(op, slots.then_f), slots.pure_plans), s_call);
}

static int serve_launch(Serving *it, PyObject *op) {
    PyObject *captured = SLOT(op, slots.launch_captured), *place = SLOT(op, slots.launch_origin);
    PyObject *cache = captured ? PyObject_GetAttr(captured, s_plans) : NULL;
    if (!cache) return -1;
    int good = take_latest(it, cache, s_leaves);
    Py_DECREF(cache);
    if (good != 1) return good;
    it->arguments = PyTuple_Pack(1, captured);
    it->named = Py_NewRef(no_names);
    PyObject *served_place = SLOT(it->loaded, slots.plan_place);
    if (!it->arguments || !served_place || !place) return -1;
    return served_place == place ? 1 : PyObject_RichCompareBool(served_place, place, Py_EQ);
}

static int serve_attached(Serving *it, PyObject *attached) {
    if (!PyTuple_Check(attached) || !PyTuple_GET_SIZE(attached)) return 0;
    PyObject *first = PyTuple_GET_ITEM(attached, 0);
    if (!PyTuple_Check(first) || PyTuple_GET_SIZE(first) != 2) return 0;
    it->arguments = Py_NewRef(PyTuple_GET_ITEM(first, 1));
    it->named = Py_NewRef(no_names);
    return take_direct(it, PyTuple_GET_ITEM(first, 0), s_leaves);
}

static int serve_structure(Serving *it, PyObject *op) {
    PyObject *place = PyObject_GetAttr(op, s_origin), *plans = place ? PyObject_GetAttr(known.plans, s_by_place) : NULL;
    PyObject *key = NULL, *loaded = NULL;
    if (plans && PyDict_CheckExact(plans) && PyTuple_CheckExact(place) && PyTuple_GET_SIZE(place) == 2)
        key = Py_BuildValue("NO", PyLong_FromVoidPtr(PyTuple_GET_ITEM(place, 0)), PyTuple_GET_ITEM(place, 1)); /* by `id` */
    if (key) loaded = Py_XNewRef(PyDict_GetItemWithError(plans, key));
    Py_XDECREF(key);
    Py_XDECREF(plans);
    Py_XDECREF(place);
    if (PyErr_Occurred()) {
        Py_XDECREF(loaded);
        return -1;
    }
    int good = loaded ? take_direct(it, loaded, s_op) : 0;
    Py_XDECREF(loaded);
    it->arguments = Py_NewRef(op);
    it->named = Py_NewRef(no_names);
    if (good == 1) it->cache = Py_NewRef(known.plans);
    return good;
}

int find_serving(PyObject *op, Serving *it) {
    PyTypeObject *kind = Py_TYPE(op);
    *it = (Serving){NULL, NULL, NULL, NULL, NULL};
    if (kind == (PyTypeObject *)known.then) {
        PyObject *f = SLOT(op, slots.then_f), *source = SLOT(op, slots.then_source);
        if (f && source && Py_IS_TYPE(f, (PyTypeObject *)known.pure) && Py_IS_TYPE(source, (PyTypeObject *)known.value))
            return serve_pipeline(it, op);
    }
    if (kind == (PyTypeObject *)known.graph_launch) return serve_launch(it, op);
    PyObject *attached = SLOT(op, slots.then_plans);
    return attached && attached != Py_None ? serve_attached(it, attached) : serve_structure(it, op);
}
