/* The updates of a feed that are launches of idle graphs: from the sources that have changed to the next value.
 *
 * The references are Observed.next in dagpu.reactive.observing, IncrementalRun.update and LiveStage.run_whole with what
 * they call. The rows of an update are those of `UpdateRows` in dagpu.reactive.update_rows; compiled_updates beside it
 * says which updates are made here. What this does not know is left to Python before the first effect.
 */
#include "calls.h"
#include "nodes.h"
#include "rows.h"

static PyObject *s_busy, *s_changes, *s_now, *s_clock, *s_since, *s_failed;

/* ---- one update ----------------------------------------------------------------------------------------------------- */

typedef struct { Py_ssize_t here, buffer; } Kept; /* memory of a target, which has this buffer in the whole program */
typedef struct { Py_ssize_t here; PyObject *content; } Constant;
typedef struct { Py_ssize_t here, buffer; PyObject *key, *visited, *is_parked; } Made; /* a target that the update makes */

typedef struct {
    PyObject_HEAD
    PyObject *held; /* the arguments: the rest is borrowed from them */
    PyObject *rows, *loaded, *build, *plan, *locks, *pace, *ran, *reused;
    Py_ssize_t n_inputs, n_kept, n_constants, n_made;
    Py_ssize_t *inputs; /* the numbers of the sources whose values the rows read */
    Kept *kept;
    Constant *constants;
    Made *made;
    double spin;
    int reads_tensors; /* something of a source is read on the device */
} Update;

static PyTypeObject UpdateType;

static void set_kept(void *to, PyObject *row) {
    *(Kept *)to = (Kept){PyLong_AsSsize_t(PyTuple_GET_ITEM(row, 0)), PyLong_AsSsize_t(PyTuple_GET_ITEM(row, 1))};
}
static void set_constant(void *to, PyObject *row) {
    *(Constant *)to = (Constant){PyLong_AsSsize_t(PyTuple_GET_ITEM(row, 0)), PyTuple_GET_ITEM(row, 1)};
}
static void set_made(void *to, PyObject *row) {
    *(Made *)to = (Made){PyLong_AsSsize_t(PyTuple_GET_ITEM(row, 0)), PyLong_AsSsize_t(PyTuple_GET_ITEM(row, 1)),
                         PyTuple_GET_ITEM(row, 1), PyTuple_GET_ITEM(row, 2), PyTuple_GET_ITEM(row, 3)};
    if (!PySet_Check(PyTuple_GET_ITEM(row, 2))) PyErr_SetString(PyExc_TypeError, "what other libraries visit is no set");
}

/* Update(rows, inputs, kept, constants, made, reads_tensors, loaded, spin, pace, locks, build, plan, ran, reused) */
static PyObject *update_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *rows, *inputs, *kept, *constants, *made, *loaded, *pace, *locks, *build, *plan, *ran, *reused;
    int reads_tensors;
    double spin;
    if (!PyArg_ParseTuple(args, "O!OOOOpOdOO!OOO!O!:Update", &RowsType, &rows, &inputs, &kept, &constants, &made, &reads_tensors,
                          &loaded, &spin, &pace, &PyTuple_Type, &locks, &build, &plan, &PyLong_Type, &ran, &PyLong_Type, &reused))
        return NULL;
    if (must_know(&known.history, &known.stats, "Update") < 0) return NULL;
    Update *self = (Update *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->held = Py_NewRef(args);
    self->rows = rows;
    self->loaded = loaded;
    self->build = build;
    self->plan = plan;
    self->locks = locks;
    self->pace = pace;
    self->ran = ran;
    self->reused = reused;
    self->reads_tensors = reads_tensors;
    self->spin = spin;
    self->n_inputs = fill_array(inputs, 1, sizeof(Py_ssize_t), (void **)&self->inputs, set_index);
    if (!PyErr_Occurred()) self->n_kept = fill_array(kept, 2, sizeof(Kept), (void **)&self->kept, set_kept);
    if (!PyErr_Occurred()) self->n_constants = fill_array(constants, 2, sizeof(Constant), (void **)&self->constants, set_constant);
    if (!PyErr_Occurred()) self->n_made = fill_array(made, 4, sizeof(Made), (void **)&self->made, set_made);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(locks); ++i)
        if (!Py_IS_TYPE(PyTuple_GET_ITEM(locks, i), (PyTypeObject *)known.lock)) PyErr_SetString(PyExc_TypeError, "this is no lock");
    if (!Py_IS_TYPE(loaded, (PyTypeObject *)known.loaded_plan)) PyErr_SetString(PyExc_TypeError, "this is no plan");
    Py_ssize_t buffers = ((Rows *)rows)->buffers;
    int fits = 1;
    for (Py_ssize_t i = 0; i < self->n_kept; ++i) fits &= self->kept[i].here >= 0 && self->kept[i].here < buffers;
    for (Py_ssize_t i = 0; i < self->n_constants; ++i) fits &= self->constants[i].here >= 0 && self->constants[i].here < buffers;
    for (Py_ssize_t i = 0; i < self->n_made; ++i) fits &= self->made[i].here >= 0 && self->made[i].here < buffers;
    if (!fits && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a row names a buffer that the update does not have");
    if (PyErr_Occurred()) Py_CLEAR(self);
    return (PyObject *)self;
}

