// The CUDA driver, found when the program runs: it builds on machines that have no libcuda to link with.

#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <stdexcept>
#include <string>

#define DRIVER_CALLS(X)                                                                                        \
    X(cuInit) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain)                                                       \
    X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuModuleLoad) X(cuModuleGetFunction) X(cuLaunchKernel)            \
    X(cuLaunchHostFunc) X(cuStreamCreate) X(cuStreamSynchronize) X(cuStreamWaitEvent) X(cuStreamBeginCapture)  \
    X(cuStreamEndCapture) X(cuGraphInstantiateWithFlags) X(cuGraphUpload) X(cuGraphLaunch)                     \
    X(cuGraphExecDestroy) X(cuGraphDestroy) X(cuEventCreate) X(cuEventRecord) X(cuEventQuery)                  \
    X(cuEventSynchronize) X(cuEventElapsedTime) X(cuMemAlloc) X(cuMemFree) X(cuMemHostAlloc) X(cuMemFreeHost)  \
    X(cuMemsetD32) X(cuMemsetD32Async) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync) X(cuMemcpyDtoH)               \
    X(cuGetErrorName)

// cuda.h renames calls to their latest version by macros: the text of the expanded name is the symbol to look for.
#define SYMBOL_TEXT(name) #name
#define SYMBOL(name) SYMBOL_TEXT(name)

struct Driver {
#define MEMBER(name) decltype(&::name) name = nullptr;
    DRIVER_CALLS(MEMBER)
#undef MEMBER

    void load() {
        void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
        if (!library) throw std::runtime_error(std::string("no CUDA driver: ") + dlerror());
#define FIND(name)                                                                                  \
    name = reinterpret_cast<decltype(name)>(dlsym(library, SYMBOL(name)));                          \
    if (!name) throw std::runtime_error("this CUDA driver is too old: it has no " SYMBOL(name));
        DRIVER_CALLS(FIND)
#undef FIND
    }
};

inline Driver driver;

// Raises where a driver call fails, with the call and the error's name.
#define CHECK(call)                                                                                 \
    do {                                                                                            \
        CUresult code_ = (call);                                                                    \
        if (code_ != CUDA_SUCCESS) {                                                                \
            const char* name_ = "unknown error";                                                    \
            driver.cuGetErrorName(code_, &name_);                                                   \
            throw std::runtime_error(std::string(#call) + ": " + name_);                            \
        }                                                                                           \
    } while (0)
