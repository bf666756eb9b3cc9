"""Mistakes in the compiled reader, each of which the tests of this folder have to notice.

Whoever changes a line of C that is named here changes it here too, or names another.
"""

from typing import Final, NamedTuple


class Mistake(NamedTuple):
    """A text that is in all sources once, and what is in its place in the mistaken source."""

    text: str
    instead: str = ""


def mistakes(*edits: tuple[str, str] | str) -> list[Mistake]:
    """Return mistakes. A text alone is left out."""
    return [Mistake(each) if isinstance(each, str) else Mistake(*each) for each in edits]


MISTAKES: Final = [
    *mistakes(  # reading
        "if (!Py_IS_TYPE(handle, row->kind)) return 0;",
        "|| SLOT(storage, slots.storage_device) != row->device",
        ("int good = same_or_equal(nbytes, row->nbytes);", "int good = 1;"),
        "if (good == 1) good = same_or_equal(layout, row->layout);",
        "if (writes != Py_None) return 0;",
        ("call_add_lock(call, lock, row->lock);", "call_add_lock(call, lock, !row->lock);"),
        ("if (row->moves >= 0)", "if (row->moves > 0)"),
        ("*state = Py_NewRef(found);", "*state = found;"),
        ("good = matches ? matches == Py_True : -1;", "good = matches ? 1 : -1;"),
        ("good = lent ? lent != Py_None : -1;", "good = lent ? 1 : -1;"),
        "if (good == 1) good = are_distinct(self, states);",
        ("found += before == i;", "found += 1;"),
        ("return found == self->memories;\n    }", "return 1;\n    }"),
        ("return row->from <= value && value <= row->to;", "return row->from <= value;"),
        ("return !overflow && row->least <= value && value <= row->most;", "return value <= row->most;"),
        "if (!Py_IS_TYPE(number, row->kind)) return 0;",
        ("            PyErr_Clear();\n            return 0;", "            PyErr_Clear();\n            return 1;"),
        ("row->cell, Py_NewRef(number));", "row->cell, number);"),
        "if (!Py_IS_TYPE(array, (PyTypeObject *)known.ndarray)) return 0;",
        ("int good = shape ? PyObject_RichCompareBool(shape, row->shape, Py_EQ) : -1;", "int good = shape ? 1 : -1;"),
        ("else if (dtype != row->element) {", "else if (0) {"),
        ("same_or_equal(PyTuple_GET_ITEM(origin, 1), row->offset) : 0;", "1 : 0;"),
        ("good = *count + n == row->end &&", "good ="),
        "if (values[self->same[i].at] != self->same[i].wanted) return 0;",
        "if (different) return different < 0 ? -1 : 0;",
        "if (truth != 1) return truth;",
        "if (values[self->again[i].at] != values[self->again[i].before]) return 0;",
        "if (values[self->different[i]] == values[self->different[k]]) return 0;",
        ("if (has_names) return has_names < 0 ? -1 : 0;", "if (has_names < 0) return -1;"),
        ("if (PySequence_Fast_GET_SIZE(arguments) == self->flat)", "if (1)"),
        "    Py_DECREF(fast);\n",
        "        Py_DECREF(use->lock);\n",
        "    Py_CLEAR(call->leaves);\n",
    ),
    *mistakes(  # locks and moves
        "if (SLOT(use->lock, slots.lock_writer) != Py_None) return 0;",
        ("!PyObject_IsTrue(readers)", "1"),
        "if (SLOT(call->moves[i].handle, slots.handle_state) != call->moves[i].state) return 0;",
        ("if (call->moves[k].handle == call->moves[i].handle) return 0;", ";"),
        "        else drop_reader(use->lock);\n",
        ("slots.lock_writer, Py_NewRef(Py_None)", "slots.lock_writer, Py_NewRef(zero)"),
        ("slots.lock_holder, Py_NewRef(origin)", "slots.lock_holder, Py_NewRef(Py_None)"),
        ("    got = PyObject_CallNoArgs(known.release);", "    got = NULL;"),
        ("            Py_DECREF(move->state); /* what", "            /* what"),
        ("PyTuple_Pack(4, known.taken, origin, layout, made)", "PyTuple_Pack(4, known.taken, layout, origin, made)"),
        "more = exchange_slot(loaded, slots.plan_runs, more);",
        ("        Py_XDECREF(use->holder); /* maybe", "        /* maybe"),
    ),
    *mistakes(  # launches
        (" + (uint64_t)source->addresses[k].distance", ""),
        ("mark(self, source, &changed);\n            PyList_SetItem(numbers", "PyList_SetItem(numbers"),
        ("if (PyList_GET_ITEM(numbers, i - self->n_bases) == number) continue;",
         "if (PyObject_RichCompareBool(PyList_GET_ITEM(numbers, i - self->n_bases), number, Py_EQ)) continue;"),
        ('strchr("iI", place->letter) ? 4 : 8', 'strchr("iI", place->letter) ? 2 : 8'),
        ("memcpy(at, &single, 4);", "memcpy(at, &value, 4);"),
        "driver.pop(&popped);",
        ("found = driver.push(nodes->context);", "found = 0;"),
        ("if (list_append(self->idle, boarding->graph) < 0)", "if (0)"),
        ("    if (list_append(self->exclusive, boarding->stream) < 0)", "    if (0)"),
        ("if (lost != Py_None || retired || arrivals) return 0;", "if (retired || arrivals) return 0;"),
        "missing |= !found;",
        ("*refused = launched ? -2 : node_refused;", "*refused = node_refused;"),
        ("PyList_SetItem(bases, pair->base, address);", "PyList_SetItem(bases, 0, address);"),
        ("int code = query(work);\n        if (code != IS_BUSY", "int code = query(work);\n        if (1"),
    ),
    *mistakes(  # launches that are under way, and captured graphs
        ("flight_land(self->flight, &self->boarding);\n        }\n", "}\n"),
        ("good = code == -1 ? -1 : !code;", "good = 1;"),
        ("    self->is_flying = 0;\n    for", "    for"),
        ("found = driver.record(end, stream);", "found = 0;"),
        ("good = by_python < 0 ? -1 : !by_python;", "good = 1;"),
        ("(found == IS_BUSY && is_alone)", "(0)"),
    ),
    *mistakes(  # whole calls
        "if (!outside) return 0;",
        (": library == Py_None;", ": 1;"),
        ("PyLong_FromLong(PyFrame_GetLasti(frame))", "PyLong_FromLong(0)"),
        ("Py_NewRef(SLOT(recipe, slots.new_nbytes))", "Py_NewRef(zero)"),
        ("if (result && trip->cache && count_hit(trip->cache) < 0)", "if (0)"),
        ("launched_poll(self->run, self->trip.spin);", "1;"),
        "            leave(self);\n            flight_land",
        ("while (self->is_taken && self->taken_after == forks) {", "while (0) {"),
        ("if (boarding->section) section_open(boarding->section);", ";"),
        ("section->installed = install(thread);\n            if", "if"),
        "        good = fresh && state && Py_IS_TYPE(state, (PyTypeObject *)known.handle_state);",
        "    if (!result) without_our_frames();\n",
        ("for (Py_ssize_t k = 0; good && k < i; ++k) good = arguments[k] != arguments[i];", ""),
        ("if (fits == 1) origin = place_now();", "if (fits >= 0) origin = place_now();"),
        ("PyTuple_Pack(4, how, origin,", "PyTuple_Pack(4, how, Py_None,"),
        ("Py_DECREF(exchange_slot(arguments[i], slots.handle_state, Py_NewRef(Py_None)));",
         "exchange_slot(arguments[i], slots.handle_state, Py_NewRef(Py_None));"),
        "    trip_end(&trip);\n",
        ("SLOT(state, slots.state_storage) = Py_NewRef(storage);", "SLOT(state, slots.state_storage) = storage;"),
        ("    call_end(&trip->call);\n    call_clear", "    call_clear"),
    ),
]  # fmt: skip
