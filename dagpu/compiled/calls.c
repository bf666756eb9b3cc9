/* A whole call: `op.sync()` of an op whose plan is launched as an idle graph, and the op that a call of a pipeline makes.
 *
 * The references are _run_now in dagpu.runtime.interpreter, with direct_call and DirectCall.now, and Pipeline.__call__.
 * There is no section around a call here. None is needed: from its first effect to its end, all that runs is code of C,
 * and what Python code goes on with is over or belongs to a `Run`.
 */
#include "compiled.h"

static PyObject *s_thread, *s_latest, *s_last, *s_version, *s_enabled, *s_name, *s_hits, *s_latest_at, *s_suits, *s_plans,
    *s_flight, *s_call, *s_leaves, *s_op, *s_origin, *s_done, *s_facts;
static PyObject *no_names;
static unsigned long long served, refused_calls;

int calls_ready(void) {
    struct { PyObject **at; const char *text; } all[] = {
        {&s_thread, "state"}, {&s_latest, "latest"}, {&s_last, "_last"}, {&s_version, "version"}, {&s_enabled, "_enabled"},
        {&s_name, "name"}, {&s_hits, "hits"}, {&s_latest_at, "latest_at"}, {&s_suits, "suits"}, {&s_plans, "plans"},
        {&s_flight, "flight"},
        {&s_call, "call"}, {&s_leaves, "leaves"}, {&s_op, "op"}, {&s_origin, "origin"}, {&s_done, "done"},
        {&s_facts, "facts_of_call"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
        if (!(*all[i].at = PyUnicode_InternFromString(all[i].text))) return -1;
    return (no_names = PyTuple_New(0)) ? 0 : -1;
}

/* counts(): the calls that were served here, and those that were left to Python. */
PyObject *py_counts(PyObject *module, PyObject *unused) { return Py_BuildValue("KK", served, refused_calls); }

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

/* Return 1 if this thread may run an op now, as `_run_now` and `_run_in_task` ask; 0 if Python has to tell. */
static int may_run(int in_task) {
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

/* Take the settings of a run that starts now. Return 1 if it may be a direct call; 0 if Python has to tell. */
static int take_settings(PyObject **settings) {
    *settings = settings_now();
    return *settings ? SLOT(*settings, slots.settings_direct) == Py_True : PyErr_Occurred() ? -1 : 0;
}

/* Return the place of the innermost frame outside of dagpu. */
static PyObject *place_now(void) {
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

/* Return the place where a run starts: what `StartedAt` has set, or the place of the caller. */
static PyObject *start_now(void) {
    PyObject *set = value_of(known.started);
    if (!set || set != Py_None) return set;
    Py_DECREF(set);
    return place_now();
}

/* ---- the plan that serves an op ---------------------------------------------------------------------------------- */

/* What `direct_call` returns. All are new references; `cache` may be NULL. */
typedef struct { PyObject *loaded, *direct, *arguments, *named, *cache; } Serving;

static void clear_serving(Serving *it) {
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
    PyObject *place = PyObject_GetAttr(op, s_origin);
    PyObject *loaded = place ? PyObject_CallMethodOneArg(known.plans, s_latest_at, place) : NULL;
    Py_XDECREF(place);
    if (!loaded) return -1;
    int good = loaded == Py_None ? 0 : take_direct(it, loaded, s_op);
    Py_DECREF(loaded);
    it->arguments = Py_NewRef(op);
    it->named = Py_NewRef(no_names);
    if (good == 1) it->cache = Py_NewRef(known.plans);
    return good;
}

/* Find the plan that serves an op; see direct_call in dagpu.runtime.plan_lookup. */
static int find_serving(PyObject *op, Serving *it) {
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

/* ---- results ------------------------------------------------------------------------------------------------------ */

static PyObject *new_object(PyObject *type) { return ((PyTypeObject *)type)->tp_alloc((PyTypeObject *)type, 0); }

/* A tensor on new memory; see NewTensor. */
static PyObject *build_new(PyObject *recipe, PyObject *memory) {
    Py_ssize_t buffer = PyLong_AsSsize_t(SLOT(recipe, slots.new_buffer));
    if (buffer < 0 || buffer >= PyList_GET_SIZE(memory)) return PyErr_SetString(PyExc_SystemError, "no such buffer"), NULL;
    PyObject *lock = new_object(known.lock), *storage = new_object(known.storage);
    PyObject *state = new_object(known.handle_state), *tensor = new_object(known.tensor), *empty = PyUnicode_New(0, 0);
    if (lock && storage && state && tensor && empty) {
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
        SLOT(state, slots.state_kind) = Py_NewRef(known.tensor);
        SLOT(state, slots.state_storage) = Py_NewRef(storage);
        SLOT(state, slots.state_layout) = Py_NewRef(SLOT(recipe, slots.new_layout));
        SLOT(state, slots.state_origin) = Py_NewRef(SLOT(recipe, slots.new_origin));
        SLOT(state, slots.state_lender) = Py_NewRef(Py_None);
        SLOT(state, slots.state_loan) = Py_NewRef(Py_None);
        SLOT(state, slots.state_holders) = Py_NewRef(Py_None);
        SLOT(tensor, slots.handle_state) = Py_NewRef(state);
    } else {
        Py_CLEAR(tensor);
    }
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

static PyObject *build(PyObject *recipe, Call *call) {
    if (Py_IS_TYPE(recipe, (PyTypeObject *)known.new_tensor)) return build_new(recipe, call->memory);
    if (Py_IS_TYPE(recipe, (PyTypeObject *)known.leaf_memory)) {
        PyObject *leaf = build_leaf(recipe, call->leaves);
        if (leaf || PyErr_Occurred()) return leaf;
    }
    return PyObject_CallFunctionObjArgs(recipe, call->memory, call->leaves, NULL);
}

/* ---- the call ------------------------------------------------------------------------------------------------------ */

/* Return 1 if the flight of a plan may serve a run now, with these settings: a captured graph any, idle graphs one that is
 * a graph. */
static int may_be_served(PyObject *loaded, PyObject *settings, int is_captured) {
    if (SLOT(loaded, is_captured ? slots.plan_compiled : slots.plan_graph_ready) != Py_True) return 0;
    if (settings != SLOT(loaded, slots.plan_settings)) {
        PyObject *suits = PyObject_CallMethodOneArg(loaded, s_suits, settings);
        if (!suits) return -1;
        Py_DECREF(suits);
        if (suits != Py_True) return 0;
    }
    if (is_captured) return 1;
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

typedef struct {
    Call call;
    Boarding boarding;
    PyObject *flight, *recipe, *cache;
    double spin;
} Trip;

static void trip_init(Trip *trip) {
    call_init(&trip->call);
    trip->boarding = (Boarding){NULL, NULL, NULL, NULL, NULL};
    trip->flight = trip->recipe = trip->cache = NULL;
}

/* Release the locks and all that a call refers to. Its run is over, or was not begun. */
static void trip_end(Trip *trip) {
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

/* Return the result of a call whose run is over. */
static PyObject *trip_result(Trip *trip) {
    PyObject *result = build(trip->recipe, &trip->call);
    if (result && trip->cache && count_hit(trip->cache) < 0) Py_CLEAR(result);
    if (result) ++served;
    return result;
}

/* Go on in Python after the driver has refused a call. Return the run; NULL with an error, or without one if the call
 * must be made in another way. */
static PyObject *trip_refused(Trip *trip, int code, const char *name, int refused) {
    PyObject *run = flight_refused(trip->flight, trip->call.memory, &trip->boarding, code, name, refused);
    if (run == Py_None) {
        Py_CLEAR(run);
        call_put_back(&trip->call);
    }
    return run;
}

/* Take a plan and its flight, if the call is one for it. */
static int trip_plan(Trip *trip, Serving *it, PyObject *settings) {
    PyObject *prepared = SLOT(it->loaded, slots.plan_prepared), *spin = SLOT(settings, slots.settings_spin);
    trip->flight = prepared ? PyObject_GetAttr(prepared, s_flight) : NULL;
    if (!trip->flight) return -1;
    if (!Py_IS_TYPE(trip->flight, &FlightType) || SLOT(it->direct, slots.direct_on_failure) != Py_None) return 0;
    trip->recipe = Py_NewRef(SLOT(it->direct, slots.direct_build));
    trip->cache = Py_XNewRef(it->cache);
    trip->spin = PyFloat_AsDouble(spin == Py_None ? SLOT(it->loaded, slots.plan_spin) : spin);
    if (PyErr_Occurred()) return -1;
    return may_be_served(it->loaded, settings, flight_is_captured(trip->flight));
}

/* Read, lock, move and launch, and wait for `spin` seconds. Return -1 with an error; 0 if Python must make the call, which
 * has had no effect; else 1, with the outcome of the launch. */
static int trip_begin(Trip *trip, PyObject *op, Serving *it, PyObject *origin, double spin, int *outcome, int *code,
                      const char **name, int *refused) {
    int good = read_call(it, op, &trip->call);
    if (good == 1 && call_prepare(&trip->call, origin) < 0) good = -1;
    if (good == 1) good = flight_board(trip->flight, trip->call.memory, &trip->boarding, 1);
    if (good != 1) return good;
    good = call_begin(&trip->call, it->loaded, origin);
    if (good == 1) {
        *outcome = flight_fly(trip->flight, trip->call.memory, &trip->boarding, spin, code, name, refused);
        if (*outcome >= 0) return 1;
        call_put_back(&trip->call);
        good = -1;
    }
    flight_leave(trip->flight, &trip->boarding);
    return good;
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
        PyObject *run = outcome == UNDER_WAY ? flight_follow(trip.flight, trip.call.memory, &trip.boarding)
                                             : trip_refused(&trip, code, name, refused);
        PyObject *done = run ? PyObject_CallOneArg(known.finish, run) : NULL;
        if (done) result = trip_result(&trip);
        Py_XDECREF(run);
        Py_XDECREF(done);
    }
    trip_end(&trip);
    Py_XDECREF(origin);
    return result;
}

/* sync(op): the result of a run of an op; `MISS`, with no effect, if Python must run it. */
PyObject *py_sync(PyObject *module, PyObject *op) {
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

/* ---- await ---------------------------------------------------------------------------------------------------------- */

/* A call that is under way in a task. It owns its locks, memory, graph and stream, and is a `LiveRun` of the device: from
 * the launch on, until it has landed or Python goes on with a `Run` of its own. */
typedef struct {
    PyObject_HEAD
    Trip trip;
    PyObject *live, *run, *pace; /* `run` is the run of Python that goes on; NULL for none */
    int is_flying, is_over; /* `is_over` once `done` has found that */
} Landing;

static PyTypeObject LandingType;

/* Return 1 once for a landing that is flying, which the caller ends. */
static int claim(Landing *self) {
    int flying = self->is_flying;
    self->is_flying = 0;
    if (flying && PySet_Discard(self->live, (PyObject *)self) < 0) PyErr_WriteUnraisable((PyObject *)self);
    return flying;
}

/* Let a run of Python go on with a launch. Return -1 with an error. */
static int follow(Landing *self, int code, const char *name) {
    self->run = code ? trip_refused(&self->trip, code, name, -2)
        : flight_follow(self->trip.flight, self->trip.call.memory, &self->trip.boarding);
    return self->run ? 0 : -1;
}

/* may_serve(op): whether an idle graph may serve a run of this op. */
PyObject *py_may_serve(PyObject *module, PyObject *op) {
    Serving it;
    if (!known.new_tensor || !PyObject_TypeCheck(op, (PyTypeObject *)known.device_op)) Py_RETURN_FALSE;
    int good = find_serving(op, &it);
    PyObject *prepared = good == 1 ? SLOT(it.loaded, slots.plan_prepared) : NULL;
    PyObject *flight = prepared ? PyObject_GetAttr(prepared, s_flight) : NULL;
    clear_serving(&it);
    if (PyErr_Occurred()) return NULL;
    int serves = flight && Py_IS_TYPE(flight, &FlightType);
    Py_XDECREF(flight);
    return PyBool_FromLong(serves);
}

/* launch(op): the `Landing` of an op's run in a task of trio; `MISS`, with no effect, if Python must run it. */
PyObject *py_launch(PyObject *module, PyObject *op) {
    if (!known.new_tensor || !PyObject_TypeCheck(op, (PyTypeObject *)known.device_op)) return Py_NewRef(known.miss);
    Landing *self = PyObject_New(Landing, &LandingType);
    if (!self) return NULL;
    trip_init(&self->trip);
    self->live = self->run = self->pace = NULL;
    self->is_flying = self->is_over = 0;
    PyObject *settings = NULL, *origin = NULL;
    Serving it;
    int outcome, code, refused, good = find_serving(op, &it);
    const char *name;
    if (good == 1) good = may_run(1);
    if (good == 1) good = take_settings(&settings);
    if (good == 1) good = trip_plan(&self->trip, &it, settings);
    if (good == 1) {
        self->live = flight_live(self->trip.flight);
        good = !self->live ? -1 : self->live != Py_None;
    }
    if (good == 1) {
        PyObject *pace = SLOT(settings, slots.settings_spin) == Py_None ? SLOT(it.loaded, slots.plan_pace) : Py_None;
        self->pace = Py_NewRef(pace);
        good = (origin = start_now()) ? 1 : -1;
    }
    if (good == 1) good = trip_begin(&self->trip, op, &it, origin, 0.0, &outcome, &code, &name, &refused);
    clear_serving(&it);
    Py_XDECREF(settings);
    Py_XDECREF(origin);
    if (good == 1 && outcome == UNDER_WAY) {
        self->is_flying = 1; /* from here on, what drops it waits for it */
        if (PySet_Add(self->live, (PyObject *)self) < 0) good = -1;
    } else if (good == 1) {
        self->run = trip_refused(&self->trip, code, name, refused);
        good = self->run ? 1 : PyErr_Occurred() ? -1 : 0;
    }
    if (good == 1) return (PyObject *)self;
    Py_DECREF(self);
    if (good < 0) return NULL;
    ++refused_calls;
    return Py_NewRef(known.miss);
}

/* result(): the result, once `run` is over. */
static PyObject *landing_result(PyObject *self_, PyObject *unused) {
    Landing *self = (Landing *)self_;
    if (self->is_flying || !self->trip.call.begun) return PyErr_SetString(PyExc_RuntimeError, "there is no run that is over"), NULL;
    PyObject *result = trip_result(&self->trip);
    trip_end(&self->trip);
    return result;
}

/* land(): the result, if the run is over within the spin; else `MISS`: Python has to wait for `run`, then asks `result`. */
static PyObject *landing_land(PyObject *self_, PyObject *unused) {
    Landing *self = (Landing *)self_;
    if (self->is_over) return landing_result(self_, NULL);
    if (!claim(self)) return Py_NewRef(known.miss);
    const char *name;
    int code = flight_poll(self->trip.flight, &self->trip.boarding, self->trip.spin, &name);
    if (code == -1) return NULL;
    if (code) {
        if (follow(self, code == IS_BUSY ? 0 : code, name) < 0) return NULL;
        return Py_NewRef(known.miss);
    }
    flight_land(self->trip.flight, &self->trip.boarding);
    PyObject *result = trip_result(&self->trip);
    trip_end(&self->trip);
    return result;
}

/* end(): release the locks. `run` is over, or there is none. */
static PyObject *landing_end(PyObject *self_, PyObject *unused) {
    Landing *self = (Landing *)self_;
    if (!self->is_flying) trip_end(&self->trip);
    return Py_NewRef(Py_None);
}

/* done(): as `LiveRun.done`: look once whether it is over, and give back what it holds then. */
static PyObject *landing_done(PyObject *self_, PyObject *unused) {
    Landing *self = (Landing *)self_;
    const char *name;
    if (!claim(self)) return self->run ? PyObject_CallMethodNoArgs(self->run, s_done) : PyBool_FromLong(self->is_over);
    int code = flight_poll(self->trip.flight, &self->trip.boarding, 0.0, &name);
    if (!code) {
        flight_land(self->trip.flight, &self->trip.boarding);
        self->is_over = 1;
        Py_RETURN_TRUE;
    }
    if (code != -1) follow(self, code == IS_BUSY ? 0 : code, name);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_FALSE;
}

/* follow(): let a run of Python go on, and return it. */
static PyObject *landing_follow(PyObject *self_, PyObject *unused) {
    Landing *self = (Landing *)self_;
    if (claim(self) && follow(self, 0, "") < 0) return NULL;
    return Py_NewRef(self->run ? self->run : Py_None);
}

/* lose(error): as `LiveRun.lose`: the run that goes on sees that the device is lost. */
static PyObject *landing_lose(PyObject *self_, PyObject *error) {
    PyObject *run = landing_follow(self_, NULL);
    if (!run) return NULL;
    Py_DECREF(run);
    return Py_NewRef(Py_None);
}

static PyObject *landing_run(PyObject *self, void *unused) {
    PyObject *run = ((Landing *)self)->run;
    return Py_NewRef(run ? run : Py_None);
}
static PyObject *landing_pace(PyObject *self, void *unused) {
    PyObject *pace = ((Landing *)self)->pace;
    return Py_NewRef(pace ? pace : Py_None);
}
static PyObject *landing_finishing(PyObject *self, void *unused) { return PyBool_FromLong(0); }

/* A landing that is dropped waits for its run: its memory is in use until then. */
static void landing_dealloc(PyObject *self_) {
    Landing *self = (Landing *)self_;
    if (self->is_flying) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        const char *name;
        self->is_flying = 0;
        if (!flight_poll(self->trip.flight, &self->trip.boarding, -1.0, &name)) flight_land(self->trip.flight, &self->trip.boarding);
        else flight_forget(&self->trip.boarding);
        PyErr_Restore(type, value, trace);
    }
    trip_end(&self->trip);
    Py_XDECREF(self->live);
    Py_XDECREF(self->run);
    Py_XDECREF(self->pace);
    Py_TYPE(self_)->tp_free(self_);
}

static PyMethodDef landing_methods[] = {
    {"land", landing_land, METH_NOARGS, "land(): the result, if the run is over within the spin; else `MISS`: wait for `run`."},
    {"result", landing_result, METH_NOARGS, "result(): the result, once `run` is over."},
    {"end", landing_end, METH_NOARGS, "end(): release the locks, once `run` is over or has failed."},
    {"follow", landing_follow, METH_NOARGS, "follow(): the run that goes on with the launch; None if it has landed."},
    {"done", landing_done, METH_NOARGS, "done(): see `LiveRun`."},
    {"lose", landing_lose, METH_O, "lose(error): see `LiveRun`."},
    {NULL},
};
static PyGetSetDef landing_attributes[] = {
    {"run", landing_run, NULL, "The run that goes on; None for none."},
    {"pace", landing_pace, NULL, "The pace of the plan, or None."},
    {"finishing", landing_finishing, NULL, "See `LiveRun`."},
    {NULL},
};
static PyTypeObject LandingType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dagpu.compiled._reader.Landing",
    .tp_doc = "A call that has been launched in a task.",
    .tp_basicsize = sizeof(Landing),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = landing_dealloc,
    .tp_methods = landing_methods,
    .tp_getset = landing_attributes,
};
int landing_ready(void) { return PyType_Ready(&LandingType); }

/* ---- the op of a call of a pipeline --------------------------------------------------------------------------------- */

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
        PyObject *state = SLOT(arguments[i], slots.handle_state), *fresh = new_object(known.tensor);
        records[i] = PyTuple_Pack(4, how, origin, SLOT(state, slots.state_layout), SLOT(state, slots.state_origin));
        good = fresh && records[i];
        if (fresh) SLOT(fresh, slots.handle_state) = Py_NewRef(state);
        PyTuple_SET_ITEM(held, i, fresh);
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

/* ---- the methods ---------------------------------------------------------------------------------------------------- */

static PyObject *general_sync, *general_call; /* the methods of Python */

static PyObject *method_sync(PyObject *op, PyObject *unused) {
    PyObject *result = py_sync(NULL, op);
    if (result != known.miss) return result;
    Py_DECREF(result);
    return PyObject_CallOneArg(general_sync, op);
}

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

/* Return a method of a class in C that has the documentation of a function, which it calls for what is not served here. */
static PyObject *method_of(PyObject *args, const char *signature, PyMethodDef *definition, PyObject **general) {
    PyObject *type, *function;
    if (!PyArg_ParseTuple(args, "O!O", &PyType_Type, &type, &function)) return NULL;
    PyObject *doc = PyObject_GetAttrString(function, "__doc__");
    PyObject *text = doc ? PyUnicode_FromFormat("%s%s\n--\n\n%S", definition->ml_name, signature, doc) : NULL;
    Py_XDECREF(doc);
    if (!text) return NULL;
    definition->ml_doc = PyUnicode_AsUTF8(text); /* kept for ever, as the definition is */
    if (!definition->ml_doc) return NULL;
    Py_XSETREF(*general, Py_NewRef(function));
    return PyDescr_NewMethod((PyTypeObject *)type, definition);
}

/* sync_method(DeviceOp, function), call_method(Pipeline, function): the methods in C. */
PyObject *py_sync_method(PyObject *module, PyObject *args) {
    static PyMethodDef definition = {"sync", method_sync, METH_NOARGS, NULL};
    return method_of(args, "($self)", &definition, &general_sync);
}
PyObject *py_call_method(PyObject *module, PyObject *args) {
    static PyMethodDef definition = {"__call__", (PyCFunction)(void (*)(void))method_call, METH_FASTCALL | METH_KEYWORDS, NULL};
    return method_of(args, "($self, *args, **kwargs)", &definition, &general_call);
}
