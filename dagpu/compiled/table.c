/* The table of a guard in C: the rows that `Guard` has, with each index checked once. */
#include "rows.h"

/* Get an attribute that is kept alive by `held`. */
static PyObject *attribute(Rows *self, PyObject *guard, const char *name) {
    PyObject *found = PyObject_GetAttrString(guard, name);
    if (!found) return NULL;
    int failed = PyList_Append(self->held, found);
    Py_DECREF(found);
    return failed < 0 ? NULL : found;
}

/* Get a list or dict as a tuple that is kept alive. */
static PyObject *items_of(Rows *self, PyObject *sequence) {
    PyObject *found = sequence ? PySequence_Tuple(sequence) : NULL;
    if (!found) return NULL;
    int failed = PyList_Append(self->held, found);
    Py_DECREF(found);
    return failed < 0 ? NULL : found;
}

static PyObject *rows_of(Rows *self, PyObject *guard, const char *name) {
    return items_of(self, attribute(self, guard, name));
}

static Py_ssize_t index_of(PyObject *row, Py_ssize_t at) { return PyLong_AsSsize_t(PyTuple_GET_ITEM(row, at)); }

/* Get a row of this length; an error is set for anything else. */
static PyObject *row_of(PyObject *rows, Py_ssize_t at, Py_ssize_t length) {
    PyObject *row = PyTuple_GET_ITEM(rows, at);
    if (PyTuple_Check(row) && PyTuple_GET_SIZE(row) == length) return row;
    PyErr_Format(PyExc_TypeError, "%R is no row of %zd facts", row, length);
    return NULL;
}

