/* The reader of a call's inputs by the rows of a table.
 *
 * The reference is Guard.read, and the `read` of the kinds of leaves in dagpu.tracing.value_kinds. A refusal of one is
 * a refusal of the other, and what they return is equal; tests/compiled holds them to that.
 */
#include "rows.h"

/* ---- the leaves ------------------------------------------------------------------------------------------------ */

/* Return 1 if two objects are equal, 0 if not, -1 with an error. */
static int same_or_equal(PyObject *mine, PyObject *other) {
    return mine == other ? 1 : PyObject_RichCompareBool(mine, other, Py_EQ);
}

/* Return 1 if all memories are different but for the known pairs, 0 if not, -1 with an error. */
static int are_distinct(Rows *self, PyObject **states) {
    Py_ssize_t n = self->n_handles, found = 0;
    if (n < 2) return 1;
    if (n > 32) { /* as many comparisons as half of the square */
        PyObject *set = PySet_New(NULL);
        for (Py_ssize_t i = 0; set && i < n; ++i)
            if (PySet_Add(set, SLOT(states[i], slots.state_storage)) < 0) Py_CLEAR(set);
        if (!set) return -1;
        found = PySet_GET_SIZE(set);
        Py_DECREF(set);
        return found == self->memories;
    }
    for (Py_ssize_t i = 0; i < n; ++i) {
        Py_ssize_t before = 0;
        while (before < i && SLOT(states[before], slots.state_storage) != SLOT(states[i], slots.state_storage)) ++before;
        found += before == i;
    }
    return found == self->memories;
}

/* Read one handle. Put its state, which is borrowed from the handle, into `state`. */
static int read_handle(Handle *row, PyObject *handle, Call *call, PyObject **state) {
    if (!Py_IS_TYPE(handle, row->kind)) return 0;
    PyObject *found = SLOT(handle, slots.handle_state);
    if (!found || !Py_IS_TYPE(found, (PyTypeObject *)known.handle_state)) return 0;
    PyObject *storage = SLOT(found, slots.state_storage), *layout = SLOT(found, slots.state_layout);
    if (!storage || !layout || !PyObject_TypeCheck(storage, (PyTypeObject *)known.storage)) return 0;
    *state = Py_NewRef(found); /* code of Python may move the handle from here on */
    PyObject *block = SLOT(storage, slots.storage_memory), *nbytes = SLOT(storage, slots.storage_nbytes);
    if (!block || block == Py_None || !nbytes || SLOT(storage, slots.storage_device) != row->device) return 0;
    Py_INCREF(block);
    PyList_SetItem(call->memory, row->buffer, block);
    int good = same_or_equal(nbytes, row->nbytes);
    if (good == 1) good = same_or_equal(layout, row->layout);
    if (good != 1) return good;
    PyObject *graph = SLOT(storage, slots.storage_graph);
    if (graph != known.no_graph) {
        if (!graph) return 0;
        Py_INCREF(graph);
        PyObject *writes = PyObject_CallNoArgs(graph);
        Py_DECREF(graph);
        if (!writes) return -1;
        Py_DECREF(writes);
        if (writes != Py_None) return 0;
    }
    if (row->lock >= 0) {
        PyObject *lock = SLOT(storage, slots.storage_lock);
        if (!lock || !Py_IS_TYPE(lock, (PyTypeObject *)known.lock)) return 0;
        call_add_lock(call, lock, row->lock);
    }
    if (row->moves >= 0) call_add_move(call, row->moves, handle, found);
    return 1;
}

static int read_handles(Rows *self, PyObject **values, Call *call) {
    Py_ssize_t n = self->n_handles;
    PyObject *few[FEW] = {NULL}, **states = n <= FEW ? few : PyMem_Calloc(n, sizeof(PyObject *));
    if (!states) {
        PyErr_NoMemory();
        return -1;
    }
    int good = 1;
    for (Py_ssize_t i = 0; good == 1 && i < n; ++i)
        good = read_handle(&self->handles[i], values[self->handles[i].at], call, &states[i]);
    for (Py_ssize_t i = 0; good == 1 && i < self->n_pairs; ++i)
        good = SLOT(states[self->pairs[i].number], slots.state_storage)
            == SLOT(states[self->pairs[i].first], slots.state_storage);
    for (Py_ssize_t i = 0; good == 1 && i < self->n_cuts; ++i) {
        Cut *row = &self->cuts[i];
        PyObject *matches = PyObject_CallFunctionObjArgs(
            known.cut_matches, values[row->at], SLOT(states[row->number], slots.state_kind), row->cut, NULL);
        good = matches ? matches == Py_True : -1;
        Py_XDECREF(matches);
    }
    for (Py_ssize_t i = 0; good == 1 && i < self->n_borrows; ++i) {
        PyObject *lender = SLOT(states[self->borrows[i]], slots.state_lender);
        if (!lender || lender == Py_None) continue;
        PyObject *lent = PyObject_GetAttr(lender, s_state);
        good = lent ? lent != Py_None : -1;
        Py_XDECREF(lent);
    }
    if (good == 1) good = are_distinct(self, states);
    for (Py_ssize_t i = 0; i < n; ++i) Py_XDECREF(states[i]);
    if (states != few) PyMem_Free(states);
    return good;
}

