"""CUDA texts in the forms that existing code has, each with the parameters that are read, for plain pointers.

A text declares one kernel `k`, unless it says another name. `FORMS` has ten of each form.
"""

from typing import NamedTuple


class Text(NamedTuple):
    """One text."""

    cuda: str
    params: str
    """The parameters as messages show them."""
    name: str = "k"
    options: tuple[str, ...] = ()


def _k(inside: str, params: str, before: str = "") -> Text:
    return Text(f"{before}\n__global__ void k({inside}) {{}}", params)


FORMS: dict[str, list[Text]] = {
    "vectors": [
        _k("float4* y, float4 a", "float4* y, float4 a"),
        _k("const float3 *x, float3 *y, int n", "const float3* x, float3* y, int n"),
        _k("float2 const *__restrict__ x", "const float2* x"),
        _k("uint4 key, unsigned n", "uint4 key, unsigned int n"),
        _k("uchar4 *pixels, uchar3 colour, int w, int h", "uchar4* pixels, uchar3 colour, int w, int h"),
        _k("char a, double3 b, char c, long4 d", "signed char a, double3 b, signed char c, long4 d"),
        _k("const double2 q, double2 *p", "double2 q, double2* p"),
        _k("short3 a, ushort2 b, char2 c, longlong2 d", "short3 a, ushort2 b, char2 c, longlong2 d"),
        _k("dim3 extent, int1 one, float1 *x", "dim3 extent, int1 one, float1* x"),
        _k("__half2 *y, __half2 a, __nv_bfloat162 b", "__half2* y, __half2 a, __nv_bfloat162 b"),
    ],
    "aliases": [
        _k("real* y, const real a", "float* y, float a", "typedef float real;"),
        _k("const preal x, preal y", "float* x, float* y", "typedef float real, *preal;"),
        _k("u32 n, Vec v", "unsigned int n, float4 v", "using u32 = unsigned int; using Vec = float4;"),
        _k("A n, const B* x", "int n, const int* x", "using A = int; typedef A B;"),
        _k("Id<float>* y", "float* y", "template <class T> using Id = T;"),
        _k("row_t x, int n", "float* x, int n", "typedef float row_t[3];"),
        _k("const m::real* x, ::m::n::integer i", "const double* x, short i",
           "namespace m { typedef double real; namespace n { using integer = short; } }"),
        _k("REAL *y, PTR(REAL) x", "double* y, const double* x", "#define REAL double\n#define PTR(T) const T*"),
        _k("byte_t *p, pixel_t q", "unsigned char* p, uchar4 q",
           "typedef unsigned char byte_t;\ntypedef uchar4 pixel_t;"),
        _k("Mode m, Kind k, float* y", "int m, unsigned char k, float* y",
           "enum Mode { FAST, SLOW = 7 }; enum class Kind : unsigned char { a, b };"),
    ],
    "options": [
        Text("__global__ void k(REAL* y) {}", "double* y", options=("-DREAL=double",)),
        Text("__global__ void k(REAL* y) {}", "float* y", options=("-D", "REAL=float")),
        Text("__global__ void k(ITEM* y, ITEM a) {}", "int* y, int a", options=("--define-macro=ITEM=int",)),
        Text("#ifdef DOUBLE\nusing R = double;\n#else\nusing R = float;\n#endif\n__global__ void k(R* y) {}",
             "double* y",
             options=("-DDOUBLE",)),
        Text("#ifdef DOUBLE\nusing R = double;\n#else\nusing R = float;\n#endif\n__global__ void k(R* y) {}",
             "float* y"),
        Text("#if BITS == 64\ntypedef long long I;\n#elif BITS > 16\ntypedef int I;\n#else\ntypedef short I;\n#endif\n"
             "__global__ void k(I n) {}", "int n", options=("-DBITS=32",)),
        Text("#if defined(A) && !defined(B)\n#define ARGS float* y\n#else\n#define ARGS double* y\n#endif\n"
             "__global__ void k(ARGS) {}", "float* y", options=("-DA",)),
        Text("__global__ void k(float* y\n#if WITH_COUNT\n, int n\n#endif\n) {}", "float* y, int n",
             options=("-DWITH_COUNT=1",)),
        Text("#ifndef ITEM\n#define ITEM float\n#endif\n__global__ void k(ITEM* y) {}",
             "double* y", options=("-DITEM=double",)),
        Text("__global__ void k(VEC(float, 4)* y) {}", "float4* y", options=("-DVEC(a,b)=a##b",)),
    ],
    "templates": [
        Text("template <typename T> __global__ void k(T* y, T a, int n) {}", "float* y, float a, int n", "k<float>"),
        Text("template <class T, int N> __global__ void k(const T* x, T* y) {}", "const double* x, double* y",
             "k<double, 256>"),
        Text("template <unsigned int blockSize, bool nIsPow2> __global__ void k(int *in, int *out, unsigned n) {}",
             "int* in, int* out, unsigned int n", "k<128, true>"),
        Text("template <typename T, typename U = T, int B = 64> __global__ void k(T* y, U a) {}", "int* y, int a",
             "k<int>"),
        Text("namespace ns { template <typename T> __global__ void k(T* y) {} }", "unsigned char* y",
             "ns::k<unsigned char>"),
        Text("template <typename T> struct Pair { T a, b; };\n"
             "template <typename T> __global__ void k(Pair<T> p, T* y) {}",
             "Pair<T> p, float* y", "k<float>"),
        Text("template <typename V> __global__ void k(V* __restrict__ y, const V* __restrict__ x) {}",
             "float4* y, const float4* x", "k<float4>"),
        Text("template <typename T = float> __global__ void k(T* y) {}", "float* y", "k<>"),
        Text("template <int N> struct Rows { float at[N]; };\ntemplate <int N> __global__ void k(Rows<N * 2> r) {}",
             "Rows<N* 2> r", "k<4>"),
        Text("template <typename T> __global__ void k(T* y);\ntemplate <typename T> __global__ void k(T* y) {}\n"
             "template __global__ void k<short>(short*);", "short* y"),
    ],
    "structures by value": [
        _k("P p, float* y", "P p, float* y", "struct P { float x, y; int n; };"),
        _k("const Params p, float* y", "Params p, float* y",
           "typedef struct { double a; char c; short s[3]; } Params;"),
        _k("struct Q q", "Q q", "struct Q { char c; double d; };"),
        _k("Box b", "Box b",
           "struct Vec { float x, y, z; __device__ float dot() const { return x * x; } }; struct Box { Vec a, b; };"),
        _k("A a, char c", "A a, signed char c", "struct __align__(16) A { float x; };"),
        _k("char c, alignas_t a", "signed char c, alignas_t a",
           "struct alignas(8) alignas_t { int x = 3; short y{2}; };"),
        _k("U u", "U u", "union U { float f; double d; unsigned char bytes[12]; };"),
        _k("ns::S s", "ns::S s",
           "namespace ns { constexpr int N = 2 * 3; struct S { static const int M = 1; int a[N][2]; "
           "S() = default; private: float b; }; }"),
        _k("D d", "D d", "struct B { int n; }; struct D : public B { float x; bool on; };"),
        _k("M m", "M m",
           "struct M { struct Inner { short a; long long b; } in; union { int i; float f; }; float4 v; };"),
    ],
    "structures by pointer": [
        _k("P* p, int n", "P* p, int n", "struct P { float x, y; int n; };"),
        _k("const Particle * __restrict__ p", "const Particle* p",
           "typedef struct Particle { float3 pos, vel; } Particle;"),
        _k("Body const* in, Body* out", "const Body* in, Body* out", "struct Body { double m; float at[3]; };"),
        _k("struct Cell *cells", "Cell* cells", "struct Cell { unsigned char state; };"),
        _k("ns::S s[]", "ns::S* s", "namespace ns { struct S { int a; }; }"),
        _k("Tri* t", "Tri* t", "struct V { float x, y, z; }; struct Tri { V v[3]; };"),
        _k("Complex *a, const Complex b", "float2* a, float2 b", "typedef float2 Complex;"),
        _k("PP p", "P* p", "typedef struct P { int a; } *PP;"),
        _k("Color<unsigned char>* c", "Color<unsigned char>* c", "template <class T> struct Color { T r, g, b; };"),
        _k("Unknown* y, const other::Thing *x", "Unknown* y, const other::Thing* x",
           "struct Unknown; namespace other { class Thing; }\nusing other::Thing;"),
    ],
    "void pointers": [
        _k("void* y", "void* y"),
        _k("const void *x, void *y, size_t n", "const void* x, void* y, unsigned long long n"),
        _k("void const* __restrict__ x", "const void* x"),
        _k("handle h, int n", "void* h, int n", "typedef void* handle;"),
        _k("VOID* y", "void* y", "typedef void VOID;"),
        _k("void * const y", "void* y"),
        _k("volatile void* y, float a", "void* y, float a"),
        _k("BUFFER y", "void* y", "#define BUFFER void*"),
        _k("const handle h", "void* h", "using handle = void*;"),
        _k("void* /* out */ y, // first\n const void* x", "void* y, const void* x"),
    ],
    "pointers to pointers": [
        _k("float** y, int n", "float** y, int n"),
        _k("const float** x", "const float** x"),
        _k("float* const* x, float* y", "float** x, float* y"),
        _k("const float* const* __restrict__ x", "const float** x"),
        _k("float* x[], int n", "float** x, int n"),
        _k("double *x[4]", "double** x"),
        _k("row* rows", "float** rows", "typedef float* row;"),
        _k("void** blobs", "void** blobs"),
        _k("float4** x", "float4** x"),
        _k("P** p", "P** p", "struct P { int a; };"),
    ],
    "linkage": [
        Text('extern "C" __global__ void k(float* y, int n) {}', "float* y, int n"),
        Text('extern "C" {\n__global__ void k(float* y, int n) {}\n}', "float* y, int n"),
        Text("static __global__ void k(float* y) {}", "float* y"),
        Text("__global__ static void k(float* y) {}", "float* y"),
        Text("namespace a { namespace b { __global__ void k(float* y) {} } }", "float* y"),
        Text("namespace a::b { struct S { int n; }; __global__ void k(S s, float* y) {} }", "S s, float* y", "a::b::k"),
        Text("namespace { __global__ void k(float* y) {} }", "float* y"),
        Text("inline namespace v1 { using T = float; __global__ void k(T* y) {} }", "float* y", "v1::k"),
        Text('extern "C" __global__ void __launch_bounds__(256, 2) k(float* y) {}', "float* y"),
        Text('extern "C" __global__ void k(float *y);\nextern "C" __global__ void k(float *y) {}', "float* y"),
    ],
    "scopes and libraries": [
        _k("T a, int n", "float a, int n", "namespace m { using T = float; } using namespace m;"),
        _k("m::E e", "int e", "namespace m { enum E { a, b }; }"),
        _k("A a", "A a", "namespace m { constexpr int N = 1 << 2; } struct A { short x[m::N + 1]; };"),
        _k("A a", "A a", "enum { ROWS = 3, COLS }; struct A { float at[ROWS][COLS]; };"),
        _k("unsigned long long t, clock_t c", "unsigned long long t, long long c", "typedef long clock_t;"),
        _k("cudaTextureObject_t t, float* y", "unsigned long long t, float* y"),
        Text("#ifndef __OFF\nstruct S { int n; };\n__global__ void k(S s) {}\n#endif", "S s"),
        Text("namespace a { struct S { double d; }; namespace b { struct S { float f; }; __global__ void k(S s) {} } }",
             "S s", "a::b::k"),
        Text("namespace a { struct S { double d; }; namespace b { __global__ void k(S s, a::S* t) {} } }",
             "S s, a::S* t"),
        Text("template <int N> using Rows = float[N]; struct P { Rows<3> at; };\n__global__ void k(P p, P* q) {}",
             "P p, P* q"),
    ],
    "spellings": [
        _k("float *__restrict y, const int n", "float* y, int n"),
        Text("__global__ __launch_bounds__(128) void k(const __grid_constant__ int n) {}", "int n"),
        Text("__global__ void\nk // the name\n(float* y, /* in, place */ int\\\n n) {}", "float* y, int n"),
        Text("#define KERNEL(name) __global__ void name\nKERNEL(k)(float* y) {}", "float* y"),
        Text("#define DECLARE(T) \\\n  __global__ void k(T* y, \\\n T a) {}\nDECLARE(float)", "float* y, float a"),
        _k("[[maybe_unused]] float* y, int n = 3", "float* y, int n"),
        _k("const float (*x)[16], float y[4][4]", "const float* x, float* y"),
        Text("__attribute__((global)) void other(int n) {}\n"
             "__global__ void k(unsigned long int n, long long unsigned m) {}",
             "unsigned long long n, unsigned long long m"),
        Text("#define RESTRICT __restrict__\n__global__ void k(float* RESTRICT y, float const * const RESTRICT x) {}",
             "float* y, const float* x"),
        Text("template <int N> struct Other {}; __device__ int f(int a) { return a < 3 ? a : 2; }\n"
             "__global__ void __launch_bounds__(64) k(std::size_t n, ::cuda::std::int32_t i, signed char c) {}",
             "unsigned long long n, int i, signed char c"),
    ],
}  # fmt: skip
