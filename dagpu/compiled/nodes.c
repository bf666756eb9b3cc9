/* The nodes of an executable graph: where addresses and numbers are in the parameters of its kernels.
 *
 * The reference is LaunchParameters.relocate, and the `dependents` of a GraphTopology.
 */
#include "nodes.h"

Py_ssize_t fill_array(PyObject *sequence, Py_ssize_t width, size_t size, void **array, void (*set)(void *, PyObject *)) {
    PyObject *items = PySequence_Tuple(sequence);
    if (!items) return -1;
    Py_ssize_t n = PyTuple_GET_SIZE(items);
    char *found = PyMem_Calloc((size_t)n + 1, size);
    *array = found;
    if (!found) PyErr_NoMemory();
    for (Py_ssize_t i = 0; !PyErr_Occurred() && i < n; ++i) {
        PyObject *row = PyTuple_GET_ITEM(items, i);
        if (PyTuple_Check(row) && PyTuple_GET_SIZE(row) == width) set(found + (size_t)i * size, row);
        else PyErr_Format(PyExc_TypeError, "%R has not %zd facts", row, width);
    }
    Py_DECREF(items);
    return PyErr_Occurred() ? -1 : n;
}

static void set_node(void *to, PyObject *row) {
    *(Node *)to = (Node){pointer_of(PyTuple_GET_ITEM(row, 0)), pointer_of(PyTuple_GET_ITEM(row, 1)), pointer_of(PyTuple_GET_ITEM(row, 2)), 0};
}
static void set_mapped(void *to, PyObject *row) { /* `held` keeps both */
    *(Mapped *)to = (Mapped){PyTuple_GET_ITEM(row, 0), PyTuple_GET_ITEM(row, 1)};
    if (!PyObject_TypeCheck(((Mapped *)to)->pool, (PyTypeObject *)known.pool)) PyErr_Format(PyExc_TypeError, "%R is no pool", ((Mapped *)to)->pool);
}
static void set_address(void *to, PyObject *row) {
    *(Address *)to = (Address){pointer_of(PyTuple_GET_ITEM(row, 0)), PyLong_AsLongLong(PyTuple_GET_ITEM(row, 1))};
}
static void set_number(void *to, PyObject *row) {
    PyObject *letter = PyTuple_GET_ITEM(row, 1);
    int found = PyUnicode_Check(letter) && PyUnicode_GET_LENGTH(letter) == 1 ? (int)PyUnicode_READ_CHAR(letter, 0) : 0;
    if (!found || !strchr("efd?bBhHiIqQ", found)) PyErr_Format(PyExc_ValueError, "%R is no kind of number", letter);
    *(NumberAt *)to = (NumberAt){pointer_of(PyTuple_GET_ITEM(row, 0)), found};
}
void set_index(void *to, PyObject *row) { *(Py_ssize_t *)to = PyLong_AsSsize_t(PyTuple_GET_ITEM(row, 0)); }

/* Nodes(exec, context, nodes, sources, bases, mapped, held): `nodes` has for each kernel and copy its node, its parameters, and
 * for a copy its context; `sources` for each source its cell, or -1 for one of the first `bases`; its addresses; its numbers;
 * its nodes; and whether Python has to update them; `mapped` the pools of copies between devices, with what is mapped. */
static PyObject *nodes_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *exec, *context, *nodes, *sources, *mapped, *held;
    Py_ssize_t bases;
    if (!PyArg_ParseTuple(args, "OOOO!nO!O:Nodes", &exec, &context, &nodes, &PyTuple_Type, &sources, &bases,
                          &PyTuple_Type, &mapped, &held)) return NULL;
    Nodes *self = (Nodes *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    if (must_know(&known.pool, &known.pool, "Nodes") < 0 || !(self->held = PyTuple_Pack(2, held, mapped))) goto failed;
    self->exec = pointer_of(exec);
    self->context = pointer_of(context);
    self->n_bases = bases;
    self->sources = PyMem_Calloc((size_t)PyTuple_GET_SIZE(sources) + 1, sizeof(Source));
    if (!self->sources) goto failed;
    self->n_sources = PyTuple_GET_SIZE(sources);
    if (PyErr_Occurred() || bases < 0 || bases > self->n_sources) goto failed;
    self->n_nodes = fill_array(nodes, 3, sizeof(Node), (void **)&self->nodes, set_node);
    if (self->n_nodes < 0) goto failed;
    self->n_mapped = fill_array(mapped, 2, sizeof(Mapped), (void **)&self->mapped, set_mapped);
    if (self->n_mapped < 0) goto failed;
    for (Py_ssize_t i = 0; i < self->n_sources; ++i) {
        Source *source = &self->sources[i];
        PyObject *addresses, *numbers, *dependents;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(sources, i), "nOOOp", &source->cell, &addresses, &numbers, &dependents,
                              &source->by_python))
            goto failed;
        source->n_addresses = fill_array(addresses, 2, sizeof(Address), (void **)&source->addresses, set_address);
        if (source->n_addresses < 0) goto failed;
        source->n_numbers = fill_array(numbers, 2, sizeof(NumberAt), (void **)&source->numbers, set_number);
        if (source->n_numbers < 0) goto failed;
        source->n_dependents = fill_array(dependents, 1, sizeof(Py_ssize_t), (void **)&source->dependents, set_index);
        if (source->n_dependents < 0) goto failed;
        for (Py_ssize_t k = 0; k < source->n_dependents; ++k)
            if (source->dependents[k] < 0 || source->dependents[k] >= self->n_nodes) goto failed;
        if ((source->cell < 0) != (i < bases)) goto failed;
        self->has_others |= source->by_python;
    }
    return (PyObject *)self;
failed:
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a source names a node or a cell that does not exist");
    Py_DECREF(self);
    return NULL;
}