static int update_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((Update *)self)->held);
    return 0;
}

static void update_dealloc(PyObject *self_) {
    Update *self = (Update *)self_;
    PyObject_GC_UnTrack(self_);
    PyMem_Free(self->inputs);
    PyMem_Free(self->kept);
    PyMem_Free(self->constants);
    PyMem_Free(self->made);
    Py_CLEAR(self->held);
    Py_TYPE(self_)->tp_free(self_);
}

static PyTypeObject UpdateType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dagpu.compiled._reader.Update",
    .tp_doc = "The rows of one update: see `UpdateRows`.",
    .tp_basicsize = sizeof(Update),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = update_new,
    .tp_dealloc = update_dealloc,
    .tp_traverse = update_traverse, /* no tp_clear: what it holds breaks the cycles */
};

/* ---- the updates of a feed ------------------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD
    PyObject *held;
    PyObject *nodes, *histories, *inputs, *bits; /* of each source: its op, its versions, its input and its bit */
    PyObject *handles, *work, *observed, *changes, *targets, *origin;
    PyObject *updates; /* by the bits of the sources that have changed */
} Updates;

static PyTypeObject UpdatesType;

/* An update that has been launched: what is noted at its end. */
typedef struct {
    PyObject_HEAD
    Updates *owner;
    Update *update;
    PyObject *feed, *seen, *stats;
    PyObject *snapshot; /* while it exists, nothing writes what the update reads of the sources */
    PyObject *changed;  /* for each source that has changed its number and its version, one after the other */
    PyObject *memory;
    double first; /* the time of the first change */
    long skipped;
    int taken; /* what it makes is that of the targets */
} UnderWay;

static PyTypeObject UnderWayType;

/* Updates(nodes, histories, inputs, bits, handles, work, observed, changes, targets, origin) */
static PyObject *updates_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *nodes, *histories, *inputs, *bits, *handles, *work, *observed, *changes, *targets, *origin;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!OOO!OO:Updates", &PyTuple_Type, &nodes, &PyTuple_Type, &histories, &PyTuple_Type,
                          &inputs, &PyTuple_Type, &bits, &PyTuple_Type, &handles, &work, &observed, &PyLong_Type, &changes,
                          &targets, &origin))
        return NULL;
    if (must_know(&known.history, &known.stats, "Updates") < 0) return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(nodes);
    int fits = PyTuple_GET_SIZE(histories) == n && PyTuple_GET_SIZE(inputs) == n && PyTuple_GET_SIZE(bits) == n
        && Py_IS_TYPE(targets, (PyTypeObject *)known.target_memory);
    for (Py_ssize_t i = 0; fits && i < n; ++i)
        fits = Py_IS_TYPE(PyTuple_GET_ITEM(histories, i), (PyTypeObject *)known.history)
            && Py_IS_TYPE(PyTuple_GET_ITEM(inputs, i), (PyTypeObject *)known.live_input) && PyLong_Check(PyTuple_GET_ITEM(bits, i));
    for (Py_ssize_t i = 0; fits && i < PyTuple_GET_SIZE(handles); ++i)
        fits = PyObject_TypeCheck(PyTuple_GET_ITEM(handles, i), (PyTypeObject *)known.handle_base);
    if (!fits) return PyErr_SetString(PyExc_TypeError, "these are no sources and targets of a feed"), NULL;
    Updates *self = (Updates *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->held = Py_NewRef(args);
    self->nodes = nodes;
    self->histories = histories;
    self->inputs = inputs;
    self->bits = bits;
    self->handles = handles;
    self->work = work;
    self->observed = observed;
    self->changes = changes;
    self->targets = targets;
    self->origin = origin;
    if (!(self->updates = PyDict_New())) Py_CLEAR(self);
    return (PyObject *)self;
}

