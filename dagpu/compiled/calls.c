/* A whole call: `op.sync()` of an op whose plan is launched as one graph.
 *
 * The references are _run_now in dagpu.runtime.interpreter, with direct_call and DirectCall.now. There is no section around
 * a call as a whole: while code of C alone runs, nothing comes in between. Where a call needs Python, it opens one
 * (section.c), and closes it once all is given back.
 */
#include "calls.h"

static PyObject *s_hits, *s_suits;
static unsigned long long served, refused_calls;

int calls_ready(void) {
    struct { PyObject **at; const char *text; } all[] = {{&s_hits, "hits"}, {&s_suits, "suits"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
        if (!(*all[i].at = PyUnicode_InternFromString(all[i].text))) return -1;
    return 0;
}

/* counts(): the calls that were served here, and those that were left to Python. */
PyObject *py_counts(PyObject *module, PyObject *unused) { return Py_BuildValue("KK", served, refused_calls); }

void count_refused(void) { ++refused_calls; }

/* ---- results ------------------------------------------------------------------------------------------------------ */

PyObject *new_object(PyObject *type) { return ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, 0); }

/* The holders of new memory: one token, which `token` gets too, and which is borrowed from them. See Holders. */
static PyObject *new_holders(PyObject **token) {
    PyObject *holders = new_object(known.holders), *all = PyList_New(1);
    *token = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type);
    if (holders && all && *token) {
        PyList_SET_ITEM(all, 0, *token);
        SLOT(holders, slots.holders_token) = all;
        return holders;
    }
    Py_XDECREF(*token);
    Py_XDECREF(all);
    Py_XDECREF(holders);
    return NULL;
}

/* A tensor on new memory; see NewTensor. */
static PyObject *build_new(PyObject *recipe, PyObject *memory) {
    Py_ssize_t buffer = PyLong_AsSsize_t(SLOT(recipe, slots.new_buffer));
    if (buffer < 0 || buffer >= PyList_GET_SIZE(memory)) return PyErr_SetString(PyExc_SystemError, "no such buffer"), NULL;
    PyObject *kind = SLOT(recipe, slots.new_kind), *token = NULL;
    PyObject *holders = kind == known.shared_tensor ? new_holders(&token) : Py_NewRef(Py_None);
    PyObject *lock = new_object(known.lock), *storage = new_object(known.storage);
    PyObject *state = new_object(known.handle_state), *tensor = new_object(kind), *empty = PyUnicode_New(0, 0);
    if (lock && storage && state && tensor && empty && holders) {
        SLOT(lock, slots.lock_readers) = Py_NewRef(zero);
        SLOT(lock, slots.lock_writer) = Py_NewRef(Py_None);
        SLOT(lock, slots.lock_holder) = Py_NewRef(Py_None);
        SLOT(storage, slots.storage_device) = Py_NewRef(SLOT(recipe, slots.new_device));
        SLOT(storage, slots.storage_nbytes) = Py_NewRef(SLOT(recipe, slots.new_nbytes));
        SLOT(storage, slots.storage_memory) = Py_NewRef(PyList_GET_ITEM(memory, buffer));
        SLOT(storage, slots.storage_lost) = Py_NewRef(Py_None);
        SLOT(storage, slots.storage_lock) = Py_NewRef(lock);
        SLOT(storage, slots.storage_shares) = Py_NewRef(empty);
        SLOT(storage, slots.storage_graph) = Py_NewRef(known.no_graph);
        SLOT(state, slots.state_kind) = Py_NewRef(kind);
        SLOT(state, slots.state_storage) = Py_NewRef(storage);
        SLOT(state, slots.state_layout) = Py_NewRef(SLOT(recipe, slots.new_layout));
        SLOT(state, slots.state_origin) = Py_NewRef(SLOT(recipe, slots.new_origin));
        SLOT(state, slots.state_lender) = Py_NewRef(Py_None);
        SLOT(state, slots.state_loan) = Py_NewRef(Py_None);
        SLOT(state, slots.state_holders) = Py_NewRef(holders);
        SLOT(tensor, slots.handle_state) = Py_NewRef(state);
        if (token) {
            SLOT(tensor, slots.shared_holders) = Py_NewRef(holders);
            SLOT(tensor, slots.shared_counted) = Py_NewRef(token);
        }
    } else {
        Py_CLEAR(tensor);
    }
    Py_XDECREF(holders);
    Py_XDECREF(lock);
    Py_XDECREF(storage);
    Py_XDECREF(state);
    Py_XDECREF(empty);
    return tensor;
}