/* Return 1 if a number is one of the kind that the kernel wants and lies within its limits. */
static int is_in_range(Number *row, PyObject *number) {
    if (row->kind != row->wanted) return 0;
    if (row->is_quick && row->kind == &PyFloat_Type) {
        double value = PyFloat_AS_DOUBLE(number);
        return row->from <= value && value <= row->to;
    }
    if (row->is_quick) {
        int overflow;
        long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
        return !overflow && row->least <= value && value <= row->most;
    }
    int good = PyObject_RichCompareBool(row->low, number, Py_LE);
    return good == 1 ? PyObject_RichCompareBool(number, row->high, Py_LE) : good;
}

static int read_number(Number *row, PyObject *number, Call *call) {
    if (!Py_IS_TYPE(number, row->kind)) return 0;
    int good = is_in_range(row, number);
    if (good < 0) return -1;
    if (good) {
        PyList_SetItem(call->memory, row->cell, Py_NewRef(number));
    } else if (row->check) {
        PyObject *value = PyObject_CallOneArg(row->check, number);
        if (!value) {
            if (!PyErr_ExceptionMatches(known.argument_error)) return -1;
            PyErr_Clear();
            return 0;
        }
        PyList_SetItem(call->memory, row->cell, value);
    }
    return 1;
}

static int read_array(Array *row, PyObject *array, Call *call) {
    if (!Py_IS_TYPE(array, (PyTypeObject *)known.ndarray)) return 0;
    PyObject *shape = PyObject_GetAttr(array, s_shape), *dtype = NULL;
    int good = shape ? PyObject_RichCompareBool(shape, row->shape, Py_EQ) : -1;
    if (good == 1) {
        dtype = PyObject_GetAttr(array, s_dtype);
        if (!dtype) good = -1;
        else if (dtype != row->element) {
            PyObject *same = PyObject_CallFunctionObjArgs(known.same_element, dtype, row->element, NULL);
            good = same ? same == Py_True : -1;
            Py_XDECREF(same);
        }
    }
    if (good == 1) PyList_SetItem(call->memory, row->cell, Py_NewRef(array));
    Py_XDECREF(shape);
    Py_XDECREF(dtype);
    return good;
}

/* ---- containers, nodes and tokens ------------------------------------------------------------------------------ */

/* Return 1 if a node was built at the place of a row, 0 if not, -1 with an error. */
static int is_built_there(Inner *row, PyObject *node) {
    if (!row->code) return 1;
    PyObject *origin = PyObject_GetAttr(node, s_origin);
    if (!origin) return -1;
    int good = origin == row->code;
    if (!good && origin != Py_None && row->code != Py_None && PyTuple_Check(origin) && PyTuple_GET_SIZE(origin) == 2)
        good = PyTuple_GET_ITEM(origin, 0) == row->code
            ? same_or_equal(PyTuple_GET_ITEM(origin, 1), row->offset) : 0;
    Py_DECREF(origin);
    return good;
}

/* Add the items of one container or node to the values, of which there are `count`. */
static int find_items(Rows *self, Inner *row, PyObject **values, Py_ssize_t *count) {
    PyObject *value = values[row->at];
    if (!Py_IS_TYPE(value, row->kind)) return 0;
    int good = is_built_there(row, value);
    if (good != 1) return good;
    PyObject *items = row->items ? PyObject_CallOneArg(row->items, value) : Py_NewRef(value);
    if (!items) return -1;
    if (items == Py_None) {
        Py_DECREF(items);
        return 0;
    }
    PyObject *fast = PySequence_Fast(items, "the items of a container are no sequence");
    Py_DECREF(items);
    if (!fast) return -1;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
    good = *count + n == row->end && row->end <= self->n_values;
    for (Py_ssize_t i = 0; good && i < n; ++i) values[(*count)++] = Py_NewRef(PySequence_Fast_GET_ITEM(fast, i));
    Py_DECREF(fast);
    return good;
}