/* Drop the updates whose plans are not kept any more. */
static int drop_old(PyObject *updates, PyObject *kept) {
    PyObject *all = PyDict_Keys(updates);
    int failed = all ? 0 : -1;
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(all); ++i) {
        int found = PySequence_Contains(kept, PyList_GET_ITEM(all, i));
        failed = found < 0 || (!found && PyDict_DelItem(updates, PyList_GET_ITEM(all, i)) < 0);
    }
    Py_XDECREF(all);
    return failed;
}

/* add(bits, update, kept): keep the update that runs when the sources of these bits have changed, and of the others those
 * whose bits are in `kept`. */
static PyObject *updates_add(PyObject *self_, PyObject *args) {
    Updates *self = (Updates *)self_;
    PyObject *bits, *found, *kept;
    if (!PyArg_ParseTuple(args, "O!O!O:add", &PyLong_Type, &bits, &UpdateType, &found, &kept)) return NULL;
    Update *update = (Update *)found;
    Py_ssize_t buffers = PyList_GET_SIZE(SLOT(self->targets, slots.targets_memory)), n = PyTuple_GET_SIZE(self->nodes);
    int fits = 1;
    for (Py_ssize_t i = 0; i < update->n_inputs; ++i) fits &= update->inputs[i] >= 0 && update->inputs[i] < n;
    for (Py_ssize_t i = 0; i < update->n_kept; ++i) fits &= update->kept[i].buffer >= 0 && update->kept[i].buffer < buffers;
    for (Py_ssize_t i = 0; i < update->n_made; ++i) fits &= update->made[i].buffer >= 0 && update->made[i].buffer < buffers;
    if (!fits) return PyErr_SetString(PyExc_ValueError, "an update names a source or a target that does not exist"), NULL;
    if (drop_old(self->updates, kept) || PyDict_SetItem(self->updates, bits, found) < 0) return NULL;
    return Py_NewRef(Py_None);
}

static int updates_contains(PyObject *self, PyObject *bits) { return PyDict_Contains(((Updates *)self)->updates, bits); }

/* ---- what has changed ----------------------------------------------------------------------------------------------- */

static PyObject *newest_of(Updates *self, Py_ssize_t i) {
    PyObject *versions = SLOT(PyTuple_GET_ITEM(self->histories, i), slots.history_versions);
    if (!versions || !PyTuple_Check(versions) || !PyTuple_GET_SIZE(versions)) return NULL;
    PyObject *newest = PyTuple_GET_ITEM(versions, PyTuple_GET_SIZE(versions) - 1);
    return Py_IS_TYPE(newest, (PyTypeObject *)known.version) ? newest : NULL;
}

/* Note the sources that have changed, and when. Return their bits; NULL without an error if Python has to tell. No code of
 * Python runs. */