/* Return the leaf that is the result, if it is a tensor with the layout of the result; NULL without an error if not. */
static PyObject *build_leaf(PyObject *recipe, PyObject *leaves) {
    Py_ssize_t index = PyLong_AsSsize_t(SLOT(recipe, slots.leaf_index));
    if (index < 0 || index >= PyList_GET_SIZE(leaves) || SLOT(recipe, slots.leaf_kind) != known.tensor) return NULL;
    PyObject *leaf = PyList_GET_ITEM(leaves, index);
    if (!Py_IS_TYPE(leaf, (PyTypeObject *)known.tensor)) return NULL;
    PyObject *state = SLOT(leaf, slots.handle_state);
    if (!state || !Py_IS_TYPE(state, (PyTypeObject *)known.handle_state)) return NULL;
    if (SLOT(state, slots.state_lender) != Py_None) return NULL;
    return SLOT(state, slots.state_layout) == SLOT(recipe, slots.leaf_layout) ? Py_NewRef(leaf) : NULL;
}

/* A handle to the memory of a target, if one was handed out for it before; NULL without an error if not. See
 * TargetMemory.shared. */
static PyObject *build_shared(PyObject *recipe) {
    PyObject *targets = SLOT(recipe, slots.target_targets), *key = SLOT(recipe, slots.target_buffer);
    PyObject *all = SLOT(targets, slots.targets_memory), *held = SLOT(targets, slots.targets_held);
    Py_ssize_t buffer = PyLong_AsSsize_t(key);
    if (buffer < 0 || buffer >= PyList_GET_SIZE(all)) return NULL;
    PyObject *pair = PyDict_GetItemWithError(held, key);
    if (!pair || PyTuple_GET_ITEM(pair, 0) != PyList_GET_ITEM(all, buffer)) return NULL;
    PyObject *handle = PyTuple_GET_ITEM(pair, 1);
    PyObject *before = Py_IS_TYPE(handle, (PyTypeObject *)known.shared_tensor) ? SLOT(handle, slots.handle_state) : NULL;
    if (!before || !Py_IS_TYPE(before, (PyTypeObject *)known.handle_state)) return NULL;
    PyObject *holders = Py_NewRef(SLOT(before, slots.state_holders));
    PyObject *token = Py_IS_TYPE(holders, (PyTypeObject *)known.holders) ? SLOT(holders, slots.holders_token) : NULL;
    PyObject *counted = token && PyList_CheckExact(token) && PyList_GET_SIZE(token) ? Py_NewRef(PyList_GET_ITEM(token, 0)) : NULL;
    PyObject *storage = Py_NewRef(SLOT(before, slots.state_storage)), *origin = Py_NewRef(SLOT(before, slots.state_origin));
    PyObject *state = counted ? new_object(known.handle_state) : NULL;
    PyObject *tensor = state ? new_object(known.shared_tensor) : NULL;
    if (tensor) {
        SLOT(state, slots.state_kind) = Py_NewRef(known.shared_tensor);
        SLOT(state, slots.state_storage) = Py_NewRef(storage);
        SLOT(state, slots.state_layout) = Py_NewRef(SLOT(recipe, slots.target_layout));
        SLOT(state, slots.state_origin) = Py_NewRef(origin);
        SLOT(state, slots.state_lender) = Py_NewRef(Py_None);
        SLOT(state, slots.state_loan) = Py_NewRef(Py_None);
        SLOT(state, slots.state_holders) = Py_NewRef(holders);
        SLOT(tensor, slots.handle_state) = Py_NewRef(state);
        SLOT(tensor, slots.shared_holders) = Py_NewRef(holders);
        SLOT(tensor, slots.shared_counted) = Py_NewRef(counted);
    }
    Py_XDECREF(state);
    Py_DECREF(storage);
    Py_DECREF(origin);
    Py_XDECREF(counted);
    Py_DECREF(holders);
    return tensor;
}

static PyObject *build(PyObject *recipe, Call *call, Section *section);

/* A value of dagpu's own of its items. See CompositeOf. */
static PyObject *build_composite(PyObject *recipe, Call *call, Section *section) {
    PyObject *items = build(SLOT(recipe, slots.composite_of_items), call, section);
    PyObject *made = items ? new_object(SLOT(recipe, slots.composite_kind)) : NULL;
    if (made) {
        SLOT(made, slots.composite_about) = Py_NewRef(SLOT(recipe, slots.composite_of_about));
        SLOT(made, slots.composite_items) = Py_NewRef(items);
    }
    Py_XDECREF(items);
    return made;
}