static int accepts(Rows *self, PyObject **values) {
    for (Py_ssize_t i = 0; i < self->n_same; ++i)
        if (values[self->same[i].at] != self->same[i].wanted) return 0;
    for (Py_ssize_t i = 0; i < self->n_equal; ++i) {
        PyObject *value = values[self->equal[i].at];
        if (!Py_IS_TYPE(value, self->equal[i].kind)) return 0;
        int different = PyObject_RichCompareBool(value, self->equal[i].wanted, Py_NE);
        if (different) return different < 0 ? -1 : 0;
    }
    for (Py_ssize_t i = 0; i < self->n_checks; ++i) {
        PyObject *good = PyObject_CallFunctionObjArgs(
            self->checks[i].accepts, values[self->checks[i].at], self->checks[i].fact, NULL);
        if (!good) return -1;
        int truth = PyObject_IsTrue(good);
        Py_DECREF(good);
        if (truth != 1) return truth;
    }
    for (Py_ssize_t i = 0; i < self->n_again; ++i)
        if (values[self->again[i].at] != values[self->again[i].before]) return 0;
    if (self->n_different > 32) {
        PyObject *ids = PySet_New(NULL);
        for (Py_ssize_t i = 0; ids && i < self->n_different; ++i) {
            PyObject *id = PyLong_FromVoidPtr(values[self->different[i]]);
            if (!id || PySet_Add(ids, id) < 0) Py_CLEAR(ids);
            Py_XDECREF(id);
        }
        if (!ids) return -1;
        int good = PySet_GET_SIZE(ids) == self->n_different;
        Py_DECREF(ids);
        return good;
    }
    for (Py_ssize_t i = 1; i < self->n_different; ++i)
        for (Py_ssize_t k = 0; k < i; ++k)
            if (values[self->different[i]] == values[self->different[k]]) return 0;
    return 1;
}

/* ---- the reader ------------------------------------------------------------------------------------------------ */

static int read_values(Rows *self, PyObject **values, Call *call) {
    int good = self->is_plain ? 1 : accepts(self, values);
    if (good != 1) return good;
    if (call_reserve(call, self->n_handles) < 0) return -1;
    Py_ssize_t n = self->is_whole ? self->flat : self->n_places;
    call->memory = PyList_New(self->buffers);
    call->leaves = PyList_New(n);
    if (!call->memory || !call->leaves) return -1;
    for (Py_ssize_t i = 0; i < self->buffers; ++i) PyList_SET_ITEM(call->memory, i, Py_NewRef(Py_None));
    for (Py_ssize_t i = 0; i < n; ++i)
        PyList_SET_ITEM(call->leaves, i, Py_NewRef(values[self->is_whole ? i : self->places[i]]));
    good = read_handles(self, values, call);
    for (Py_ssize_t i = 0; good == 1 && i < self->n_numbers; ++i)
        good = read_number(&self->numbers[i], values[self->numbers[i].at], call);
    for (Py_ssize_t i = 0; good == 1 && i < self->n_arrays; ++i)
        good = read_array(&self->arrays[i], values[self->arrays[i].at], call);
    return good;
}

int rows_read(PyObject *rows, PyObject *first, PyObject *named, Call *call) {
    Rows *self = (Rows *)rows;
    int good = 0;
    if (self->flat >= 0) {
        int has_names = PyObject_IsTrue(named);
        if (has_names) return has_names < 0 ? -1 : 0;
        PyObject *arguments = PySequence_Fast(first, "the arguments are no sequence");
        if (!arguments) return -1;
        if (PySequence_Fast_GET_SIZE(arguments) == self->flat)
            good = read_values(self, PySequence_Fast_ITEMS(arguments), call);
        Py_DECREF(arguments);
    } else {
        PyObject *few[64], **values = self->n_values <= 64 ? few : PyMem_New(PyObject *, self->n_values);
        if (!values) {
            PyErr_NoMemory();
            return -1;
        }
        Py_ssize_t count = 2;
        values[0] = Py_NewRef(first);
        values[1] = Py_NewRef(named);
        good = 1;
        for (Py_ssize_t i = 0; good == 1 && i < self->n_inner; ++i) good = find_items(self, &self->inner[i], values, &count);
        if (good == 1) good = read_values(self, values, call);
        while (count) Py_DECREF(values[--count]);
        if (values != few) PyMem_Free(values);
    }
    if (good != 1) call_clear(call);
    return good;
}

PyObject *rows_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *names) {
    Py_ssize_t n = PyVectorcall_NARGS(flags);
    if (n != 2 || (names && PyTuple_GET_SIZE(names))) {
        PyErr_SetString(PyExc_TypeError, "Rows takes the arguments and the keyword arguments of a call");
        return NULL;
    }
    Call call;
    call_init(&call);
    int good = rows_read(self, args[0], args[1], &call);
    if (good != 1) return good ? NULL : Py_NewRef(Py_None);
    PyObject *reading = call_as_reading(&call);
    call_clear(&call);
    return reading;
}