static PyObject *find_changed(Updates *self, UnderWay *found) {
    PyObject *now = PyObject_GetAttr(known.clock, s_now), *bits = Py_NewRef(zero);
    long long instant = now ? PyLong_AsLongLong(now) : -1;
    Py_XDECREF(now);
    int good = !PyErr_Occurred();
    for (Py_ssize_t i = 0; good && i < PyTuple_GET_SIZE(self->nodes); ++i) {
        PyObject *newest = newest_of(self, i), *made = PyTuple_GET_ITEM(self->inputs, i);
        PyObject *before = SLOT(made, slots.input_version);
        if (newest && newest == before) continue;
        good = newest && before && Py_IS_TYPE(before, (PyTypeObject *)known.version)
            && SLOT(newest, slots.version_parts) == Py_None && SLOT(newest, slots.version_written) == Py_None
            && PyLong_AsLongLong(SLOT(newest, slots.version_instant)) <= instant; /* else its change is not complete */
        if (!good) break;
        long skipped = PyLong_AsLong(SLOT(newest, slots.version_revision)) - PyLong_AsLong(SLOT(before, slots.version_revision)) - 1;
        double since = PyFloat_AsDouble(SLOT(newest, slots.version_since));
        if (skipped > found->skipped) found->skipped = skipped;
        if (found->first < 0 || since < found->first) found->first = since;
        PyObject *number = PyLong_FromSsize_t(i), *more = PyNumber_Or(bits, PyTuple_GET_ITEM(self->bits, i));
        good = number && more && PyList_Append(found->changed, number) == 0 && PyList_Append(found->changed, newest) == 0;
        Py_XDECREF(number);
        Py_SETREF(bits, more ? more : Py_NewRef(zero));
    }
    if (!good || PyErr_Occurred()) Py_CLEAR(bits);
    return bits;
}

/* ---- reading -------------------------------------------------------------------------------------------------------- */

/* Return 1 if something may read the memory of a result beside the handle that the feed keeps, 0 if not, -1 with an error.
 * See _is_read in dagpu.reactive.live_result. */
static int is_read(Made *row, PyObject *handle, PyObject *memory) {
    if (!Py_IS_TYPE(handle, (PyTypeObject *)known.shared_tensor)) return 1;
    PyObject *state = SLOT(handle, slots.handle_state);
    if (!state || !Py_IS_TYPE(state, (PyTypeObject *)known.handle_state)) return 1;
    PyObject *holders = SLOT(state, slots.state_holders), *lock = SLOT(SLOT(state, slots.state_storage), slots.storage_lock);
    if (holders != Py_None) {
        PyObject *token = SLOT(holders, slots.holders_token);
        if (!token || !PyList_CheckExact(token) || !PyList_GET_SIZE(token)) return 1;
        if (Py_REFCNT(PyList_GET_ITEM(token, 0)) - 1 > 1) return 1; /* the list has one reference of its own */
    }
    if (SLOT(lock, slots.lock_readers) != zero || SLOT(lock, slots.lock_writer) != Py_None) return 1;
    if (!PySet_GET_SIZE(row->visited)) return 0;
    PyObject *parked = PyObject_CallOneArg(row->is_parked, memory);
    Py_XDECREF(parked);
    return parked ? parked == Py_True : -1;
}

/* Put the memory of a target in its place, if nothing else reads it. See TargetMemory.own_memory. */
static int read_own(Updates *self, Made *row, PyObject *memory) {
    PyObject *elsewhere = SLOT(self->targets, slots.targets_elsewhere), *all = SLOT(self->targets, slots.targets_memory);
    int seen = PySet_Contains(elsewhere, row->key);
    if (seen) return seen < 0 ? -1 : 0;
    PyObject *own = Py_NewRef(PyList_GET_ITEM(all, row->buffer));
    PyObject *pair = PyDict_GetItemWithError(SLOT(self->targets, slots.targets_held), row->key);
    int read = PyErr_Occurred() ? -1 : 0;
    if (pair && PyTuple_GET_ITEM(pair, 0) == own) {
        PyObject *handle = Py_NewRef(PyTuple_GET_ITEM(pair, 1));
        read = is_read(row, handle, own);
        Py_DECREF(handle);
    }
    if (!read) PyList_SetItem(memory, row->here, Py_NewRef(own));
    Py_DECREF(own);
    return read < 0 ? -1 : 0;
}

/* Return what a constant holds: the memory of the op's own, or a value. */
static PyObject *content_of(PyObject *constant) {
    return Py_IS_TYPE(constant, (PyTypeObject *)known.storage) ? SLOT(constant, slots.storage_memory) : constant;
}

/* Return the value of a source for which the update is made: another thread may have set it since. */
static PyObject *value_for(Updates *self, UnderWay *flying, Py_ssize_t source) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(flying->changed); i += 2)
        if (PyLong_AsSsize_t(PyList_GET_ITEM(flying->changed, i)) == source)
            return SLOT(PyList_GET_ITEM(flying->changed, i + 1), slots.version_value);
    return SLOT(PyTuple_GET_ITEM(self->inputs, source), slots.input_value);
}