static PyObject *build(PyObject *recipe, Call *call, Section *section) {
    /* What several parts are built from is kept by a function of Python, which is the whole recipe then. */
    while (Py_IS_TYPE(recipe, (PyTypeObject *)known.first_use)) recipe = SLOT(recipe, slots.first_make);
    if (Py_IS_TYPE(recipe, (PyTypeObject *)known.shared_target)) {
        PyObject *tensor = build_shared(recipe);
        if (tensor || PyErr_Occurred()) return tensor;
        section_open(section);
        return PyObject_CallNoArgs(recipe);
    }
    if (Py_IS_TYPE(recipe, (PyTypeObject *)known.new_tensor)) return build_new(recipe, call->memory);
    if (Py_IS_TYPE(recipe, (PyTypeObject *)known.composite_of) && SLOT(recipe, slots.composite_of_own) == Py_True)
        return build_composite(recipe, call, section);
    if (Py_IS_TYPE(recipe, (PyTypeObject *)known.leaf_memory)) {
        PyObject *leaf = build_leaf(recipe, call->leaves);
        if (leaf || PyErr_Occurred()) return leaf;
    }
    if (Py_IS_TYPE(recipe, (PyTypeObject *)known.same_value)) return Py_XNewRef(SLOT(recipe, slots.same_value));
    if (Py_IS_TYPE(recipe, (PyTypeObject *)known.tuple_of)) {
        PyObject *parts = SLOT(recipe, slots.tuple_parts), *all = NULL;
        if (parts && PyList_CheckExact(parts) && (all = PyTuple_New(PyList_GET_SIZE(parts))))
            for (Py_ssize_t i = 0; all && i < PyTuple_GET_SIZE(all); ++i) {
                PyObject *part = build(PyList_GET_ITEM(parts, i), call, section);
                if (part) PyTuple_SET_ITEM(all, i, part);
                else Py_CLEAR(all);
            }
        return all;
    }
    section_open(section);
    return PyObject_CallFunctionObjArgs(recipe, call->memory, call->leaves, NULL);
}

/* ---- the call ------------------------------------------------------------------------------------------------------ */

/* Return 1 if the flight of a plan may serve a run now, with these settings: a captured graph or a copy any, idle graphs
 * one that is a graph. */
static int may_be_served(PyObject *loaded, PyObject *settings, int serves_all) {
    if (SLOT(loaded, serves_all ? slots.plan_compiled : slots.plan_graph_ready) != Py_True) return 0;
    if (settings != SLOT(loaded, slots.plan_settings)) {
        PyObject *suits = PyObject_CallMethodOneArg(loaded, s_suits, settings);
        if (!suits) return -1;
        Py_DECREF(suits);
        if (suits != Py_True) return 0;
    }
    if (serves_all) return 1;
    double from = PyFloat_AsDouble(SLOT(loaded, slots.plan_graph_from));
    double runs = PyFloat_AsDouble(SLOT(loaded, slots.plan_runs));
    if (PyErr_Occurred()) return -1;
    return runs + 1 >= from;
}

/* Read the inputs of a call by its direct call. */
static int read_call(Serving *it, PyObject *op, Call *call) {
    PyObject *read = SLOT(it->direct, slots.direct_read);
    int good;
    if (Py_IS_TYPE(read, &RowsType)) {
        good = rows_read(read, it->arguments, it->named, call);
    } else {
        PyObject *reading = PyObject_CallFunctionObjArgs(read, it->arguments, it->named, NULL);
        if (!reading) return -1;
        good = reading == Py_None ? 0 : call_from_reading(call, reading) < 0 ? -1 : 1;
        Py_DECREF(reading);
    }
    if (good == 1 && SLOT(it->direct, slots.direct_attaches) == Py_True) { /* attach_plans */
        PyObject *pair = PyTuple_Pack(2, it->loaded, call->leaves), *plans = pair ? PyTuple_Pack(1, pair) : NULL;
        Py_XDECREF(pair);
        if (!plans) return -1;
        Py_XDECREF(exchange_slot(op, slots.then_plans, plans));
    }
    return good;
}

/* ---- a call under way ---------------------------------------------------------------------------------------------- */