#define ALLOCATE(self, name, count) \
    (((self)->n_##name = (count)), ((self)->name = PyMem_Calloc((size_t)(count) + 1, sizeof *(self)->name)))

static PyTypeObject *type_or_null(PyObject *value) { return PyType_Check(value) ? (PyTypeObject *)value : NULL; }

static int add_handles(Rows *self, PyObject *group) {
    PyObject *rows = rows_of(self, group, "rows"), *pairs = rows_of(self, group, "pairs");
    PyObject *cuts = rows_of(self, group, "cuts"), *borrows = rows_of(self, group, "borrows");
    PyObject *memories = attribute(self, group, "memories");
    if (!rows || !pairs || !cuts || !borrows || !memories) return -1;
    self->memories = PyLong_AsSsize_t(memories);
    if (!ALLOCATE(self, handles, PyTuple_GET_SIZE(rows)) || !ALLOCATE(self, pairs, PyTuple_GET_SIZE(pairs))
        || !ALLOCATE(self, cuts, PyTuple_GET_SIZE(cuts)) || !ALLOCATE(self, borrows, PyTuple_GET_SIZE(borrows)))
        return PyErr_NoMemory(), -1;
    for (Py_ssize_t i = 0; i < self->n_handles; ++i) {
        PyObject *row = row_of(rows, i, 8);
        if (!row) return -1;
        Handle *handle = &self->handles[i];
        PyObject *lock = PyTuple_GET_ITEM(row, 6);
        handle->at = index_of(row, 0);
        handle->kind = type_or_null(PyTuple_GET_ITEM(row, 1));
        if (!handle->kind || !PyType_IsSubtype(handle->kind, (PyTypeObject *)known.handle_base))
            return PyErr_Format(PyExc_TypeError, "%R is no class of handles", PyTuple_GET_ITEM(row, 1)), -1;
        handle->layout = PyTuple_GET_ITEM(row, 2);
        handle->device = PyTuple_GET_ITEM(row, 3);
        handle->nbytes = PyTuple_GET_ITEM(row, 4);
        handle->buffer = index_of(row, 5);
        if (handle->buffer < 0) handle->buffer = self->buffers - 1;
        handle->lock = lock == Py_None ? -1 : lock == Py_True;
        handle->moves = index_of(row, 7);
    }
    for (Py_ssize_t i = 0; i < self->n_pairs; ++i) {
        PyObject *row = row_of(pairs, i, 2);
        if (!row) return -1;
        self->pairs[i] = (Alias){index_of(row, 0), index_of(row, 1)};
    }
    for (Py_ssize_t i = 0; i < self->n_cuts; ++i) {
        PyObject *row = row_of(cuts, i, 3);
        if (!row) return -1;
        self->cuts[i] = (Cut){index_of(row, 0), index_of(row, 1), PyTuple_GET_ITEM(row, 2)};
    }
    for (Py_ssize_t i = 0; i < self->n_borrows; ++i) self->borrows[i] = index_of(borrows, i);
    return PyErr_Occurred() ? -1 : 0;
}

/* The limits of a number as numbers of C, if they are such. */
static void set_limits(Number *number) {
    if (number->wanted == &PyFloat_Type) {
        number->from = PyFloat_AsDouble(number->low);
        number->to = PyFloat_AsDouble(number->high);
        number->is_quick = 1;
    } else if (number->wanted == &PyLong_Type && PyLong_Check(number->low) && PyLong_Check(number->high)) {
        int below, above;
        number->least = PyLong_AsLongLongAndOverflow(number->low, &below);
        number->most = PyLong_AsLongLongAndOverflow(number->high, &above);
        number->is_quick = !below && !above;
    }
}

static int add_numbers(Rows *self, PyObject *group) {
    PyObject *rows = items_of(self, group);
    if (!rows) return -1;
    if (!ALLOCATE(self, numbers, PyTuple_GET_SIZE(rows))) return PyErr_NoMemory(), -1;
    for (Py_ssize_t i = 0; i < self->n_numbers; ++i) {
        PyObject *row = row_of(rows, i, 7);
        if (!row) return -1;
        Number *number = &self->numbers[i];
        number->at = index_of(row, 0);
        number->kind = type_or_null(PyTuple_GET_ITEM(row, 1));
        number->cell = index_of(row, 2);
        if (number->cell < 0) number->cell = self->buffers - 1;
        number->check = PyTuple_GET_ITEM(row, 3) == Py_None ? NULL : PyTuple_GET_ITEM(row, 3);
        number->wanted = type_or_null(PyTuple_GET_ITEM(row, 4));
        number->low = PyTuple_GET_ITEM(row, 5);
        number->high = PyTuple_GET_ITEM(row, 6);
        if (!number->kind) return PyErr_Format(PyExc_TypeError, "%R is no row of a number", row), -1;
        set_limits(number);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int add_arrays(Rows *self, PyObject *group) {
    PyObject *rows = items_of(self, group);
    if (!rows) return -1;
    if (!ALLOCATE(self, arrays, PyTuple_GET_SIZE(rows))) return PyErr_NoMemory(), -1;
    for (Py_ssize_t i = 0; i < self->n_arrays; ++i) {
        PyObject *row = row_of(rows, i, 4);
        if (!row) return -1;
        Array *array = &self->arrays[i];
        *array = (Array){index_of(row, 0), index_of(row, 3), PyTuple_GET_ITEM(row, 1), PyTuple_GET_ITEM(row, 2)};
        if (array->cell < 0) array->cell = self->buffers - 1;
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* Add the rows of each kind of leaves. */
static int add_leaves(Rows *self, PyObject *guard, PyObject *kinds) {
    PyObject *rows = attribute(self, guard, "leaf_rows"), *kind, *group;
    if (!rows || !PyDict_Check(rows)) return -1;
    Py_ssize_t at = 0;
    while (PyDict_Next(rows, &at, &kind, &group)) {
        int failed = kind == PyTuple_GET_ITEM(kinds, 0) ? add_handles(self, group)
            : kind == PyTuple_GET_ITEM(kinds, 1)        ? add_numbers(self, group)
            : kind == PyTuple_GET_ITEM(kinds, 2)        ? add_arrays(self, group)
                                                        : (PyErr_Format(PyExc_TypeError, "%R is no known kind", kind), -1);
        if (failed < 0) return -1;
    }
    return 0;
}

static int add_inner(Rows *self, PyObject *guard) {
    PyObject *rows = rows_of(self, guard, "inner");
    if (!rows || !ALLOCATE(self, inner, PyTuple_GET_SIZE(rows))) return -1;
    self->n_values = 2;
    for (Py_ssize_t i = 0; i < self->n_inner; ++i) {
        PyObject *row = row_of(rows, i, 6);
        if (!row) return -1;
        PyObject *items = PyTuple_GET_ITEM(row, 3), *code = PyTuple_GET_ITEM(row, 4);
        Inner *inner = &self->inner[i];
        inner->at = index_of(row, 0);
        inner->kind = type_or_null(PyTuple_GET_ITEM(row, 1));
        inner->end = index_of(row, 2);
        inner->items = items == Py_None ? NULL : items;
        inner->code = code == Py_Ellipsis ? NULL : code;
        inner->offset = PyTuple_GET_ITEM(row, 5);
        if (!inner->kind) return PyErr_Format(PyExc_TypeError, "%R is no row of a container", row), -1;
        if (inner->end > self->n_values) self->n_values = inner->end;
    }
    return 0;
}

static int add_tokens(Rows *self, PyObject *guard) {
    PyObject *same = rows_of(self, guard, "same"), *equal = rows_of(self, guard, "equal");
    PyObject *checks = rows_of(self, guard, "checks"), *again = rows_of(self, guard, "again");
    if (!same || !equal || !checks || !again) return -1;
    if (!ALLOCATE(self, same, PyTuple_GET_SIZE(same)) || !ALLOCATE(self, equal, PyTuple_GET_SIZE(equal))
        || !ALLOCATE(self, checks, PyTuple_GET_SIZE(checks)) || !ALLOCATE(self, again, PyTuple_GET_SIZE(again)))
        return PyErr_NoMemory(), -1;
    for (Py_ssize_t i = 0; i < self->n_same; ++i) {
        PyObject *row = row_of(same, i, 2);
        if (!row) return -1;
        self->same[i] = (Same){index_of(row, 0), PyTuple_GET_ITEM(row, 1)};
    }
    for (Py_ssize_t i = 0; i < self->n_equal; ++i) {
        PyObject *row = row_of(equal, i, 3);
        if (!row) return -1;
        self->equal[i] = (Equal){index_of(row, 0), type_or_null(PyTuple_GET_ITEM(row, 1)), PyTuple_GET_ITEM(row, 2)};
    }
    for (Py_ssize_t i = 0; i < self->n_checks; ++i) {
        PyObject *row = row_of(checks, i, 3);
        PyObject *how = row ? attribute(self, PyTuple_GET_ITEM(row, 1), "accepts") : NULL;
        if (!how) return -1;
        self->checks[i] = (Check){index_of(row, 0), how, PyTuple_GET_ITEM(row, 2)};
    }
    for (Py_ssize_t i = 0; i < self->n_again; ++i) {
        PyObject *row = row_of(again, i, 2);
        if (!row) return -1;
        self->again[i] = (Again){index_of(row, 0), index_of(row, 1)};
    }
    return 0;
}

static int add_places(Rows *self, PyObject *guard) {
    PyObject *different = rows_of(self, guard, "different"), *leaves = attribute(self, guard, "leaf_places");
    PyObject *flat = attribute(self, guard, "flat"), *buffers = attribute(self, guard, "buffers");
    PyObject *plain = attribute(self, guard, "is_plain");
    if (!different || !leaves || !flat || !buffers || !plain) return -1;
    self->flat = PyLong_AsSsize_t(flat);
    self->buffers = PyLong_AsSsize_t(buffers);
    self->is_plain = plain == Py_True;
    self->is_whole = leaves == Py_None;
    PyObject *places = self->is_whole ? PyTuple_New(0) : items_of(self, leaves);
    if (!places) return -1;
    if (self->is_whole) Py_DECREF(places); /* the empty tuple is immortal, or held by others */
    if (!ALLOCATE(self, different, PyTuple_GET_SIZE(different))
        || !ALLOCATE(self, places, self->is_whole ? 0 : PyTuple_GET_SIZE(places)))
        return PyErr_NoMemory(), -1;
    for (Py_ssize_t i = 0; i < self->n_different; ++i) self->different[i] = index_of(different, i);
    for (Py_ssize_t i = 0; i < self->n_places; ++i) self->places[i] = index_of(places, i);
    return PyErr_Occurred() ? -1 : 0;
}

/* Return true if each index of a row is one of a value, a buffer, a leaf or a handle. */
static int is_sound(Rows *self) {
    Py_ssize_t values = self->flat >= 0 ? self->flat : self->n_values;
    Py_ssize_t leaves = self->is_whole ? self->flat : self->n_places;
#define WITHIN(index, end) ((index) >= 0 && (index) < (end))
    for (Py_ssize_t i = 0, count = 2; i < self->n_inner; ++i) {
        if (!WITHIN(self->inner[i].at, count) || self->inner[i].end < count) return 0;
        count = self->inner[i].end;
    }
    for (Py_ssize_t i = 0; i < self->n_same; ++i) if (!WITHIN(self->same[i].at, values)) return 0;
    for (Py_ssize_t i = 0; i < self->n_equal; ++i) if (!WITHIN(self->equal[i].at, values) || !self->equal[i].kind) return 0;
    for (Py_ssize_t i = 0; i < self->n_checks; ++i) if (!WITHIN(self->checks[i].at, values)) return 0;
    for (Py_ssize_t i = 0; i < self->n_again; ++i)
        if (!WITHIN(self->again[i].at, values) || !WITHIN(self->again[i].before, values)) return 0;
    for (Py_ssize_t i = 0; i < self->n_different; ++i) if (!WITHIN(self->different[i], values)) return 0;
    for (Py_ssize_t i = 0; i < self->n_places; ++i) if (!WITHIN(self->places[i], values)) return 0;
    for (Py_ssize_t i = 0; i < self->n_handles; ++i)
        if (!WITHIN(self->handles[i].at, values) || !WITHIN(self->handles[i].buffer, self->buffers)
            || !WITHIN(self->handles[i].moves + 1, leaves + 1)) return 0;
    for (Py_ssize_t i = 0; i < self->n_pairs; ++i)
        if (!WITHIN(self->pairs[i].number, self->n_handles) || !WITHIN(self->pairs[i].first, self->n_handles)) return 0;
    for (Py_ssize_t i = 0; i < self->n_cuts; ++i)
        if (!WITHIN(self->cuts[i].number, self->n_handles) || !WITHIN(self->cuts[i].at, values)) return 0;
    for (Py_ssize_t i = 0; i < self->n_borrows; ++i) if (!WITHIN(self->borrows[i], self->n_handles)) return 0;
    for (Py_ssize_t i = 0; i < self->n_numbers; ++i)
        if (!WITHIN(self->numbers[i].at, values) || !WITHIN(self->numbers[i].cell, self->buffers)) return 0;
    for (Py_ssize_t i = 0; i < self->n_arrays; ++i)
        if (!WITHIN(self->arrays[i].at, values) || !WITHIN(self->arrays[i].cell, self->buffers)) return 0;
#undef WITHIN
    return 1;
}

typedef struct {
    Rows rows;
    vectorcallfunc call;
} CallableRows;

static PyObject *rows_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *guard, *kinds;
    if (!PyArg_ParseTuple(args, "OO!:Rows", &guard, &PyTuple_Type, &kinds)) return NULL;
    if (PyTuple_GET_SIZE(kinds) != 3) {
        PyErr_SetString(PyExc_TypeError, "Rows takes the kinds of handles, of numbers and of arrays");
        return NULL;
    }
    if (must_know(&known.handle_base, &known.cut_matches, "Rows") < 0) return NULL;
    Rows *self = (Rows *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    ((CallableRows *)self)->call = rows_call;
    self->held = PyList_New(0);
    if (!self->held || add_places(self, guard) < 0 || add_inner(self, guard) < 0 || add_tokens(self, guard) < 0
        || add_leaves(self, guard, kinds) < 0)
        goto failed;
    if (!is_sound(self)) {
        PyErr_SetString(PyExc_ValueError, "a row of the guard names a value, a buffer or a leaf that does not exist");
        goto failed;
    }
    return (PyObject *)self;
failed:
    if (!PyErr_Occurred()) PyErr_NoMemory();
    Py_DECREF(self);
    return NULL;
}

static int rows_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((Rows *)self)->held);
    return 0;
}

/* No reader is under way: its caller refers to the rows, so they are no garbage. */
static int rows_clear(PyObject *self) {
    Rows *rows = (Rows *)self;
    rows->flat = 0;
    rows->n_inner = rows->n_same = rows->n_equal = rows->n_checks = rows->n_again = rows->n_different = 0;
    rows->n_places = rows->n_handles = rows->n_pairs = rows->n_cuts = rows->n_borrows = rows->n_numbers = 0;
    rows->n_arrays = 0;
    Py_CLEAR(rows->held);
    return 0;
}

static void rows_dealloc(PyObject *self) {
    Rows *rows = (Rows *)self;
    PyObject_GC_UnTrack(self);
    rows_clear(self);
    void *all[] = {rows->inner, rows->same, rows->equal, rows->checks, rows->again, rows->different, rows->places,
                   rows->borrows, rows->handles, rows->pairs, rows->cuts, rows->numbers, rows->arrays};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) PyMem_Free(all[i]);
    Py_TYPE(self)->tp_free(self);
}

PyTypeObject RowsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dagpu.compiled._reader.Rows",
    .tp_doc = "Rows(guard, kinds): reads the inputs of a call as `Guard.read` does, by the rows of a guard.",
    .tp_basicsize = sizeof(CallableRows),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = rows_new,
    .tp_dealloc = rows_dealloc,
    .tp_traverse = rows_traverse,
    .tp_clear = rows_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(CallableRows, call),
};
