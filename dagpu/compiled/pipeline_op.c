/* The ops that a call of a pipeline and a launch of a captured graph return. The references are Pipeline.__call__ in
 * dagpu.runtime.pipeline_class and CudaGraph.launch in dagpu.ops.graph. */
#include "calls.h"

static PyObject *s_facts, *s_captured, *no_names;

int pipeline_ready(void) {
    if (!(s_facts = PyUnicode_InternFromString("facts_of_call"))) return -1;
    return (s_captured = PyUnicode_InternFromString("_captured")) && (no_names = PyTuple_New(0)) ? 0 : -1;
}

/* Return 1 if an argument is one that this passes on: a living tensor that moves or is shared, or a number. */
static int is_simple(PyObject *argument) {
    PyTypeObject *kind = Py_TYPE(argument);
    if (kind == &PyFloat_Type || kind == &PyLong_Type) return 1;
    if (kind != (PyTypeObject *)known.tensor && kind != (PyTypeObject *)known.shared_tensor) return 0;
    PyObject *state = SLOT(argument, slots.handle_state);
    return state && Py_IS_TYPE(state, (PyTypeObject *)known.handle_state)
        && SLOT(state, slots.state_lender) == Py_None;
}

/* Return an op node with an origin and no plans. */
static PyObject *new_node(PyObject *type, Py_ssize_t origin_at, PyObject *origin) {
    PyObject *node = new_object(type);
    if (!node) return NULL;
    SLOT(node, origin_at) = Py_NewRef(origin);
    SLOT(node, slots.then_plans) = Py_NewRef(Py_None);
    return node;
}

/* Move the tensors among the arguments into a tuple. Return NULL if they cannot be moved: nothing has moved then. */
static PyObject *move_arguments(PyObject *const *arguments, Py_ssize_t n, PyObject *how, PyObject *origin) {
    PyObject *few[FEW] = {NULL}, **records = n <= FEW ? few : PyMem_Calloc((size_t)n, sizeof *records);
    PyObject *held = records ? PyTuple_New(n) : PyErr_NoMemory();
    int good = held != NULL;
    for (Py_ssize_t i = 0; good && i < n; ++i) {
        if (!Py_IS_TYPE(arguments[i], (PyTypeObject *)known.tensor)) {
            PyTuple_SET_ITEM(held, i, Py_NewRef(arguments[i]));
            continue;
        }
        PyObject *fresh = new_object(known.tensor), *state = SLOT(arguments[i], slots.handle_state);
        good = fresh && state && Py_IS_TYPE(state, (PyTypeObject *)known.handle_state); /* it may have moved meanwhile */
        if (fresh) PyTuple_SET_ITEM(held, i, fresh);
        if (!good) break;
        SLOT(fresh, slots.handle_state) = Py_NewRef(state);
        records[i] = PyTuple_Pack(4, how, origin, SLOT(state, slots.state_layout), SLOT(state, slots.state_origin));
        good = records[i] != NULL;
    }
    for (Py_ssize_t i = 0; good && i < n; ++i) { /* an allocation may have run code that moves one, and one may be there twice */
        if (!records[i]) continue;
        good = SLOT(arguments[i], slots.handle_state) == SLOT(PyTuple_GET_ITEM(held, i), slots.handle_state);
        for (Py_ssize_t k = 0; good && k < i; ++k) good = arguments[k] != arguments[i];
    }
    for (Py_ssize_t i = 0; good && i < n; ++i) {
        if (!records[i]) continue;
        records[i] = exchange_slot(arguments[i], slots.handle_moved, records[i]);
        Py_DECREF(exchange_slot(arguments[i], slots.handle_state, Py_NewRef(Py_None))); /* `held` has another reference */
    }
    for (Py_ssize_t i = 0; records && i < n; ++i) Py_XDECREF(records[i]);
    if (records != few) PyMem_Free(records);
    if (!good) Py_CLEAR(held);
    return held;
}

/* Return the op of a call of a pipeline with these positional arguments; NULL without an error, and with no effect, if
 * Python must make it. */