void trip_init(Trip *trip) {
    section_init(&trip->section);
    call_init(&trip->call);
    trip->boarding = (Boarding){.section = &trip->section};
    trip->flight = trip->recipe = trip->cache = NULL;
}

void trip_end(Trip *trip) {
    call_end(&trip->call);
    call_clear(&trip->call);
    Py_CLEAR(trip->flight);
    Py_CLEAR(trip->recipe);
    Py_CLEAR(trip->cache);
}

/* Count one more hit of a cache. */
static int count_hit(PyObject *cache) {
    PyObject *hits = PyObject_GetAttr(cache, s_hits), *more = hits ? PyNumber_Add(hits, one) : NULL;
    int failed = more ? PyObject_SetAttr(cache, s_hits, more) : -1;
    Py_XDECREF(hits);
    Py_XDECREF(more);
    return failed;
}

PyObject *trip_result(Trip *trip) {
    PyObject *result = build(trip->recipe, &trip->call, &trip->section);
    if (result && trip->cache && count_hit(trip->cache) < 0) Py_CLEAR(result);
    if (result) ++served;
    return result;
}

PyObject *trip_refused(Trip *trip, int code, const char *name, int refused) {
    PyObject *run = flight_refused(trip->flight, trip->call.memory, &trip->boarding, code, name, refused);
    if (run == Py_None) {
        Py_CLEAR(run);
        call_put_back(&trip->call);
    }
    return run;
}

/* Take a plan, its flight, and what makes its result. */
static int take_flight(Trip *trip, PyObject *loaded, PyObject *recipe) {
    PyObject *prepared = SLOT(loaded, slots.plan_prepared);
    trip->flight = prepared ? PyObject_GetAttr(prepared, s_flight) : NULL;
    if (!trip->flight) return -1;
    trip->recipe = Py_NewRef(recipe);
    return Py_IS_TYPE(trip->flight, &FlightType);
}

int trip_plan(Trip *trip, Serving *it, PyObject *settings) {
    PyObject *spin = SLOT(settings, slots.settings_spin);
    int good = take_flight(trip, it->loaded, SLOT(it->direct, slots.direct_build));
    if (good != 1) return good;
    if (SLOT(it->direct, slots.direct_on_failure) != Py_None) return 0;
    trip->cache = Py_XNewRef(it->cache);
    trip->spin = PyFloat_AsDouble(spin == Py_None ? SLOT(it->loaded, slots.plan_spin) : spin);
    if (PyErr_Occurred()) return -1;
    return may_be_served(it->loaded, settings, flight_serves_all(trip->flight));
}

int trip_choose(Trip *trip, PyObject *loaded, PyObject *recipe, double spin) {
    int good = take_flight(trip, loaded, recipe);
    trip->spin = spin;
    return good == 1 ? may_be_served(loaded, SLOT(loaded, slots.plan_settings), 0) : good;
}

int trip_launch(Trip *trip, PyObject *loaded, PyObject *origin, double spin, int *outcome, int *code, const char **name,
                int *refused) {
    int good = call_prepare(&trip->call, origin) < 0 ? -1 : 1;
    if (good == 1) good = flight_board(trip->flight, trip->call.memory, &trip->boarding, 1);
    if (good != 1) return good;
    good = call_begin(&trip->call, loaded, origin);
    if (good == 1) {
        *outcome = flight_fly(trip->flight, trip->call.memory, &trip->boarding, spin, code, name, refused);
        if (*outcome >= 0) return 1;
        call_put_back(&trip->call);
        good = -1;
    }
    flight_leave(trip->flight, &trip->boarding);
    return good;
}

int trip_begin(Trip *trip, PyObject *op, Serving *it, PyObject *origin, double spin, int *outcome, int *code,
               const char **name, int *refused) {
    int good = read_call(it, op, &trip->call);
    return good == 1 ? trip_launch(trip, it->loaded, origin, spin, outcome, code, name, refused) : good;
}

/* ---- sync() --------------------------------------------------------------------------------------------------------- */

