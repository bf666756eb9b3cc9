/* A libcuda that does nothing: it writes down what the functions for graphs get, by the structs of cuda.h.
 *
 * Handles are small numbers that tell what they are: streams 0x100, functions 0x200, graphs 0x300, nodes 0x400,
 * executable graphs 0x500, each plus its number, from 1 on. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static char log_text[1 << 16];
static size_t log_end;
static char failing[64];
static CUresult failing_code;
static uintptr_t streams, functions, graphs, nodes, executables;
static int capturing;
static CUDA_KERNEL_NODE_PARAMS captured;

#define HANDLE(type, base, count) ((type)(uintptr_t)((base) + ++(count)))

const char *stand_in_log(void) { return log_text; }
void stand_in_clear(void) { log_text[log_end = 0] = 0; }
void stand_in_fail(const char *call, int code) {
    strncpy(failing, call, sizeof failing - 1);
    failing_code = (CUresult)code;
}

static void say(const char *format, ...) {
    va_list arguments;
    if (log_end > sizeof log_text - 4096) return; /* full */
    va_start(arguments, format);
    log_end += vsnprintf(log_text + log_end, sizeof log_text - log_end, format, arguments);
    va_end(arguments);
}

/* Every function begins so: it fails where it was told to. */
static CUresult enter(const char *call) {
    if (strcmp(call, failing)) return CUDA_SUCCESS;
    failing[0] = 0;
    return failing_code;
}
#define ENTER(call) do { CUresult code = enter(call); if (code) { say(call ": %d\n", (int)code); return code; } } while (0)

static void say_needs(const CUgraphNode *needs, size_t count) {
    say(" after");
    for (size_t i = 0; i < count; ++i) say(" %lx", (unsigned long)needs[i]);
    say(";");
}

static void say_extra(void **extra) {
    if (!extra) { say(" no extra\n"); return; }
    const unsigned char *bytes = NULL;
    size_t size = 0;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) bytes = extra[1];
        else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *(size_t *)extra[1];
        else say(" unknown option");
    }
    say(" parameters ");
    for (size_t i = 0; i < size; ++i) say("%02x", bytes[i]);
    say("\n");
}

static void say_kernel(const CUDA_KERNEL_NODE_PARAMS *p) {
    say(" %lx grid %u %u %u block %u %u %u shared %u pointers %lx kern %lx ctx %lx;", (unsigned long)p->func, p->gridDimX,
        p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY, p->blockDimZ, p->sharedMemBytes,
        (unsigned long)p->kernelParams, (unsigned long)p->kern, (unsigned long)p->ctx);
    say_extra(p->extra);
}

static void say_copy(const CUDA_MEMCPY3D *p, CUcontext context) {
    size_t others = p->srcXInBytes | p->srcY | p->srcZ | p->srcLOD | (size_t)p->srcArray | (size_t)p->reserved0 |
                    p->srcPitch | p->srcHeight | p->dstXInBytes | p->dstY | p->dstZ | p->dstLOD | (size_t)p->dstArray |
                    (size_t)p->reserved1 | p->dstPitch | p->dstHeight;
    say(" from %d %lx %llx to %d %lx %llx, %zu x %zu x %zu, others %zu, ctx %lx\n", p->srcMemoryType,
        (unsigned long)p->srcHost, p->srcDevice, p->dstMemoryType, (unsigned long)p->dstHost, p->dstDevice,
        p->WidthInBytes, p->Height, p->Depth, others, (unsigned long)context);
}

static void say_fill(const CUDA_MEMSET_NODE_PARAMS *p, CUcontext context) {
    say(" %llx pitch %zu value %u size %u, %zu x %zu, ctx %lx\n", p->dst, p->pitch, p->value, p->elementSize, p->width,
        p->height, (unsigned long)context);
}

