/* A call whose inputs have been read: its locks, and the handles that move into its run.
 *
 * The reference is begin_run and end_run in dagpu.runtime.direct_call. Both do the same in one step: under the gate
 * (`BOOKKEEPING`) all is checked, and then all is done, without code of Python in between.
 */
#include "compiled.h"

/* ---- what a reader has read ------------------------------------------------------------------------------------ */

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
    while (call->n_locks) {
        LockUse *use = &call->locks[--call->n_locks];
        Py_DECREF(use->lock);
        Py_XDECREF(use->holder); /* maybe the last that refers to its code, whose end may run code of Python */
    }
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

void call_add_lock(Call *call, PyObject *lock, int exclusive) {
    call->locks[call->n_locks++] = (LockUse){Py_NewRef(lock), exclusive, NULL};
}

void call_add_move(Call *call, Py_ssize_t leaf, PyObject *handle, PyObject *state) {
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

/* ---- locks and moves -------------------------------------------------------------------------------------------- */

static PyObject *new_handle(PyObject *handle, PyObject *state) {
    PyTypeObject *kind = Py_TYPE(handle);
    if (kind != (PyTypeObject *)known.tensor && kind != (PyTypeObject *)known.tensor_mut)
        return PyObject_CallFunctionObjArgs(known.new_handle, handle, state, NULL);
    PyObject *made = kind->tp_alloc(kind, 0); /* what HandleBase.__init__ makes */
    if (made) SLOT(made, slots.handle_state) = Py_NewRef(state);
    return made;
}

int call_prepare(Call *call, PyObject *origin) {
    if (must_know(&known.acquire, &known.loaded_plan, "a call") < 0) return -1;
    for (Py_ssize_t i = 0; i < call->n_moves; ++i) {
        Move *move = &call->moves[i];
        PyObject *layout = SLOT(move->state, slots.state_layout), *made = SLOT(move->state, slots.state_origin);
        if (!layout || !made) {
            PyErr_SetString(PyExc_SystemError, "a handle has a state without a layout or a place");
            return -1;
        }
        move->fresh = new_handle(move->handle, move->state);
        move->record = PyTuple_Pack(4, known.taken, origin, layout, made);
        if (!move->fresh || !move->record) return -1;
    }
    return 0;
}

/* Return 1 if no run holds a lock that is in the way of this use, 0 if one does, -1 with an error. */
static int is_free(LockUse *use) {
    PyObject *readers = SLOT(use->lock, slots.lock_readers);
    if (SLOT(use->lock, slots.lock_writer) != Py_None) return 0;
    return !use->exclusive ? 1 : readers == zero ? 1 : readers ? !PyObject_IsTrue(readers) : 0;
}

static void drop_reader(PyObject *lock) {
    PyObject *fewer = PyNumber_Subtract(SLOT(lock, slots.lock_readers), one);
    if (fewer) Py_DECREF(exchange_slot(lock, slots.lock_readers, fewer));
    else PyErr_WriteUnraisable(lock);
}

static int all_free(Call *call) {
    for (Py_ssize_t i = 0; i < call->n_locks; ++i) {
        int good = is_free(&call->locks[i]);
        if (good != 1) return good;
    }
    for (Py_ssize_t i = 0; i < call->n_moves; ++i) {
        if (SLOT(call->moves[i].handle, slots.handle_state) != call->moves[i].state) return 0;
        for (Py_ssize_t k = 0; k < i; ++k) /* the second move of one handle finds it moved */
            if (call->moves[k].handle == call->moves[i].handle) return 0;
    }
    return 1;
}

/* Take all locks, or none if there is no memory for the count of readers. What is exchanged is None, a count or a place:
 * their releases run no code of Python. */
static int take_locks(Call *call, PyObject *loaded, PyObject *origin) {
    for (Py_ssize_t i = 0; i < call->n_locks; ++i) {
        LockUse *use = &call->locks[i];
        if (use->exclusive) continue;
        PyObject *more = PyNumber_Add(SLOT(use->lock, slots.lock_readers), one);
        if (!more) {
            while (i--)
                if (!call->locks[i].exclusive) drop_reader(call->locks[i].lock);
            return -1;
        }
        Py_DECREF(exchange_slot(use->lock, slots.lock_readers, more));
    }
    for (Py_ssize_t i = 0; i < call->n_locks; ++i) {
        LockUse *use = &call->locks[i];
        if (use->exclusive) Py_DECREF(exchange_slot(use->lock, slots.lock_writer, Py_NewRef(loaded)));
        use->holder = exchange_slot(use->lock, slots.lock_holder, Py_NewRef(origin));
    }
    return 0;
}

int call_begin(Call *call, PyObject *loaded, PyObject *origin) {
    PyObject *got = PyObject_CallNoArgs(known.acquire);
    if (!got) return -1; /* a signal handler has raised while another thread had the gate */
    Py_DECREF(got);
    PyObject *runs = SLOT(loaded, slots.plan_runs), *more = runs ? PyNumber_Add(runs, one) : NULL;
    int good = more ? all_free(call) : -1;
    if (good == 1 && take_locks(call, loaded, origin) < 0) good = -1;
    if (good == 1) {
        call->begun = 1;
        for (Py_ssize_t i = 0; i < call->n_moves; ++i) { /* what is exchanged is released once the gate is open */
            Move *move = &call->moves[i];
            move->record = exchange_slot(move->handle, slots.handle_moved, move->record);
            exchange_slot(move->handle, slots.handle_state, Py_NewRef(Py_None));
        }
        more = exchange_slot(loaded, slots.plan_runs, more);
    }
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    got = PyObject_CallNoArgs(known.release);
    Py_XDECREF(got);
    PyErr_Clear();
    PyErr_Restore(type, value, trace);
    Py_XDECREF(more);
    if (good == 1)
        for (Py_ssize_t i = 0; i < call->n_moves; ++i) {
            Move *move = &call->moves[i];
            Py_DECREF(move->state); /* what the handle referred to; `state` is a reference of the call's own */
            PyList_SetItem(call->leaves, move->leaf, move->fresh);
            move->fresh = NULL;
        }
    return good;
}

void call_end(Call *call) {
    if (!call->begun) return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    call->begun = 0;
    for (Py_ssize_t i = 0; i < call->n_locks; ++i) {
        LockUse *use = &call->locks[i];
        if (use->exclusive) Py_DECREF(exchange_slot(use->lock, slots.lock_writer, Py_NewRef(Py_None)));
        else drop_reader(use->lock);
    }
    PyErr_Restore(type, value, trace);
}

void call_put_back(Call *call) {
    for (Py_ssize_t i = 0; i < call->n_moves; ++i)
        Py_XDECREF(exchange_slot(call->moves[i].handle, slots.handle_state, Py_NewRef(call->moves[i].state)));
}

/* ---- for the reader of Python ---------------------------------------------------------------------------------- */

/* begin(reading, loaded, origin): begin_run. */
PyObject *py_begin(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 3 || !known.loaded_plan || !Py_IS_TYPE(args[1], (PyTypeObject *)known.loaded_plan)) {
        PyErr_SetString(PyExc_TypeError, "begin takes what a reader returns, a plan and an origin");
        return NULL;
    }
    Call call;
    call_init(&call);
    int good = call_from_reading(&call, args[0]);
    if (!good) good = call_prepare(&call, args[2]);
    if (!good) good = call_begin(&call, args[1], args[2]);
    call.begun = 0; /* the caller ends it, by `end` */
    call_clear(&call);
    return good < 0 ? NULL : PyBool_FromLong(good);
}

/* end(reading): end_run. */
PyObject *py_end(PyObject *module, PyObject *reading) {
    Call call;
    call_init(&call);
    if (call_from_reading(&call, reading) < 0) {
        call_clear(&call);
        return NULL;
    }
    call.begun = 1;
    call_end(&call);
    call_clear(&call);
    return Py_NewRef(Py_None);
}
