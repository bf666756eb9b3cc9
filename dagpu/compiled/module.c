/* The module `dagpu.compiled._reader`: what Python gives to the parts, and what they offer. */
#include "compiled.h"
#include <structmember.h>
#include <stddef.h>

Known known;
Slots slots;
PyObject *s_state, *s_thread, *s_origin, *s_flight, *s_live, *s_shape, *s_dtype, *zero, *one;

int section_ready(void);
int flight_ready(void);
int pool_ready(void);
int serving_ready(void);
int calls_ready(void);
int pipeline_ready(void);
int launched_ready(void);
int landing_ready(void);
int awaited_ready(void);
int feed_next_ready(void);
int updates_ready(PyObject *module);
PyObject *py_set_driver(PyObject *module, PyObject *addresses);
PyObject *py_counts(PyObject *module, PyObject *unused);

#define OBJECT(name) {#name, offsetof(Known, name)}
static const struct { const char *name; size_t at; } objects[] = {
    OBJECT(handle_base), OBJECT(handle_state), OBJECT(storage), OBJECT(no_graph), OBJECT(argument_error), OBJECT(ndarray),
    OBJECT(same_element), OBJECT(cut_matches), OBJECT(acquire), OBJECT(release), OBJECT(taken), OBJECT(new_handle),
    OBJECT(tensor), OBJECT(tensor_mut), OBJECT(loaded_plan), OBJECT(memory_block), OBJECT(graph_exec), OBJECT(cuda_stream),
    OBJECT(launch_parameters), OBJECT(inside), OBJECT(exit_guard), OBJECT(recorder), OBJECT(long_spin), OBJECT(completed), OBJECT(then),
    OBJECT(value), OBJECT(pure), OBJECT(graph_launch), OBJECT(device_op), OBJECT(direct_call), OBJECT(settings),
    OBJECT(interpreter_class), OBJECT(interpreter), OBJECT(thread_local_), OBJECT(outside), OBJECT(critical), OBJECT(block),
    OBJECT(async_library), OBJECT(started), OBJECT(origins), OBJECT(ours), OBJECT(is_ours), OBJECT(chosen_device), OBJECT(chosen_mesh),
    OBJECT(lookup), OBJECT(variables), OBJECT(keys), OBJECT(plans), OBJECT(finish), OBJECT(get_handler), OBJECT(set_handler),
    OBJECT(deferred), OBJECT(end_section), OBJECT(without_frames), OBJECT(miss), OBJECT(shared_tensor),
    OBJECT(same_value), OBJECT(tuple_of), OBJECT(leaf_memory), OBJECT(new_tensor), OBJECT(lock), OBJECT(thread_state),
    OBJECT(checkpoint_if_cancelled), OBJECT(landed), OBJECT(turn),
    OBJECT(history), OBJECT(version), OBJECT(live_input), OBJECT(holders), OBJECT(target_memory), OBJECT(shared_target),
    OBJECT(clock), OBJECT(snapshot), OBJECT(perf_counter), OBJECT(stats), OBJECT(observed), OBJECT(feed), OBJECT(own_containers),
    OBJECT(composite), OBJECT(tensor_ref), OBJECT(composite_of), OBJECT(first_use), OBJECT(pool), OBJECT(reference), OBJECT(reference_queue),
};

