/*
 * rope_table: out[r, i] = cos(positions[r] inv_freq[i]) scale, out[r, half + i] = sin(...) scale.
 * Shapes: positions u32 [rows], inv_freq f32 [half], out f32 [rows, 2 half].
 * Launch: one block of 128 threads a row. The angle is one f32 product, as models compute it; its sine and
 * cosine are exact to f32 for any position (full range reduction: never build this with fast math).
 *
 * rope: rotates the first rotary_dim elements of each query and key head of qkv, in place.
 * Shapes: qkv f32 [rows, (heads + 2 kv_heads) head_dim], table f32 [rows, rotary_dim].
 * Launch: blocks of 256 pairs, x over rows, y over the pairs of a row.
 *
 * Reference: djinn-device, src/reference.rs, `rope_table` and `rope`.
 */
#include "rope.cuh"

namespace djinn {

constexpr unsigned TABLE_THREADS = 128;
constexpr unsigned PAIRS = 256;

} // namespace djinn

extern "C" __global__ void __launch_bounds__(djinn::TABLE_THREADS)
    djinn_rope_table_f32(const __grid_constant__ djinn_rope_table_args a) {
    djinn::enter();
    const float position = float(a.positions[blockIdx.x]);
    float *out = a.out + size_t(blockIdx.x) * 2 * a.half;
    for (unsigned i = threadIdx.x; i < a.half; i += djinn::TABLE_THREADS) {
        float sin, cos;
        sincosf(__fmul_rn(position, a.inv_freq[i]), &sin, &cos);
        out[i] = cos * a.scale;
        out[a.half + i] = sin * a.scale;
    }
}

extern "C" __global__ void __launch_bounds__(djinn::PAIRS)
    djinn_rope_f32(const __grid_constant__ djinn_rope_args a) {
    djinn::enter();
    const unsigned half = a.rotary_dim / 2, pair = blockIdx.y * djinn::PAIRS + threadIdx.x;
    const unsigned head = pair / half, i = pair % half;
    if (head >= a.heads + a.kv_heads) {
        return;
    }
    djinn::rotate(a, blockIdx.x, head, i);
}

extern "C" int djinn_rope_table(const djinn_rope_table_args *args, void *stream) {
    return djinn::launch(djinn_rope_table_f32, args->rows, djinn::TABLE_THREADS, 0, stream, *args);
}

extern "C" int djinn_rope(const djinn_rope_args *args, void *stream) {
    const uint64_t pairs = uint64_t(args->heads + args->kv_heads) * (args->rotary_dim / 2);
    if (pairs == 0 || args->style > DJINN_ROPE_INTERLEAVED) {
        return cudaErrorInvalidValue;
    }
    const dim3 grid(args->rows, djinn::ceil_div(pairs, djinn::PAIRS));
    return djinn::launch(djinn_rope_f32, grid, djinn::PAIRS, 0, stream, *args);
}
