/* The rows of a table, as `Guard` has them, and the reader of a call's inputs by these rows.
 *
 * The reference is Guard.read, and the `read` of the kinds of leaves in dagpu.tracing.value_kinds. A refusal of one is
 * a refusal of the other, and what they return is equal; tests/compiled holds them to that.
 */
#include "compiled.h"

typedef struct {
    Py_ssize_t at, end; /* the container or node, and the number of values once its items are among them */
    PyTypeObject *kind;
    PyObject *items;    /* a function that returns the items; NULL for a tuple or list itself */
    PyObject *code;     /* the code that built a node; NULL for any */
    PyObject *offset;
} Inner;
typedef struct { Py_ssize_t at; PyObject *wanted; } Same;
typedef struct { Py_ssize_t at; PyTypeObject *kind; PyObject *wanted; } Equal;
typedef struct { Py_ssize_t at; PyObject *accepts, *fact; } Check;
typedef struct { Py_ssize_t at, before; } Again;
typedef struct {
    Py_ssize_t at, buffer, moves;
    PyTypeObject *kind;
    PyObject *layout, *device, *nbytes;
    int lock; /* 1 for writing, 0 for reading, -1 for none */
} Handle;
typedef struct { Py_ssize_t number, first; } Alias;
typedef struct { Py_ssize_t number, at; PyObject *cut; } Cut;
typedef struct {
    Py_ssize_t at, cell;
    PyTypeObject *kind, *wanted; /* `wanted` is NULL where only the check can tell */
    PyObject *check, *low, *high; /* `check` is NULL for a number that no kernel gets */
    int is_quick;                 /* the limits of an int fit into 64 bits, or it is a float */
    int64_t least, most;
    double from, to;
} Number;
typedef struct { Py_ssize_t at, cell; PyObject *element, *shape; } Array;

typedef struct {
    PyObject_HEAD
    PyObject *held; /* all objects that the rows refer to */
    Py_ssize_t flat, buffers, n_values;
    int is_whole, is_plain; /* all values are leaves; nothing but leaves has a condition */
    Py_ssize_t n_inner, n_same, n_equal, n_checks, n_again, n_different, n_places, n_handles, n_pairs, n_cuts, n_borrows,
        n_numbers, n_arrays, memories;
    Inner *inner;
    Same *same;
    Equal *equal;
    Check *checks;
    Again *again;
    Py_ssize_t *different, *places, *borrows;
    Handle *handles;
    Alias *pairs;
    Cut *cuts;
    Number *numbers;
    Array *arrays;
} Rows;

/* ---- calls ---------------------------------------------------------------------------------------------------- */

void call_init(Call *call) {
    call->memory = call->leaves = NULL;
    call->n_locks = call->n_moves = 0;
    call->room = FEW;
    call->locks = call->few_locks;
    call->moves = call->few_moves;
    call->begun = 0;
}

int call_reserve(Call *call, Py_ssize_t handles) {
    if (handles <= call->room) return 0;
    LockUse *locks = PyMem_New(LockUse, handles);
    Move *moves = PyMem_New(Move, handles);
    if (!locks || !moves) {
        PyMem_Free(locks);
        PyMem_Free(moves);
        PyErr_NoMemory();
        return -1;
    }
    call->locks = locks;
    call->moves = moves;
    call->room = handles;
    return 0;
}

void call_clear(Call *call) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    Py_CLEAR(call->memory);
    Py_CLEAR(call->leaves);
    while (call->n_locks) Py_DECREF(call->locks[--call->n_locks].lock);
    while (call->n_moves) {
        Move *move = &call->moves[--call->n_moves];
        Py_DECREF(move->handle);
        Py_DECREF(move->state);
        Py_XDECREF(move->fresh);
        Py_XDECREF(move->record);
    }
    if (call->locks != call->few_locks) {
        PyMem_Free(call->locks);
        PyMem_Free(call->moves);
    }
    call_init(call);
    PyErr_Restore(type, value, trace);
}

static void call_add_lock(Call *call, PyObject *lock, int exclusive) {
    call->locks[call->n_locks++] = (LockUse){Py_NewRef(lock), exclusive, NULL};
}