/* ---- graphs ---- */
CUresult cuGraphCreate(CUgraph *graph, unsigned int flags) {
    ENTER("cuGraphCreate");
    *graph = HANDLE(CUgraph, 0x300, graphs);
    say("create %lx flags %u\n", (unsigned long)*graph, flags);
    return CUDA_SUCCESS;
}
CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS *params) {
    ENTER("cuGraphAddKernelNode");
    *node = HANDLE(CUgraphNode, 0x400, nodes);
    say("add %lx to %lx", (unsigned long)*node, (unsigned long)graph);
    say_needs(needs, count);
    say(" kernel");
    say_kernel(params);
    return CUDA_SUCCESS;
}
CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                              const CUDA_MEMCPY3D *params, CUcontext context) {
    ENTER("cuGraphAddMemcpyNode");
    *node = HANDLE(CUgraphNode, 0x400, nodes);
    say("add %lx to %lx", (unsigned long)*node, (unsigned long)graph);
    say_needs(needs, count);
    say(" copy");
    say_copy(params, context);
    return CUDA_SUCCESS;
}
CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *needs, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context) {
    ENTER("cuGraphAddMemsetNode");
    *node = HANDLE(CUgraphNode, 0x400, nodes);
    say("add %lx to %lx", (unsigned long)*node, (unsigned long)graph);
    say_needs(needs, count);
    say(" fill");
    say_fill(params, context);
    return CUDA_SUCCESS;
}
CUresult cuGraphInstantiate(CUgraphExec *executable, CUgraph graph, unsigned long long flags) {
    ENTER("cuGraphInstantiate");
    *executable = HANDLE(CUgraphExec, 0x500, executables);
    say("instantiate %lx of %lx flags %llu\n", (unsigned long)*executable, (unsigned long)graph, flags);
    return CUDA_SUCCESS;
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec executable, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) {
    ENTER("cuGraphExecKernelNodeSetParams");
    say("set %lx in %lx; kernel", (unsigned long)node, (unsigned long)executable);
    say_kernel(params);
    return CUDA_SUCCESS;
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec executable, CUgraphNode node, const CUDA_MEMCPY3D *params,
                                        CUcontext context) {
    ENTER("cuGraphExecMemcpyNodeSetParams");
    say("set %lx in %lx; copy", (unsigned long)node, (unsigned long)executable);
    say_copy(params, context);
    return CUDA_SUCCESS;
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec executable, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params,
                                        CUcontext context) {
    ENTER("cuGraphExecMemsetNodeSetParams");
    say("set %lx in %lx; fill", (unsigned long)node, (unsigned long)executable);
    say_fill(params, context);
    return CUDA_SUCCESS;
}
CUresult cuGraphUpload(CUgraphExec executable, CUstream stream) {
    ENTER("cuGraphUpload");
    say("upload %lx in %lx\n", (unsigned long)executable, (unsigned long)stream);
    return CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
    ENTER("cuGraphLaunch");
    say("launch %lx in %lx\n", (unsigned long)executable, (unsigned long)stream);
    return CUDA_SUCCESS;
}
CUresult cuGraphExecDestroy(CUgraphExec executable) {
    ENTER("cuGraphExecDestroy");
    say("destroy %lx\n", (unsigned long)executable);
    return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) {
    ENTER("cuGraphDestroy");
    say("destroy %lx\n", (unsigned long)graph);
    return CUDA_SUCCESS;
}

/* ---- capture ---- */
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
    ENTER("cuStreamBeginCapture");
    say("capture in %lx mode %d\n", (unsigned long)stream, (int)mode);
    capturing = 1;
    return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    ENTER("cuStreamEndCapture");
    capturing = 0;
    *graph = HANDLE(CUgraph, 0x300, graphs);
    say("captured in %lx: %lx\n", (unsigned long)stream, (unsigned long)*graph);
    return CUDA_SUCCESS;
}
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *found, size_t *count) {
    ENTER("cuGraphGetNodes");
    if (found && *count) found[0] = HANDLE(CUgraphNode, 0x400, nodes);
    *count = 1;
    return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params) {
    ENTER("cuGraphKernelNodeGetParams");
    *params = captured;
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                        unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **pointers,
                        void **extra) {
    ENTER("cuLaunchKernel");
    memset(&captured, 0, sizeof captured);
    captured.func = function;
    say("%s %lx in %lx grid %u %u %u block %u %u %u shared %u pointers %lx;", capturing ? "record" : "start",
        (unsigned long)function, (unsigned long)stream, gx, gy, gz, bx, by, bz, shared, (unsigned long)pointers);
    say_extra(extra);
    return CUDA_SUCCESS;
}

/* ---- a device, its context, a module, streams ---- */
CUresult cuInit(unsigned int flags) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { return *version = CUDA_VERSION, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { return *count = 1, CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { return *device = ordinal, CUDA_SUCCESS; }
CUresult cuDeviceGetName(char *name, int room, CUdevice device) { return snprintf(name, room, "stand-in"), CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    return *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 1024, CUDA_SUCCESS;
}
CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    return *major = 9, *minor = 0, CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    return *context = (CUcontext)0xc0, CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context) { return CUDA_SUCCESS; }
CUresult cuCtxPopCurrent(CUcontext *context) { return *context = (CUcontext)0xc0, CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) { return *device = 0, CUDA_SUCCESS; }
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options, void **values) {
    return *module = (CUmodule)0xa0, CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule *module, const void *image) { return *module = (CUmodule)0xa0, CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    return *function = HANDLE(CUfunction, 0x200, functions), CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    return *value = 64, CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    return *stream = HANDLE(CUstream, 0x100, streams), CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char **text) {
    static char texts[1000][16]; /* each its own: PyCUDA's errors have the text alone, by which the code is found */
    snprintf(texts[error % 1000], sizeof texts[0], "error %d", (int)error);
    return *text = texts[error % 1000], CUDA_SUCCESS;
}

/* ---- how cuda.bindings finds all these ---- */
static CUresult missing(void) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuGetProcAddress(const char *symbol, void **found, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status) {
    static const char *const endings[] = {"_v2", "WithFlags", ""};
    char name[128];
    *found = (void *)missing;
    if (status) *status = CU_GET_PROC_ADDRESS_SUCCESS;
    for (int i = 0; i < 3; ++i) {
        snprintf(name, sizeof name, "%s%s", symbol, endings[i]);
        void *address = dlsym(RTLD_DEFAULT, name);
        if (address) {
            *found = address;
            break;
        }
    }
    return CUDA_SUCCESS;
}