static int nodes_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((Nodes *)self)->held);
    return 0;
}

static int nodes_clear(PyObject *self) {
    Nodes *nodes = (Nodes *)self;
    nodes->exec = NULL;
    nodes->n_mapped = 0;
    Py_CLEAR(nodes->held);
    return 0;
}

static void nodes_dealloc(PyObject *self) {
    Nodes *nodes = (Nodes *)self;
    PyObject_GC_UnTrack(self);
    for (Py_ssize_t i = 0; i < nodes->n_sources; ++i) {
        PyMem_Free(nodes->sources[i].addresses);
        PyMem_Free(nodes->sources[i].numbers);
        PyMem_Free(nodes->sources[i].dependents);
    }
    PyMem_Free(nodes->sources);
    PyMem_Free(nodes->mapped);
    PyMem_Free(nodes->nodes);
    nodes_clear(self);
    Py_TYPE(self)->tp_free(self);
}

PyTypeObject NodesType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dagpu.compiled._reader.Nodes",
    .tp_doc = "Nodes(exec, context, nodes, sources, bases, mapped, held): the nodes of an executable graph, and the places\n"
              "of addresses and numbers in their parameters.",
    .tp_basicsize = sizeof(Nodes),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = nodes_new,
    .tp_dealloc = nodes_dealloc,
    .tp_traverse = nodes_traverse,
    .tp_clear = nodes_clear,
};

/* Write a number into parameters; its range has been checked. Return -1 with an error for any other object. */
static int write_number(NumberAt *place, PyObject *number) {
    char *at = place->at;
    if (strchr("efd", place->letter)) {
        double value = PyFloat_AsDouble(number);
        float single = (float)value;
        if (value == -1.0 && PyErr_Occurred()) return -1;
        if (place->letter == 'e') {
            if (!PyFloat_Pack2(value, at, 1)) return 0;
            if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return -1;
            PyErr_Clear(); /* it rounds to infinity */
            uint16_t infinite = value < 0 ? 0xFC00 : 0x7C00;
            memcpy(at, &infinite, 2);
            return 0;
        }
        if (place->letter == 'f') memcpy(at, &single, 4);
        else memcpy(at, &value, 8);
        return 0;
    }
    uint64_t value = PyLong_AsUnsignedLongLongMask(number); /* the low bytes are those of any narrower integer */
    if (value == (uint64_t)-1 && PyErr_Occurred()) return -1;
    memcpy(at, &value, strchr("?bB", place->letter) ? 1 : strchr("hH", place->letter) ? 2 : strchr("iI", place->letter) ? 4 : 8);
    return 0;
}

static void mark(Nodes *self, Source *source, Py_ssize_t *changed) {
    for (Py_ssize_t k = 0; k < source->n_dependents; ++k) {
        Node *node = &self->nodes[source->dependents[k]];
        *changed += node->epoch != self->epoch;
        node->epoch = self->epoch;
    }
}

int nodes_are_mapped(Nodes *self) {
    for (Py_ssize_t i = 0; i < self->n_mapped; ++i)
        if (SLOT(self->mapped[i].pool, slots.pool_mapped) != self->mapped[i].mapped) return 0;
    return 1;
}

Py_ssize_t nodes_relocate(Nodes *self, PyObject *parameters, PyObject *bases, PyObject *memory, int only_look) {
    PyObject *mine = SLOT(parameters, slots.parameters_bases), *numbers = SLOT(parameters, slots.parameters_numbers);
    Py_ssize_t changed = 0;
    if (!mine || !numbers || !PyList_CheckExact(mine) || !PyList_CheckExact(numbers)
        || PyList_GET_SIZE(mine) != self->n_bases || PyList_GET_SIZE(bases) > self->n_bases
        || PyList_GET_SIZE(numbers) != self->n_sources - self->n_bases) {
        PyErr_SetString(PyExc_SystemError, "the nodes of a graph are not those of its parameters");
        return -1;
    }
    self->epoch += !only_look;
    for (Py_ssize_t i = 0; i < self->n_sources; ++i) {
        Source *source = &self->sources[i];
        if (only_look && !source->by_python) continue;
        if (i < self->n_bases && i >= PyList_GET_SIZE(bases)) continue;
        if (i >= self->n_bases) {
            if (source->cell >= PyList_GET_SIZE(memory)) return PyErr_SetString(PyExc_SystemError, "there is no such cell"), -1;
            PyObject *number = PyList_GET_ITEM(memory, source->cell);
            if (PyList_GET_ITEM(numbers, i - self->n_bases) == number) continue; /* not by value: 0.0 equals -0.0 */
            if (only_look) return 1;
            for (Py_ssize_t k = 0; k < source->n_numbers; ++k)
                if (write_number(&source->numbers[k], number) < 0) return -1;
            mark(self, source, &changed);
            PyList_SetItem(numbers, i - self->n_bases, Py_NewRef(number));
            continue;
        }
        PyObject *before = PyList_GET_ITEM(mine, i), *base = PyList_GET_ITEM(bases, i);
        if (before == base) continue;
        int overflow;
        long long old = PyLong_AsLongLongAndOverflow(before, &overflow);
        uint64_t address = PyLong_AsUnsignedLongLong(base);
        if (PyErr_Occurred()) return -1;
        if (!overflow && (uint64_t)old == address) continue;
        if (only_look) return 1;
        for (Py_ssize_t k = 0; k < source->n_addresses; ++k) {
            uint64_t value = address + (uint64_t)source->addresses[k].distance;
            memcpy(source->addresses[k].at, &value, 8);
        }
        mark(self, source, &changed);
        PyList_SetItem(mine, i, Py_NewRef(base)); /* last: a base that looks written is written */
    }
    return changed;
}