static void call_add_move(Call *call, Py_ssize_t leaf, PyObject *handle, PyObject *state) {
    call->moves[call->n_moves++] = (Move){leaf, Py_NewRef(handle), Py_NewRef(state), NULL, NULL};
}

PyObject *call_as_reading(Call *call) {
    PyObject *writes = PyList_New(0), *reads = PyList_New(0), *moved = PyList_New(0), *reading = NULL;
    if (!writes || !reads || !moved) goto done;
    for (Py_ssize_t i = 0; i < call->n_locks; ++i)
        if (PyList_Append(call->locks[i].exclusive ? writes : reads, call->locks[i].lock) < 0) goto done;
    for (Py_ssize_t i = 0; i < call->n_moves; ++i) {
        PyObject *each = Py_BuildValue("nOO", call->moves[i].leaf, call->moves[i].handle, call->moves[i].state);
        if (!each || PyList_Append(moved, each) < 0) {
            Py_XDECREF(each);
            goto done;
        }
        Py_DECREF(each);
    }
    reading = PyTuple_Pack(5, call->memory, call->leaves, writes, reads, moved);
done:
    Py_XDECREF(writes);
    Py_XDECREF(reads);
    Py_XDECREF(moved);
    return reading;
}

int call_from_reading(Call *call, PyObject *reading) {
    if (!PyTuple_Check(reading) || PyTuple_GET_SIZE(reading) != 5) goto wrong;
    for (Py_ssize_t i = 0; i < 5; ++i)
        if (!PyList_CheckExact(PyTuple_GET_ITEM(reading, i))) goto wrong;
    PyObject *writes = PyTuple_GET_ITEM(reading, 2), *reads = PyTuple_GET_ITEM(reading, 3);
    PyObject *moved = PyTuple_GET_ITEM(reading, 4);
    Py_ssize_t most = PyList_GET_SIZE(writes) + PyList_GET_SIZE(reads);
    if (call_reserve(call, Py_MAX(most, PyList_GET_SIZE(moved))) < 0) return -1;
    call->memory = Py_NewRef(PyTuple_GET_ITEM(reading, 0));
    call->leaves = Py_NewRef(PyTuple_GET_ITEM(reading, 1));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(writes); ++i)
        if (!Py_IS_TYPE(PyList_GET_ITEM(writes, i), (PyTypeObject *)known.lock)) goto wrong;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(reads); ++i)
        if (!Py_IS_TYPE(PyList_GET_ITEM(reads, i), (PyTypeObject *)known.lock)) goto wrong;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(writes); ++i) call_add_lock(call, PyList_GET_ITEM(writes, i), 1);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(reads); ++i) call_add_lock(call, PyList_GET_ITEM(reads, i), 0);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(moved); ++i) {
        PyObject *each = PyList_GET_ITEM(moved, i);
        if (!PyTuple_Check(each) || PyTuple_GET_SIZE(each) != 3) goto wrong;
        PyObject *handle = PyTuple_GET_ITEM(each, 1), *state = PyTuple_GET_ITEM(each, 2);
        if (!PyObject_TypeCheck(handle, (PyTypeObject *)known.handle_base)) goto wrong;
        if (!Py_IS_TYPE(state, (PyTypeObject *)known.handle_state)) goto wrong;
        Py_ssize_t leaf = PyLong_AsSsize_t(PyTuple_GET_ITEM(each, 0));
        if (leaf < 0 || leaf >= PyList_GET_SIZE(call->leaves)) goto wrong;
        call_add_move(call, leaf, handle, state);
    }
    return 0;
wrong:
    if (!PyErr_Occurred()) PyErr_Format(PyExc_TypeError, "%R is not what a reader returns", reading);
    return -1;
}

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
    PyObject *shape = PyObject_GetAttrString(array, "shape"), *dtype = NULL;
    int good = shape ? PyObject_RichCompareBool(shape, row->shape, Py_EQ) : -1;
    if (good == 1) {
        dtype = PyObject_GetAttrString(array, "dtype");
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
    PyObject *origin = PyObject_GetAttrString(node, "origin");
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

static PyObject *rows_call(PyObject *self, PyObject *const *args, size_t flags, PyObject *names) {
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

/* ---- the table of a guard -------------------------------------------------------------------------------------- */

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
