// Copies between any two layouts of one shape, with a conversion where the element types differ.
#pragma once

namespace dagpu {

template <class Out, class Source> DAGPU_INLINE Out converted(Source x) { return To<Out>::from(number(x)); }

// Both contiguous.
template <class Out, class Source>
DAGPU_INLINE void copy_dense(char* out, const char* source, i64 out_offset, i64 source_offset, u64 count) {
    constexpr int lanes = 16 / (sizeof(Out) > sizeof(Source) ? sizeof(Out) : sizeof(Source));
    typedef Pack<Out, lanes> OutPack;
    typedef Pack<Source, lanes> SourcePack;
    Out* const to = reinterpret_cast<Out*>(out + out_offset);
    const Source* const from = reinterpret_cast<const Source*>(source + source_offset);
    const bool fits = OutPack::fits(to) && SourcePack::fits(from);
    for (u64 i = global_thread() * lanes; i < count; i += global_threads() * lanes) {
        if (fits && count - i >= lanes) {
            const SourcePack values = *reinterpret_cast<const SourcePack*>(from + i);
            OutPack results;
#pragma unroll
            for (int k = 0; k < lanes; ++k) results.at[k] = converted<Out>(values.at[k]);
            *reinterpret_cast<OutPack*>(to + i) = results;
        } else {
#pragma unroll
            for (int k = 0; k < lanes; ++k)
                if (i + k < count) to[i + k] = converted<Out>(from[i + k]);
        }
    }
}

// Any other: the walk's first array is the output, its second the source, both in bytes.
template <class Out, class Source, int AXES>
DAGPU_INLINE void copy_walk(char* out, const char* source, const Walk<AXES>& walk) {
    walk.each([&](i64 to, i64 from) {
        *reinterpret_cast<Out*>(out + to) = converted<Out>(*reinterpret_cast<const Source*>(source + from));
    });
}

}  // namespace dagpu