static int read_update(Updates *self, UnderWay *flying, Call *call) {
    Update *update = flying->update;
    PyObject *values = PyTuple_New(update->n_inputs), *no_names = values ? PyTuple_New(0) : NULL;
    int good = no_names ? 1 : -1;
    for (Py_ssize_t i = 0; good == 1 && i < update->n_inputs; ++i) {
        PyObject *value = value_for(self, flying, update->inputs[i]);
        if (value) PyTuple_SET_ITEM(values, i, Py_NewRef(value));
        else good = 0;
    }
    if (good == 1) good = rows_read(update->rows, values, no_names, call);
    Py_XDECREF(no_names);
    Py_XDECREF(values);
    if (good != 1) return good;
    PyObject *all = SLOT(self->targets, slots.targets_memory);
    for (Py_ssize_t i = 0; i < update->n_kept; ++i)
        PyList_SetItem(call->memory, update->kept[i].here, Py_NewRef(PyList_GET_ITEM(all, update->kept[i].buffer)));
    for (Py_ssize_t i = 0; i < update->n_constants; ++i) {
        PyObject *content = content_of(update->constants[i].content);
        if (!content || content == Py_None) return 0;
        PyList_SetItem(call->memory, update->constants[i].here, Py_NewRef(content));
    }
    for (Py_ssize_t i = 0; good == 1 && i < update->n_made; ++i)
        if (read_own(self, &update->made[i], call->memory) < 0) good = -1;
    Py_ssize_t n = PyTuple_GET_SIZE(update->locks);
    if (good == 1 && call_reserve(call, call->n_locks + n) < 0) good = -1;
    for (Py_ssize_t i = 0; good == 1 && i < n; ++i) call_add_lock(call, PyTuple_GET_ITEM(update->locks, i), 0);
    return good;
}

/* ---- the launch ----------------------------------------------------------------------------------------------------- */

static int set_busy(Updates *self, PyObject *busy) { return self->work == Py_None ? 0 : PyObject_SetAttr(self->work, s_busy, busy); }

/* Say to other feeds that this one may write its memory, when none of them is taking some of it. See SharedWork.begin. */
static int begin_work(Updates *self) {
    if (self->work == Py_None) return 0;
    PyObject *got = PyObject_CallNoArgs(known.acquire);
    if (!got) return -1;
    Py_DECREF(got);
    int failed = set_busy(self, Py_True);
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    got = PyObject_CallNoArgs(known.release);
    Py_XDECREF(got);
    PyErr_Restore(type, value, trace);
    return failed;
}

static void end_work(Updates *self) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (set_busy(self, Py_False) < 0) PyErr_WriteUnraisable(self->work);
    PyErr_Restore(type, value, trace);
}

/* Return 1 if the trace still serves the feed: it shares what it did, and its handles have not moved. */
static int still_serves(Updates *self) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->handles); ++i) {
        PyObject *state = SLOT(PyTuple_GET_ITEM(self->handles, i), slots.handle_state);
        if (!state || state == Py_None) return 0;
    }
    if (self->work == Py_None) return 1;
    PyObject *changes = PyObject_GetAttr(self->observed, s_changes);
    int same = !changes ? -1 : changes == self->changes ? 1 : PyObject_RichCompareBool(changes, self->changes, Py_EQ);
    Py_XDECREF(changes);
    return same;
}

/* Make the versions for which the update has been launched those of the inputs: see IncrementalRun._read_inputs. What is
 * replaced is released at the end. */
static int take_inputs(Updates *self, UnderWay *flying, PyObject *released) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(flying->changed); i += 2) {
        PyObject *made = PyTuple_GET_ITEM(self->inputs, PyLong_AsSsize_t(PyList_GET_ITEM(flying->changed, i)));
        PyObject *version = PyList_GET_ITEM(flying->changed, i + 1);
        PyObject *before = exchange_slot(made, slots.input_version, Py_NewRef(version));
        PyObject *value = exchange_slot(made, slots.input_value, Py_NewRef(SLOT(version, slots.version_value)));
        int failed = PyList_Append(released, before) < 0 || PyList_Append(released, value) < 0;
        Py_DECREF(before);
        Py_DECREF(value);
        if (failed) return -1;
    }
    return 0;
}

