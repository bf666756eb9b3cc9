/* The ops that a call of a pipeline and a launch of a captured graph return. The references are Pipeline.__call__ in
 * dagpu.runtime.pipeline_class and CudaGraph.launch in dagpu.ops.graph. */
#include "calls.h"

static PyObject *s_facts, *s_captured, *s_own_fields, *no_names;

int pipeline_ready(void) {
    if (!(s_facts = PyUnicode_InternFromString("facts_of_call"))) return -1;
    if (!(s_own_fields = PyUnicode_InternFromString("_has_own_fields"))) return -1;
    return (s_captured = PyUnicode_InternFromString("_captured")) && (no_names = PyTuple_New(0)) ? 0 : -1;
}

/* The tensors that a call moves. */
typedef struct {
    PyObject *handle, *fresh; /* `fresh` has the state from then on; it is borrowed from what holds it */
    PyObject *record;
} Moving;

/* Return true for a class of dagpu's own whose values are what they are about and their items. */
static int has_own_fields(PyTypeObject *kind) {
    if (!PyType_IsSubtype(kind, (PyTypeObject *)known.composite)) return 0;
    PyObject *own = PyObject_GetAttr((PyObject *)kind, s_own_fields);
    if (!own) PyErr_Clear();
    Py_XDECREF(own);
    return own == Py_True;
}

/* Return how many tensors of an argument move. Return -1 for one that this does not pass on: it passes on living tensors
 * that move, are shared or lent, numbers, and values of dagpu's own that consist of such. */
static Py_ssize_t moving_in(PyObject *argument, int is_item) {
    PyTypeObject *kind = Py_TYPE(argument);
    if (kind == &PyFloat_Type || kind == &PyLong_Type) return 0;
    if (kind == (PyTypeObject *)known.tensor || kind == (PyTypeObject *)known.shared_tensor || kind == (PyTypeObject *)known.tensor_ref) {
        PyObject *state = SLOT(argument, slots.handle_state);
        if (!state || !Py_IS_TYPE(state, (PyTypeObject *)known.handle_state)) return -1;
        PyObject *lender = SLOT(state, slots.state_lender);
        if (lender != Py_None && (kind != (PyTypeObject *)known.tensor_ref || !PyObject_TypeCheck(lender, (PyTypeObject *)known.handle_base)
                                  || SLOT(lender, slots.handle_state) == Py_None)) return -1;
        return kind == (PyTypeObject *)known.tensor;
    }
    if (is_item || !has_own_fields(kind)) return -1;
    PyObject *items = SLOT(argument, slots.composite_items);
    Py_ssize_t all = 0;
    for (Py_ssize_t i = 0; items && PyTuple_Check(items) && i < PyTuple_GET_SIZE(items); ++i) {
        Py_ssize_t found = moving_in(PyTuple_GET_ITEM(items, i), 1);
        if (found < 0) return -1;
        all += found;
    }
    return items && PyTuple_Check(items) ? all : -1;
}

/* Return an op node with an origin and no plans. */
static PyObject *new_node(PyObject *type, Py_ssize_t origin_at, PyObject *origin) {
    PyObject *node = new_object(type);
    if (!node) return NULL;
    SLOT(node, origin_at) = Py_NewRef(origin);
    SLOT(node, slots.then_plans) = Py_NewRef(Py_None);
    return node;
}

/* Return what the call holds in the place of an argument: a fresh handle for a tensor that moves, which is added to `moves`.
 * Return NULL if a tensor has moved meanwhile. */
static PyObject *held_for(PyObject *argument, Moving **moves, PyObject *how, PyObject *origin) {
    if (Py_IS_TYPE(argument, (PyTypeObject *)known.tensor)) {
        PyObject *fresh = new_object(known.tensor), *state = SLOT(argument, slots.handle_state);
        if (!fresh || !state || !Py_IS_TYPE(state, (PyTypeObject *)known.handle_state)) return Py_XDECREF(fresh), NULL;
        SLOT(fresh, slots.handle_state) = Py_NewRef(state);
        PyObject *record = PyTuple_Pack(4, how, origin, SLOT(state, slots.state_layout), SLOT(state, slots.state_origin));
        *(*moves)++ = (Moving){argument, fresh, record};
        return record ? fresh : (Py_DECREF(fresh), NULL);
    }
    Py_ssize_t moving = moving_in(argument, 0);
    if (moving < 1) return moving ? NULL : Py_NewRef(argument);
    PyObject *items = SLOT(argument, slots.composite_items), *all = PyTuple_New(PyTuple_GET_SIZE(items));
    for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(items); ++i) {
        PyObject *item = held_for(PyTuple_GET_ITEM(items, i), moves, how, origin);
        if (item) PyTuple_SET_ITEM(all, i, item);
        else Py_CLEAR(all);
    }
    PyObject *made = all ? new_object((PyObject *)Py_TYPE(argument)) : NULL;
    if (made) {
        SLOT(made, slots.composite_about) = Py_NewRef(SLOT(argument, slots.composite_about));
        SLOT(made, slots.composite_items) = Py_NewRef(all);
    }
    Py_XDECREF(all);
    return made;
}

/* Move the tensors among the arguments, of which there are `count`, into a tuple. Return NULL if they cannot be moved: nothing
 * has moved then. */
static PyObject *move_arguments(PyObject *const *arguments, Py_ssize_t n, Py_ssize_t count, PyObject *how, PyObject *origin) {
    Moving few[FEW] = {{NULL}}, *moves = count <= FEW ? few : PyMem_Calloc((size_t)count, sizeof *moves), *end = moves;
    PyObject *held = moves ? PyTuple_New(n) : PyErr_NoMemory();
    int good = held != NULL;
    for (Py_ssize_t i = 0; good && i < n; ++i) {
        PyObject *argument = held_for(arguments[i], &end, how, origin);
        if (argument) PyTuple_SET_ITEM(held, i, argument);
        else good = 0;
    }
    for (Moving *each = moves; good && each < end; ++each) { /* an allocation may have run code that moves one, and one may be there twice */
        good = SLOT(each->handle, slots.handle_state) == SLOT(each->fresh, slots.handle_state);
        for (Moving *before = moves; good && before < each; ++before) good = before->handle != each->handle;
    }
    for (Moving *each = moves; good && each < end; ++each) {
        each->record = exchange_slot(each->handle, slots.handle_moved, each->record);
        Py_DECREF(exchange_slot(each->handle, slots.handle_state, Py_NewRef(Py_None))); /* `held` has another reference */
    }
    for (Moving *each = moves; moves && each < end; ++each) Py_XDECREF(each->record);
    if (moves != few) PyMem_Free(moves);
    if (!good) Py_CLEAR(held);
    return held;
}

/* Return the op of a call of a pipeline with these positional arguments; NULL without an error, and with no effect, if
 * Python must make it. */
static PyObject *pipeline_op(PyObject *pipeline, PyObject *const *arguments, Py_ssize_t n) {
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < n; ++i) {
        Py_ssize_t moving = moving_in(arguments[i], 0);
        if (moving < 0) return NULL;
        count += moving;
    }
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
    if (then) held = move_arguments(arguments, n, count, how, origin);
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