static PyObject *run_call(PyObject *op, Serving *it, PyObject *settings) {
    Trip trip;
    PyObject *result = NULL, *origin = NULL;
    int outcome, code, refused;
    const char *name;
    trip_init(&trip);
    int good = trip_plan(&trip, it, settings);
    if (good == 1 && !(trip.spin > 0)) good = 0; /* a run that is not waited for at once has a `Run` */
    if (good == 1) good = (origin = start_now()) ? 1 : -1;
    if (good == 1) good = trip_begin(&trip, op, it, origin, trip.spin, &outcome, &code, &name, &refused);
    if (good == 1 && outcome == LANDED) {
        flight_land(trip.flight, &trip.boarding);
        result = trip_result(&trip);
    } else if (good == 1) {
        section_open(&trip.section); /* a Ctrl-C that came in the driver is raised at the end */
        PyObject *run = outcome == UNDER_WAY ? launched_run(trip.flight, trip.call.memory, &trip.boarding)
                                             : trip_refused(&trip, code, name, refused);
        PyObject *done = run ? PyObject_CallOneArg(known.finish, run) : NULL;
        if (done) result = trip_result(&trip);
        Py_XDECREF(run);
        Py_XDECREF(done);
    }
    trip_end(&trip);
    Py_XDECREF(origin);
    if (section_close(&trip.section) < 0) Py_CLEAR(result);
    return result;
}

/* Return the result of a run of an op; `MISS`, with no effect, if Python must run it. */
static PyObject *sync_op(PyObject *op) {
    if (!known.new_tensor || !PyObject_TypeCheck(op, (PyTypeObject *)known.device_op)) return Py_NewRef(known.miss);
    PyObject *result = NULL, *settings = NULL;
    Serving it;
    int good = find_serving(op, &it);
    if (good == 1) good = may_run(0);
    if (good == 1) good = take_settings(&settings);
    if (good == 1) result = run_call(op, &it, settings);
    Py_XDECREF(settings);
    clear_serving(&it);
    if (result || PyErr_Occurred()) return result;
    ++refused_calls;
    return Py_NewRef(known.miss);
}

/* ---- the method --------------------------------------------------------------------------------------------------- */

static PyObject *general_sync; /* the method of Python */

void without_our_frames(void) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace) PyException_SetTraceback(value, trace);
    Py_XDECREF(trace);
    PyObject *done = PyObject_CallOneArg(known.without_frames, value);
    if (!done) PyErr_Clear();
    Py_XDECREF(done);
    PyErr_Restore(type, value, PyException_GetTraceback(value));
}

static PyObject *method_sync(PyObject *op, PyObject *const *arguments, Py_ssize_t n, PyObject *names) {
    if (n || names) { /* the method of Python says what is wrong */
        PyObject *few[FEW], **stack = few;
        Py_ssize_t all = n + (names ? PyTuple_GET_SIZE(names) : 0);
        if (all >= FEW && !(stack = PyMem_New(PyObject *, all + 1))) return PyErr_NoMemory();
        stack[0] = op;
        memcpy(stack + 1, arguments, (size_t)all * sizeof *stack);
        PyObject *wrong = PyObject_Vectorcall(general_sync, stack, (size_t)n + 1, names);
        if (stack != few) PyMem_Free(stack);
        return wrong;
    }
    PyObject *result = sync_op(op);
    if (!result) without_our_frames();
    if (result != known.miss) return result;
    Py_DECREF(result);
    return PyObject_CallOneArg(general_sync, op);
}

/* Return a method of a class in C that has the documentation of a function, which it calls for what is not served here. */
PyObject *method_of(PyObject *args, const char *signature, PyMethodDef *definition, PyObject **general) {
    PyObject *type, *function;
    if (!PyArg_ParseTuple(args, "O!O", &PyType_Type, &type, &function)) return NULL;
    if (*general) return Py_NewRef(function); /* dagpu is imported again: the first classes keep what they have */
    PyObject *doc = PyObject_GetAttrString(function, "__doc__");
    PyObject *text = doc ? PyUnicode_FromFormat("%s%s\n--\n\n%S", definition->ml_name, signature, doc) : NULL;
    Py_XDECREF(doc);
    if (!text) return NULL;
    definition->ml_doc = PyUnicode_AsUTF8(text); /* kept for ever, as the definition is */
    if (!definition->ml_doc) return NULL;
    Py_XSETREF(*general, Py_NewRef(function));
    return PyDescr_NewMethod((PyTypeObject *)type, definition);
}

/* sync_method(DeviceOp, function): the method in C. */
PyObject *py_sync_method(PyObject *module, PyObject *args) {
    static PyMethodDef definition = {"sync", (PyCFunction)(void (*)(void))method_sync, METH_FASTCALL | METH_KEYWORDS, NULL};
    return method_of(args, "($self)", &definition, &general_sync);
}