/* Make the memory of an update that of its targets: see LiveStage._take_over. What is replaced is released at the end. */
static int take_targets(Updates *self, Update *update, PyObject *memory, PyObject *released) {
    PyObject *all = SLOT(self->targets, slots.targets_memory), *held = SLOT(self->targets, slots.targets_held);
    for (Py_ssize_t i = 0; i < update->n_made; ++i) {
        Made *row = &update->made[i];
        PyObject *block = PyList_GET_ITEM(memory, row->here), *before = PyList_GET_ITEM(all, row->buffer);
        if (block == before) continue;
        PyObject *pair = PyDict_GetItemWithError(held, row->key);
        if (PyList_Append(released, before) < 0 || (pair && PyList_Append(released, pair) < 0)) return -1;
        PyList_SetItem(all, row->buffer, Py_NewRef(block));
        if (pair && PyDict_DelItem(held, row->key) < 0) return -1;
        if (PySet_Discard(SLOT(self->targets, slots.targets_elsewhere), row->key) < 0) return -1;
    }
    return 0;
}

static UnderWay *new_under_way(Updates *self, PyObject *feed, PyObject *seen, PyObject *stats) {
    UnderWay *found = PyObject_GC_New(UnderWay, &UnderWayType);
    if (!found) return NULL;
    found->owner = (Updates *)Py_NewRef(self);
    found->update = NULL;
    found->feed = Py_NewRef(feed);
    found->seen = Py_NewRef(seen);
    found->stats = Py_NewRef(stats);
    found->snapshot = found->memory = NULL;
    found->first = -1;
    found->skipped = 0;
    found->taken = 0;
    found->changed = PyList_New(0);
    PyObject_GC_Track((PyObject *)found);
    if (!found->changed) Py_CLEAR(found);
    return found;
}

/* Find the update for what has changed, and take the snapshot that it needs. Return 1; 0 if Python has to tell. */
static int find_update(Updates *self, UnderWay *flying) {
    PyObject *bits = find_changed(self, flying);
    PyObject *found = bits ? PyDict_GetItemWithError(self->updates, bits) : NULL;
    Py_XDECREF(bits);
    if (!found) return PyErr_Occurred() ? -1 : 0;
    flying->update = (Update *)Py_NewRef(found);
    if (!flying->update->reads_tensors || flying->snapshot) return 1;
    flying->snapshot = PyObject_CallNoArgs(known.snapshot); /* code of Python: look once more at what has changed */
    if (!flying->snapshot) return -1;
    if (PyList_SetSlice(flying->changed, 0, PyList_GET_SIZE(flying->changed), NULL) < 0) return -1;
    Py_CLEAR(flying->update);
    flying->first = -1;
    flying->skipped = 0;
    return find_update(self, flying);
}

PyObject *update_launch(PyObject *updates, PyObject *feed, PyObject *seen, PyObject *stats) {
    if (!Py_IS_TYPE(updates, &UpdatesType) || !PyDict_CheckExact(seen) || !Py_IS_TYPE(stats, (PyTypeObject *)known.stats))
        return PyErr_SetString(PyExc_TypeError, "launch takes a feed, its versions and its stats"), NULL;
    Updates *self = (Updates *)updates;
    int good = may_run(1), outcome = 0, code = 0, refused = 0, is_busy = 0;
    const char *name = "";
    if (good != 1) return good < 0 ? NULL : Py_NewRef(known.miss);
    UnderWay *flying = new_under_way(self, feed, seen, stats);
    Landing *landing = flying ? landing_new() : NULL;
    PyObject *released = landing ? PyList_New(0) : NULL;
    if (!released) good = -1;
    if (good == 1) good = (is_busy = begin_work(self) == 0) ? still_serves(self) : -1;
    if (good == 1) good = find_update(self, flying);
    Update *update = good == 1 ? flying->update : NULL;
    if (good == 1) good = read_update(self, flying, &landing->trip.call);
    if (good == 1) good = trip_choose(&landing->trip, update->loaded, update->build, update->spin);
    if (good == 1) good = trip_launch(&landing->trip, update->loaded, self->origin, 0.0, &outcome, &code, &name, &refused);
    if (good == 1) good = landing_follow(landing, update->pace, outcome, code, name, refused);
    if (good == 1) {
        landing->update = Py_NewRef(flying);
        flying->memory = Py_NewRef(landing->trip.call.memory);
        if (take_inputs(self, flying, released) < 0) good = -1;
        flying->taken = outcome == UNDER_WAY; /* else the driver has refused the launch */
        if (good == 1 && flying->taken && take_targets(self, update, flying->memory, released) < 0) good = -1;
    } else if (is_busy) {
        end_work(self);
    }
    Py_XDECREF(released);
    Py_XDECREF(flying);
    if (!landing) return NULL;
    if (section_close(&landing->trip.section) < 0) good = -1;
    if (good == 1) return (PyObject *)landing;
    Py_DECREF(landing);
    return good < 0 ? NULL : Py_NewRef(known.miss);
}