#define PLACE(object, slot, at) {offsetof(Known, object), slot, offsetof(Slots, at)}
static const struct { size_t object; const char *slot; size_t at; } places[] = {
    PLACE(handle_base, "_state", handle_state), PLACE(handle_base, "_moved", handle_moved),
    PLACE(handle_state, "kind", state_kind), PLACE(handle_state, "storage", state_storage),
    PLACE(handle_state, "layout", state_layout), PLACE(handle_state, "origin", state_origin),
    PLACE(handle_state, "lender", state_lender), PLACE(handle_state, "loan", state_loan),
    PLACE(handle_state, "holders", state_holders), PLACE(storage, "device", storage_device),
    PLACE(storage, "nbytes", storage_nbytes), PLACE(storage, "memory", storage_memory),
    PLACE(storage, "lock", storage_lock), PLACE(storage, "graph", storage_graph), PLACE(storage, "lost", storage_lost),
    PLACE(storage, "shares", storage_shares), PLACE(lock, "writer", lock_writer), PLACE(lock, "readers", lock_readers),
    PLACE(lock, "holder", lock_holder), PLACE(thread_state, "where", thread_where),
    PLACE(thread_state, "hold", thread_hold), PLACE(thread_state, "gets_signals", thread_signals), PLACE(loaded_plan, "runs", plan_runs),
    PLACE(loaded_plan, "direct", plan_direct), PLACE(loaded_plan, "graph_from", plan_graph_from),
    PLACE(loaded_plan, "graph_is_ready", plan_graph_ready), PLACE(loaded_plan, "settings", plan_settings),
    PLACE(loaded_plan, "is_compiled", plan_compiled),
    PLACE(loaded_plan, "spin", plan_spin), PLACE(loaded_plan, "pace", plan_pace), PLACE(loaded_plan, "place", plan_place),
    PLACE(loaded_plan, "prepared", plan_prepared), PLACE(memory_block, "address", block_address),
    PLACE(graph_exec, "raw", graph_raw), PLACE(graph_exec, "parameters", graph_parameters),
    PLACE(graph_exec, "arenas", graph_arenas), PLACE(graph_exec, "nodes", graph_nodes), PLACE(cuda_stream, "raw", stream_raw),
    PLACE(cuda_stream, "still_submitting", stream_submitting), PLACE(cuda_stream, "_marks", stream_marks),
    PLACE(launch_parameters, "bases", parameters_bases), PLACE(launch_parameters, "numbers", parameters_numbers),
    PLACE(exit_guard, "begun", guard_begun), PLACE(then, "source", then_source), PLACE(then, "f", then_f),
    PLACE(then, "origin", then_origin), PLACE(device_op, "_plans", then_plans), PLACE(value, "content", value_content),
    PLACE(value, "origin", value_origin), PLACE(pure, "plans", pure_plans), PLACE(graph_launch, "captured", launch_captured),
    PLACE(graph_launch, "origin", launch_origin), PLACE(direct_call, "read", direct_read),
    PLACE(direct_call, "_build", direct_build), PLACE(direct_call, "_attaches", direct_attaches),
    PLACE(direct_call, "_on_failure", direct_on_failure), PLACE(settings, "spin", settings_spin),
    PLACE(settings, "direct", settings_direct), PLACE(same_value, "_value", same_value),
    PLACE(tuple_of, "_parts", tuple_parts), PLACE(leaf_memory, "_index", leaf_index),
    PLACE(leaf_memory, "_kind", leaf_kind), PLACE(leaf_memory, "_layout", leaf_layout),
    PLACE(new_tensor, "_device", new_device), PLACE(new_tensor, "_nbytes", new_nbytes),
    PLACE(new_tensor, "_buffer", new_buffer), PLACE(new_tensor, "_layout", new_layout),
    PLACE(new_tensor, "_origin", new_origin), PLACE(new_tensor, "_kind", new_kind),
    PLACE(first_use, "_make", first_make),
    PLACE(composite_of, "_kind", composite_kind), PLACE(composite_of, "_about", composite_of_about),
    PLACE(composite_of, "_items", composite_of_items),
    PLACE(composite_of, "_has_own_fields", composite_of_own), PLACE(composite, "_about", composite_about),
    PLACE(composite, "_items", composite_items),
    PLACE(memory_block, "nbytes", block_nbytes), PLACE(memory_block, "size", block_size), PLACE(pool, "_lock", pool_lock),
    PLACE(pool, "_idle", pool_idle), PLACE(pool, "_sizes", pool_sizes), PLACE(pool, "_used", pool_used),
    PLACE(pool, "dropped", pool_dropped), PLACE(pool, "visited", pool_visited), PLACE(pool, "parked_bytes", pool_parked), PLACE(pool, "mapped", pool_mapped),
    PLACE(reference_queue, "gone", queue_gone), PLACE(reference_queue, "_append", queue_append),
    PLACE(reference_queue, "_alive", queue_alive), PLACE(reference, "resource", reference_resource),
    PLACE(shared_tensor, "_counted", shared_counted), PLACE(shared_tensor, "_holders", shared_holders),
    PLACE(holders, "_token", holders_token), PLACE(history, "versions", history_versions),
    PLACE(version, "instant", version_instant), PLACE(version, "revision", version_revision),
    PLACE(version, "value", version_value), PLACE(version, "parts", version_parts),
    PLACE(version, "written", version_written), PLACE(version, "since", version_since),
    PLACE(live_input, "version", input_version), PLACE(live_input, "value", input_value),
    PLACE(target_memory, "memory", targets_memory), PLACE(target_memory, "_held", targets_held),
    PLACE(target_memory, "_seen_elsewhere", targets_elsewhere), PLACE(shared_target, "_targets", target_targets),
    PLACE(shared_target, "_buffer", target_buffer), PLACE(shared_target, "_layout", target_layout),
    PLACE(stats, "launched", stats_launched), PLACE(stats, "reused", stats_reused), PLACE(stats, "skipped", stats_skipped),
    PLACE(stats, "values", stats_values), PLACE(stats, "_handed", stats_handed), PLACE(stats, "_latencies", stats_latencies),
    PLACE(stats, "_left", stats_left), PLACE(stats, "_waited_for_producer", stats_for_producer),
    PLACE(stats, "_waited_for_consumer", stats_for_consumer), PLACE(feed, "_stage", feed_stage),
    PLACE(feed, "_asked", feed_asked), PLACE(feed, "_clock", feed_clock), PLACE(feed, "_track", feed_track),
    PLACE(feed, "stats", feed_stats),
};

static PyObject **known_at(size_t at) { return (PyObject **)((char *)&known + at); }

PyObject *attribute_named(PyObject *object, const char *name) {
    PyObject *text = PyUnicode_InternFromString(name), *found = text ? PyObject_GetAttr(object, text) : NULL;
    Py_XDECREF(text);
    return found;
}

