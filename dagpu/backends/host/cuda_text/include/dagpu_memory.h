// Loads and stores with hints, which are plain ones that the hooks see where the caller is.
#pragma once

#define DAGPU_LOAD(name) template <class T> DAGPU_HERE T name(const T* p) { return *p; }
DAGPU_LOAD(__ldg) DAGPU_LOAD(__ldcs) DAGPU_LOAD(__ldca) DAGPU_LOAD(__ldcg) DAGPU_LOAD(__ldlu) DAGPU_LOAD(__ldcv)
#define DAGPU_STORE(name) template <class T> DAGPU_HERE void name(T* p, typename dagpu_emulated::Same<T>::type v) { *p = v; }
DAGPU_STORE(__stcs) DAGPU_STORE(__stcg) DAGPU_STORE(__stwb) DAGPU_STORE(__stwt)
DAGPU_HERE bool __isGlobal(const void*) { return true; }
DAGPU_HERE bool __isShared(const void*) { return true; }
DAGPU_HERE size_t __cvta_generic_to_shared(const void* p) { return (size_t)p; }