static PyObject *pipeline_op(PyObject *pipeline, PyObject *const *arguments, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n; ++i)
        if (!is_simple(arguments[i])) return NULL;
    PyObject *facts = PyObject_GetAttr(pipeline, s_facts), *number = PyLong_FromSsize_t(n), *origin = NULL;
    int fits = facts && number && PyTuple_Check(facts) && PyTuple_GET_SIZE(facts) == 3
        ? PySequence_Contains(PyTuple_GET_ITEM(facts, 0), number) : 0;
    Py_XDECREF(number);
    if (fits == 1) origin = place_now();
    if (!origin) {
        Py_XDECREF(facts);
        return NULL;
    }
    PyObject *how = PyTuple_GET_ITEM(facts, 1), *f = PyTuple_GET_ITEM(facts, 2);
    PyObject *content = PyTuple_New(2), *made = NULL, *held = NULL;
    PyObject *value = content ? new_node(known.value, slots.value_origin, origin) : NULL;
    PyObject *then = value ? new_node(known.then, slots.then_origin, origin) : NULL;
    if (then) held = move_arguments(arguments, n, how, origin);
    if (held) {
        PyTuple_SET_ITEM(content, 0, held);
        PyTuple_SET_ITEM(content, 1, Py_NewRef(no_names));
        SLOT(value, slots.value_content) = Py_NewRef(content);
        SLOT(then, slots.then_source) = Py_NewRef(value);
        SLOT(then, slots.then_f) = Py_NewRef(f);
        made = Py_NewRef(then);
    }
    Py_XDECREF(then);
    Py_XDECREF(value);
    Py_XDECREF(content);
    Py_DECREF(origin);
    Py_DECREF(facts);
    return made;
}

/* ---- the method --------------------------------------------------------------------------------------------------- */

static PyObject *general_call; /* the method of Python */

static PyObject *method_call(PyObject *pipeline, PyObject *const *arguments, Py_ssize_t n, PyObject *names) {
    PyObject *made = NULL;
    if (known.new_tensor && !(names && PyTuple_GET_SIZE(names))) {
        made = pipeline_op(pipeline, arguments, n);
        if (made || PyErr_Occurred()) return made;
    }
    Py_ssize_t all = n + (names ? PyTuple_GET_SIZE(names) : 0);
    PyObject *few[FEW], **stack = all < FEW ? few : PyMem_New(PyObject *, all + 1);
    if (!stack) return PyErr_NoMemory();
    stack[0] = pipeline;
    memcpy(stack + 1, arguments, (size_t)all * sizeof *stack);
    made = PyObject_Vectorcall(general_call, stack, (size_t)n + 1, names);
    if (stack != few) PyMem_Free(stack);
    return made;
}

/* call_method(Pipeline, function): the method in C. */
PyObject *py_call_method(PyObject *module, PyObject *args) {
    static PyMethodDef definition = {"__call__", (PyCFunction)(void (*)(void))method_call, METH_FASTCALL | METH_KEYWORDS, NULL};
    return method_of(args, "($self, *args, **kwargs)", &definition, &general_call);
}

/* ---- a launch of a captured graph ---------------------------------------------------------------------------------- */

static PyObject *general_launch; /* the method of Python */

static PyObject *method_launch(PyObject *graph, PyObject *unused) {
    if (!known.graph_launch) return PyObject_CallOneArg(general_launch, graph);
    PyObject *captured = PyObject_GetAttr(graph, s_captured), *origin = captured ? place_now() : NULL;
    PyObject *made = origin ? new_node(known.graph_launch, slots.launch_origin, origin) : NULL;
    if (made) SLOT(made, slots.launch_captured) = Py_NewRef(captured);
    Py_XDECREF(captured);
    Py_XDECREF(origin);
    return made;
}

/* launch_method(CudaGraph, function): the method `launch` in C. */
PyObject *py_launch_method(PyObject *module, PyObject *args) {
    static PyMethodDef definition = {"launch", method_launch, METH_NOARGS, NULL};
    return method_of(args, "($self)", &definition, &general_launch);
}