PyObject *call_named(PyObject *object, const char *name) {
    PyObject *text = PyUnicode_InternFromString(name), *result = text ? PyObject_CallMethodNoArgs(object, text) : NULL;
    Py_XDECREF(text);
    return result;
}

int must_know(PyObject **first, PyObject **last, const char *what) {
    for (PyObject **each = first; each <= last; ++each)
        if (!*each) return PyErr_Format(PyExc_RuntimeError, "%s: Python has not given all that it needs", what), -1;
    return 0;
}

/* Return the place of a slot in the objects of a class, or of a subclass of it; -1 with an error if it has none. */
static Py_ssize_t place_of_slot(PyObject *of, const char *name) {
    PyObject *type = PyType_Check(of) ? of : (PyObject *)Py_TYPE(of), *found = PyObject_GetAttrString(type, name);
    if (!found) return -1;
    Py_ssize_t at = -1;
    if (Py_IS_TYPE(found, &PyMemberDescr_Type) && ((PyMemberDescrObject *)found)->d_member->type == T_OBJECT_EX)
        at = ((PyMemberDescrObject *)found)->d_member->offset;
    else PyErr_Format(PyExc_TypeError, "%R has no slot %s", type, name);
    Py_DECREF(found);
    return at;
}

/* learn(**objects): keep these objects, and find the slots of the classes among them. */
static PyObject *py_learn(PyObject *module, PyObject *args, PyObject *given) {
    PyObject *name, *value;
    Py_ssize_t at = 0;
    if (PyTuple_GET_SIZE(args)) return PyErr_SetString(PyExc_TypeError, "learn takes names"), NULL;
    while (given && PyDict_Next(given, &at, &name, &value)) {
        size_t i = 0, n = sizeof objects / sizeof *objects;
        while (i < n && PyUnicode_CompareWithASCIIString(name, objects[i].name)) ++i;
        if (i == n) return PyErr_Format(PyExc_TypeError, "%U is no name that is known here", name), NULL;
        for (size_t k = 0; k < sizeof places / sizeof *places; ++k) {
            if (places[k].object != objects[i].at) continue;
            Py_ssize_t found = place_of_slot(value, places[k].slot);
            if (found < 0) return NULL;
            *(Py_ssize_t *)((char *)&slots + places[k].at) = found;
        }
        Py_XSETREF(*known_at(objects[i].at), Py_NewRef(value));
    }
    return Py_NewRef(Py_None);
}

static PyMethodDef functions[] = {
    {"learn", (PyCFunction)(void (*)(void))py_learn, METH_VARARGS | METH_KEYWORDS,
     "learn(**objects): keep these objects, and find the slots of the classes among them."},
    {"begin", (PyCFunction)(void (*)(void))py_begin, METH_FASTCALL,
     "begin(reading, loaded, origin): lock the memory of a call, move its handles and count its run; see begin_run."},
    {"end", py_end, METH_O, "end(reading): release the locks of a call; see end_run."},
    {"set_driver", py_set_driver, METH_O, "set_driver(addresses): take the addresses of the driver's functions by name."},
    {"sync_method", py_sync_method, METH_VARARGS, "sync_method(DeviceOp, function): the method `sync` in C."},
    {"await_method", py_await_method, METH_VARARGS, "await_method(DeviceOp, function): the method `__await__` in C."},
    {"launch_method", py_launch_method, METH_VARARGS, "launch_method(CudaGraph, function): the method `launch` in C."},
    {"next_method", py_next_method, METH_VARARGS, "next_method(Feed, function): the method `next` in C."},
    {"anext_method", py_anext_method, METH_VARARGS, "anext_method(Feed, function): the method `__anext__` in C."},
    {"call_method", py_call_method, METH_VARARGS, "call_method(Pipeline, function): the method `__call__` in C."},
    {"counts", py_counts, METH_NOARGS, "counts(): the calls of `sync` that were served here, and those left to Python."},
    {NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "dagpu.compiled._reader", "The compiled reader of the table of a run.", -1, functions};

PyMODINIT_FUNC PyInit__reader(void) {
    struct { PyObject **at; const char *text; } names[] = {
        {&s_state, "_state"}, {&s_thread, "state"}, {&s_origin, "origin"}, {&s_flight, "flight"}, {&s_live, "live"},
        {&s_shape, "shape"}, {&s_dtype, "dtype"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
        if (!(*names[i].at = PyUnicode_InternFromString(names[i].text))) return NULL;
    if (!(zero = PyLong_FromLong(0)) || !(one = PyLong_FromLong(1))) return NULL;
    int (*all[])(void) = {section_ready, flight_ready, pool_ready, serving_ready, calls_ready, pipeline_ready, launched_ready, landing_ready,
                           awaited_ready, feed_next_ready};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
        if (all[i]() < 0) return NULL;
    PyObject *module = PyModule_Create(&definition);
    PyTypeObject *types[] = {&RowsType, &NodesType, &FlightType};
    for (size_t i = 0; module && i < sizeof types / sizeof *types; ++i)
        if (PyModule_AddType(module, types[i]) < 0) Py_CLEAR(module);
    if (module && updates_ready(module) < 0) Py_CLEAR(module);
    return module;
}