/* launch(feed, seen, stats): see `update_launch`. */
static PyObject *updates_launch(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    if (n != 3) return PyErr_SetString(PyExc_TypeError, "launch takes a feed, its versions and its stats"), NULL;
    return update_launch(self, args[0], args[1], args[2]);
}

/* ---- the end -------------------------------------------------------------------------------------------------------- */

/* Add a number to one of the numbers of a feed. */
static int count(PyObject *stats, Py_ssize_t slot, PyObject *number) {
    PyObject *before = SLOT(stats, slot), *more = before ? PyNumber_Add(before, number) : NULL;
    if (!before) PyErr_SetString(PyExc_AttributeError, "a number of the feed's stats was deleted");
    if (more) Py_DECREF(exchange_slot(stats, slot, more));
    return more ? 0 : -1;
}

/* Return a number of seconds that a function gives; -1 with an error. */
static double seconds_of(PyObject *clock) {
    PyObject *time = clock ? PyObject_CallNoArgs(clock) : NULL;
    double seconds = time ? PyFloat_AsDouble(time) : -1;
    Py_XDECREF(time);
    return seconds;
}

int update_made(PyObject *under_way) {
    UnderWay *self = (UnderWay *)under_way;
    PyObject *released = self->taken ? NULL : PyList_New(0);
    if (self->taken) return 0;
    int failed = released ? take_targets(self->owner, self->update, self->memory, released) : -1;
    self->taken = !failed;
    Py_XDECREF(released);
    return failed;
}

int update_landed(PyObject *under_way) {
    UnderWay *self = (UnderWay *)under_way;
    PyObject *clock = PyObject_GetAttr(self->feed, s_clock);
    double now = seconds_of(clock), here_now = PyErr_Occurred() ? -1 : seconds_of(known.perf_counter);
    Py_XDECREF(clock);
    PyObject *since = PyErr_Occurred() ? NULL : PyFloat_FromDouble(now - (here_now - self->first));
    int failed = !since || PyObject_SetAttr(self->feed, s_since, since) < 0;
    Py_XDECREF(since);
    for (Py_ssize_t i = 0; !failed && i < PyList_GET_SIZE(self->changed); i += 2) {
        PyObject *node = PyTuple_GET_ITEM(self->owner->nodes, PyLong_AsSsize_t(PyList_GET_ITEM(self->changed, i)));
        failed = PyDict_SetItem(self->seen, node, PyList_GET_ITEM(self->changed, i + 1)) < 0;
    }
    if (!failed) failed = count(self->stats, slots.stats_launched, self->update->ran) < 0;
    if (!failed) failed = count(self->stats, slots.stats_reused, self->update->reused) < 0;
    if (!failed && self->skipped) {
        PyObject *skipped = PyLong_FromLong(self->skipped);
        failed = !skipped || count(self->stats, slots.stats_skipped, skipped) < 0;
        Py_XDECREF(skipped);
    }
    if (!failed) end_work(self->owner);
    return failed ? -1 : 0;
}

