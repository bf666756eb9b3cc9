/* A block of device memory for a run: the one that was dropped last, or an idle one of the same size.
 *
 * The reference is Pool.take in dagpu.backends.cuda.resources.pools. Here no lock is taken: while C alone runs, no other
 * thread is in the pool, unless one holds its lock. What is created is created before the pool is changed. Anything else
 * than a block of exactly this size is left to Python.
 */
#include "compiled.h"

static PyObject *s_locked, *s_popleft, *s_popitem, *none_yet;

int pool_ready(void) {
    struct { PyObject **at; const char *text; } all[] = {{&s_locked, "locked"}, {&s_popleft, "popleft"}, {&s_popitem, "popitem"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
        if (!(*all[i].at = PyUnicode_InternFromString(all[i].text))) return -1;
    return (none_yet = PyTuple_Pack(3, zero, zero, zero)) ? 0 : -1;
}

static int is_locked(PyObject *pool) {
    PyObject *locked = PyObject_CallMethodNoArgs(SLOT(pool, slots.pool_lock), s_locked);
    Py_XDECREF(locked);
    return locked ? locked == Py_True : -1;
}

/* Return the idle addresses of a size, borrowed; NULL if there are none, or with an error. */
static PyObject *idle_of(PyObject *pool, PyObject *size) {
    PyObject *found = PyDict_GetItemWithError(SLOT(pool, slots.pool_idle), size);
    return found && PyDict_CheckExact(found) ? found : NULL;
}

/* Add a size, which has no idle address, with its first one. See Pool._make_idle. What it creates, it creates first. */
static int add_size(PyObject *pool, PyObject *size, PyObject *address) {
    PyObject *sizes = SLOT(pool, slots.pool_sizes), *addresses = PyDict_New();
    int good = addresses && PyList_CheckExact(sizes) && PyDict_SetItem(addresses, address, Py_None) == 0 && !idle_of(pool, size);
    Py_ssize_t at = 0, smaller = good;
    while (smaller == 1 && at < PyList_GET_SIZE(sizes))
        if ((smaller = PyObject_RichCompareBool(PyList_GET_ITEM(sizes, at), size, Py_LT)) == 1) ++at;
    good = good && smaller >= 0 && PyList_Insert(sizes, at, size) == 0;
    if (good && PyDict_SetItem(SLOT(pool, slots.pool_idle), size, addresses) < 0) {
        good = 0;
        if (PyList_SetSlice(sizes, at, at + 1, NULL) < 0) PyErr_WriteUnraisable(pool);
    }
    Py_XDECREF(addresses);
    return good;
}

/* Make the dropped blocks idle, but for the last one, if it may be taken at once: return its address. See Pool._sort_in.
 * Return NULL without an error if there is none; `*left` is 1 if a block is left for Python. */
static PyObject *sort_in(PyObject *pool, PyObject *size, PyObject *wanted, int *left) {
    PyObject *dropped = SLOT(pool, slots.pool_dropped), *gone = SLOT(dropped, slots.queue_gone);
    for (Py_ssize_t n; (n = PyObject_Size(gone)) > 0;) {
        PyObject *first = PySequence_GetItem(gone, 0);
        PyObject *resource = first && Py_IS_TYPE(first, (PyTypeObject *)known.reference) ? SLOT(first, slots.reference_resource) : NULL;
        int good = resource && PyTuple_Check(resource) && PyTuple_GET_SIZE(resource) == 3;
        PyObject *address = good ? PyTuple_GET_ITEM(resource, 0) : NULL, *its_size = good ? PyTuple_GET_ITEM(resource, 2) : NULL;
        PyObject *idle = good ? idle_of(pool, its_size) : NULL, *taken = NULL, *used = NULL;
        if (good) good = PySet_Contains(SLOT(pool, slots.pool_visited), address) == 0;
        if (good && n == 1 && PyObject_RichCompareBool(its_size, size, Py_EQ) == 1) {
            int is_idle = idle ? PyDict_Contains(idle, wanted) : 0;
            if (!is_idle) taken = Py_NewRef(address);
            else if (is_idle < 0) good = 0;
        }
        if (good) good = (used = PyNumber_Subtract(SLOT(pool, slots.pool_used), PyTuple_GET_ITEM(resource, 1))) != NULL;
        if (good && !taken) good = idle ? PyDict_SetItem(idle, address, Py_None) == 0 : add_size(pool, its_size, address);
        if (good) { /* its owner is gone, and nothing else refers to it */
            Py_SETREF(SLOT(pool, slots.pool_used), Py_NewRef(used));
            PyObject *same = PyObject_CallMethodNoArgs(gone, s_popleft);
            good = same && PySet_Discard(SLOT(dropped, slots.queue_alive), first) >= 0;
            Py_XDECREF(same);
        }
        Py_XDECREF(first);
        Py_XDECREF(used);
        if (good && taken) return taken;
        Py_XDECREF(taken);
        if (!good) {
            *left = 1;
            return NULL;
        }
    }
    return NULL;
}

/* Take an idle block of a size, the one at the address `wanted` if that is idle. See Pool._pop. Return NULL without an error
 * if there is none. */
static PyObject *pop_idle(PyObject *pool, PyObject *size, PyObject *wanted) {
    PyObject *addresses = Py_XNewRef(idle_of(pool, size)), *address = NULL;
    int is_idle = addresses ? PyDict_Contains(addresses, wanted) : -1;
    if (is_idle == 1) {
        if (PyDict_DelItem(addresses, wanted) == 0) address = Py_NewRef(wanted);
    } else if (is_idle == 0) { /* it allocates before it takes anything: a finaliser may come in between, and use the pool */
        PyObject *pair = PyObject_CallMethodNoArgs(addresses, s_popitem);
        if (pair) address = Py_NewRef(PyTuple_GET_ITEM(pair, 0));
        else PyErr_Clear();
        Py_XDECREF(pair);
    }
    if (address && !PyDict_GET_SIZE(addresses) && idle_of(pool, size) == addresses) {
        PyObject *sizes = SLOT(pool, slots.pool_sizes);
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(sizes); ++i)
            if (PyObject_RichCompareBool(PyList_GET_ITEM(sizes, i), size, Py_EQ) == 1) {
                if (PyList_SetSlice(sizes, i, i + 1, NULL) < 0) PyErr_WriteUnraisable(pool);
                break;
            }
        if (PyDict_DelItem(SLOT(pool, slots.pool_idle), size) < 0) PyErr_WriteUnraisable(pool);
    }
    Py_XDECREF(addresses);
    return address;
}

PyObject *pool_take(PyObject *pool, PyObject *nbytes, PyObject *size, PyObject *wanted) {
    PyObject *dropped = SLOT(pool, slots.pool_dropped), *address = NULL, *used = NULL;
    if (size == zero || SLOT(pool, slots.pool_parked) != zero) return NULL;
    PyObject *block = ((PyTypeObject *)known.memory_block)->tp_alloc((PyTypeObject *)known.memory_block, 0);
    PyObject *facts = block ? PyTuple_New(3) : NULL;
    PyObject *reference = facts ? PyObject_CallFunctionObjArgs(known.reference, block, SLOT(dropped, slots.queue_append), NULL) : NULL;
    if (reference) { /* until it has an address, nothing is released with it */
        SLOT(reference, slots.reference_resource) = Py_NewRef(none_yet);
        SLOT(block, slots.block_address) = Py_NewRef(zero);
        SLOT(block, slots.block_nbytes) = Py_NewRef(zero);
        SLOT(block, slots.block_size) = Py_NewRef(zero);
        int left = is_locked(pool);
        if (!left && PySet_Add(SLOT(dropped, slots.queue_alive), reference) < 0) left = -1;
        if (!left) address = sort_in(pool, size, wanted, &left);
        if (!left && !address && !PyErr_Occurred()) address = pop_idle(pool, size, wanted);
        used = address ? PyNumber_Add(SLOT(pool, slots.pool_used), nbytes) : NULL;
        if (address && !used) PyErr_Clear(); /* it is taken: it does not count, neither now nor when it is dropped */
    }
    if (address) {
        if (used) Py_DECREF(exchange_slot(pool, slots.pool_used, used));
        else nbytes = zero;
        PyTuple_SET_ITEM(facts, 0, Py_NewRef(address));
        PyTuple_SET_ITEM(facts, 1, Py_NewRef(nbytes));
        PyTuple_SET_ITEM(facts, 2, Py_NewRef(size));
        Py_DECREF(exchange_slot(reference, slots.reference_resource, Py_NewRef(facts)));
        Py_DECREF(exchange_slot(block, slots.block_address, address));
        Py_DECREF(exchange_slot(block, slots.block_nbytes, Py_NewRef(nbytes)));
        Py_DECREF(exchange_slot(block, slots.block_size, Py_NewRef(size)));
    } else {
        if (reference && !PyErr_Occurred()) { /* it goes without a trace */
            if (PySet_Discard(SLOT(dropped, slots.queue_alive), reference) < 0) PyErr_Clear();
        }
        Py_CLEAR(reference);
        Py_CLEAR(block);
    }
    Py_XDECREF(reference);
    Py_XDECREF(facts);
    return block;
}