void update_failed(PyObject *under_way, PyObject *run) {
    UnderWay *self = (UnderWay *)under_way;
    PyObject *type, *value, *trace, *bits = Py_NewRef(zero);
    PyErr_Fetch(&type, &value, &trace);
    for (Py_ssize_t i = 0; bits && i < PyList_GET_SIZE(self->changed); i += 2) {
        Py_ssize_t number = PyLong_AsSsize_t(PyList_GET_ITEM(self->changed, i));
        Py_SETREF(bits, PyNumber_Or(bits, PyTuple_GET_ITEM(self->owner->bits, number)));
    }
    PyObject *done = bits ? PyObject_CallMethodObjArgs(self->feed, s_failed, bits, self->update->plan, run, self->memory, NULL) : NULL;
    if (!done) PyErr_WriteUnraisable(self->feed);
    Py_XDECREF(done);
    Py_XDECREF(bits);
    end_work(self->owner);
    PyErr_Restore(type, value, trace);
}

/* ---- classes -------------------------------------------------------------------------------------------------------- */

static int under_way_traverse(PyObject *self_, visitproc visit, void *arg) {
    UnderWay *self = (UnderWay *)self_;
    Py_VISIT(self->owner);
    Py_VISIT(self->update);
    Py_VISIT(self->feed);
    Py_VISIT(self->seen);
    Py_VISIT(self->stats);
    Py_VISIT(self->snapshot);
    Py_VISIT(self->changed);
    Py_VISIT(self->memory);
    return 0;
}

static void under_way_dealloc(PyObject *self_) {
    UnderWay *self = (UnderWay *)self_;
    PyObject_GC_UnTrack(self_);
    Py_XDECREF(self->owner);
    Py_XDECREF(self->update);
    Py_XDECREF(self->feed);
    Py_XDECREF(self->seen);
    Py_XDECREF(self->stats);
    Py_XDECREF(self->snapshot);
    Py_XDECREF(self->changed);
    Py_XDECREF(self->memory);
    Py_TYPE(self_)->tp_free(self_);
}

static PyTypeObject UnderWayType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dagpu.compiled._reader.UnderWay",
    .tp_doc = "An update that has been launched.",
    .tp_basicsize = sizeof(UnderWay),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = under_way_dealloc,
    .tp_traverse = under_way_traverse,
    .tp_free = PyObject_GC_Del,
};

static int updates_traverse(PyObject *self_, visitproc visit, void *arg) {
    Updates *self = (Updates *)self_;
    Py_VISIT(self->held);
    Py_VISIT(self->updates);
    return 0;
}

static int updates_clear(PyObject *self) {
    PyDict_Clear(((Updates *)self)->updates);
    return 0;
}

static void updates_dealloc(PyObject *self_) {
    Updates *self = (Updates *)self_;
    PyObject_GC_UnTrack(self_);
    Py_XDECREF(self->updates);
    Py_XDECREF(self->held);
    Py_TYPE(self_)->tp_free(self_);
}

static PyMethodDef methods[] = {
    {"add", updates_add, METH_VARARGS, "add(bits, update, kept): keep the update for a change of these bits, and of the others those whose bits are in `kept`."},
    {"launch", (PyCFunction)(void (*)(void))updates_launch, METH_FASTCALL,
     "launch(feed, seen, stats): the `Landing` of an update for all that has changed; `MISS` if Python must make it."},
    {NULL},
};
static PySequenceMethods masks = {.sq_contains = updates_contains};
static PyTypeObject UpdatesType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dagpu.compiled._reader.Updates",
    .tp_doc = "The updates of a feed that are launched here, by what has changed.",
    .tp_basicsize = sizeof(Updates),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = updates_new,
    .tp_dealloc = updates_dealloc,
    .tp_traverse = updates_traverse,
    .tp_clear = updates_clear,
    .tp_as_sequence = &masks,
    .tp_methods = methods,
};

int updates_ready(PyObject *module) {
    struct { PyObject **at; const char *text; } all[] = {
        {&s_busy, "busy"}, {&s_changes, "changes"}, {&s_now, "now"}, {&s_clock, "_clock"}, {&s_since, "since"},
        {&s_failed, "update_failed"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
        if (!(*all[i].at = PyUnicode_InternFromString(all[i].text))) return -1;
    if (PyType_Ready(&UnderWayType) < 0 || PyModule_AddType(module, &UpdateType) < 0) return -1;
    return PyModule_AddType(module, &UpdatesType);
}
