/*
 * The CUDA kernels of Djinn: one parameter struct and one launcher for each operation.
 *
 * Every launcher enqueues on `stream` (a CUstream or cudaStream_t of the current context, null for the default stream),
 * returns at once, and may be captured into a graph. It returns a cudaError_t as int: 0 for success, cudaErrorInvalidValue
 * (1) for arguments that no kernel serves, and otherwise what the launch said. A launcher never allocates and never
 * synchronises.
 *
 * Pointers are device addresses: device memory, or pinned host memory under unified addressing. Activations are row-major
 * f32 `[rows, width]`; token ids, positions and tables are u32; weights are row-major in their own dtype. Every pointer is a
 * multiple of 16 bytes, but attention's row_seq and positions only of 4. Shapes, aliasing and meaning are those of
 * djinn-device's `args`; sizes are not checked again here.
 *
 * All sums accumulate in f32. The order of a row's arithmetic depends only on the row's own sizes and positions: a row has
 * the same bits whatever else is in the batch.
 */
#ifndef DJINN_H
#define DJINN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element types of weights and caches. */
enum djinn_dtype {
    DJINN_F32 = 0,
    DJINN_F16 = 1,
    DJINN_BF16 = 2,
    /* Integers of keys and values, each vector with a scale in f32. */
    DJINN_INT8 = 3,
};

/* How the rows of a weight lie in memory. */
enum djinn_encoding {
    /* Elements, one after another. */
    DJINN_PLAIN = 0,
    /* Rows of djinn-lossless. */
    DJINN_LOSSLESS = 1,
    /* The formats of djinn-srg's `BlockFormat`. */
    DJINN_Q4_0 = 2,
    DJINN_Q4_1 = 3,
    DJINN_Q5_0 = 4,
    DJINN_Q5_1 = 5,
    DJINN_Q8_0 = 6,
    DJINN_Q2_K = 7,
    DJINN_Q3_K = 8,
    DJINN_Q4_K = 9,
    DJINN_Q5_K = 10,
    DJINN_Q6_K = 11,
    DJINN_IQ4_NL = 12,
    DJINN_IQ4_XS = 13,
    DJINN_MXFP4 = 14,
    DJINN_INT4_G32 = 15,
    DJINN_INT4_G128 = 16,
    DJINN_FP8_G32 = 17,
    DJINN_FP8_G128 = 18,
};

/* How rotary embedding pairs the elements of a head. */
enum djinn_rope_style {
    /* Element i with i + rotary_dim / 2. */
    DJINN_ROPE_HALF = 0,
    /* Element 2i with 2i + 1. */
    DJINN_ROPE_INTERLEAVED = 1,
};

/* Forms of GELU. */
enum djinn_gelu_form {
    /* x/2 (1 + erf(x / sqrt(2))). */
    DJINN_GELU_ERF = 0,
    /* x/2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). */
    DJINN_GELU_TANH = 1,
};

/* Where an operation stores its output a second time, rounded as by djinn_convert, for products that read it next. */
typedef struct djinn_rounded {
    void *at;       /* as many elements as the output; or null */
    uint32_t dtype; /* DJINN_F16 or DJINN_BF16 */
    uint32_t alone; /* non-zero, with `at`: the output itself may be left undefined */
} djinn_rounded;

/* The text of an error code. Static memory. */
const char *djinn_error_string(int code);

/*
 * out[r, :] = table[tokens[r] - first_row, :] for the rows whose token lies in first_row .. first_row +
 * table_rows; other rows of out are left alone. The table may lie in pinned host memory.
 */
typedef struct djinn_embed_args {
    const uint32_t *tokens; /* [rows] */
    const void *table;      /* [table_rows, width], or table_rows rows of row_bytes */
    float *out;             /* [rows, width] */
    uint32_t table_dtype;   /* djinn_dtype; of a lossless table, the type that was encoded; ignored for blocks */
    uint32_t first_row;
    uint32_t table_rows;
    uint32_t width;
    uint32_t rows;
    uint32_t encoding;      /* djinn_encoding */
    uint32_t row_bytes;     /* of a stored row, if encoded */
} djinn_embed_args;
int djinn_embed(const djinn_embed_args *args, void *stream);

/* out[r, i] = cos(positions[r] inv_freq[i]) scale, out[r, half + i] = sin(...) scale; the angle in f32. */
typedef struct djinn_rope_table_args {
    const uint32_t *positions; /* [rows] */
    const float *inv_freq;     /* [half] */
    float *out;                /* [rows, 2 half] */
    uint32_t half;
    float scale;
    uint32_t rows;
} djinn_rope_table_args;
int djinn_rope_table(const djinn_rope_table_args *args, void *stream);

/* out[r, :] = x[r, :] / sqrt(mean(x[r, :]^2) + eps) weight. */
typedef struct djinn_rms_norm_args {
    const float *x;        /* [rows, width] */
    const void *weight;    /* [width] */
    float *out;            /* [rows, width]; may be x */
    uint32_t weight_dtype; /* djinn_dtype */
    float eps;
    uint32_t width;
    uint32_t rows;
    djinn_rounded rounded;
} djinn_rms_norm_args;
int djinn_rms_norm(const djinn_rms_norm_args *args, void *stream);

/* out[r, :] = (x[r, :] - mean) / sqrt(variance + eps) weight + bias, with the biased variance. */
typedef struct djinn_layer_norm_args {
    const float *x;        /* [rows, width] */
    const void *weight;    /* [width] */
    const void *bias;      /* [width] */
    float *out;            /* [rows, width]; may be x */
    uint32_t weight_dtype; /* djinn_dtype */
    uint32_t bias_dtype;   /* djinn_dtype */
    float eps;
    uint32_t width;
    uint32_t rows;
} djinn_layer_norm_args;
int djinn_layer_norm(const djinn_layer_norm_args *args, void *stream);

/*
 * sum = a + b, then the norm of sum, in one launch. norm.x is sum. Each of sum and norm.out may be a or b as a whole;
 * otherwise they share no byte with a, b or each other.
 */
typedef struct djinn_add_rms_norm_args {
    const float *a; /* [rows, width] */
    const float *b; /* [rows, width] */
    float *sum;     /* [rows, width] */
    djinn_rms_norm_args norm;
} djinn_add_rms_norm_args;
int djinn_add_rms_norm(const djinn_add_rms_norm_args *args, void *stream);

/* rms_norm of each query head and of each key head of qkv, in place. */
typedef struct djinn_head_norm_args {
    float *qkv;            /* [rows, (heads + 2 kv_heads) head_dim] */
    const void *query;     /* [head_dim] */
    const void *key;       /* [head_dim] */
    uint32_t weight_dtype; /* djinn_dtype, of both */
    float eps;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t rows;
} djinn_head_norm_args;
int djinn_head_norm(const djinn_head_norm_args *args, void *stream);

/*
 * out[r, out_column + j] = sum of x[r, i] weight[j, i] + bias[j], for j in 0 .. n. A row's bits depend on no other row. With
 * 16-bit weights and k a multiple of 64, x is rounded to the weight's type.
 *
 * The weight is read once for every 16 rows. If weights are 16-bit, k is a multiple of 64 and `rounded` is given, it is read
 * once for up to djinn_linear_rows() rows. The weight lies in tiles of tile_rows rows each; the last one may have fewer.
 *
 * An encoded weight gives the bits of the same product over its decoded rows, for up to djinn_linear_direct() rows, and for
 * more where djinn_linear_decodes() and `rounded` is given.
 */
enum {
    DJINN_LINEAR_ROWS = 256,
    DJINN_LINEAR_TILES = 32,
    DJINN_EXPERT_TILES = 128,
};
typedef struct djinn_linear_args {
    const float *x;        /* [rows, k] */
    const void *weights[DJINN_LINEAR_TILES]; /* [tile_rows, k], or [tile_rows] rows of row_bytes */
    const void *bias;      /* [n], or null */
    float *out;            /* [rows, out_width] */
    const void *rounded;   /* x in the weight's type: [rows, k]; or null */
    uint32_t weight_dtype; /* djinn_dtype of the elements, decoded if the weight is encoded; f16 for blocks */
    uint32_t bias_dtype;   /* djinn_dtype */
    uint32_t k;
    uint32_t n;         /* rows of all tiles */
    uint32_t tile_rows; /* from 1 to n */
    uint32_t out_width;
    uint32_t out_column;
    uint32_t rows;
    uint32_t encoding;  /* djinn_encoding */
    uint32_t row_bytes; /* of a stored row, if encoded */
    uint32_t fresh;     /* not 0: earlier work on the stream writes the weights, so they are read only when it is done */
    float *gated;        /* [rows, n / 2]: silu(gate) up in f32; or null */
    void *gated_rounded; /* silu(gate) up in the weight's type, stored instead of out; or null. Then the first n / 2
                            of the weight's rows are gate, and the others up */
    uint32_t adds;       /* not 0: out holds terms to which the product is added, with the bits of djinn_add */
} djinn_linear_args;
int djinn_linear(const djinn_linear_args *args, void *stream);

/*
 * Whether djinn_linear serves `gated` for such a product of 16-bit weights, without a bias, on the current device: 1 or 0.
 * The bits are those of djinn_silu_mul and djinn_convert. Both outputs begin at multiples of 16 bytes.
 */
uint32_t djinn_linear_gated(uint32_t rows, uint32_t k, uint32_t n, uint32_t tile_rows, uint32_t dtype);

/*
 * Whether djinn_linear serves `adds` for such a product of 16-bit weights and rounded x, without a bias, to out at this
 * address, on the current device: 1 or 0. `encoding`: DJINN_PLAIN, or that of a weight for which djinn_linear_decodes().
 */
uint32_t djinn_linear_adds(uint32_t rows, uint32_t k, uint32_t n, uint32_t tile_rows, uint32_t dtype, uint32_t encoding,
                           uint32_t out_width, const float *out);

/* Call it after a context was destroyed, while no work is enqueued: forgets what is known of the kernels in it. */
void djinn_forget_contexts(void);

/* The most rows for which djinn_linear reads the weight once on the current device: DJINN_LINEAR_ROWS or 16. */
uint32_t djinn_linear_rows(void);

/*
 * Whether djinn_linear wants x rounded for such a product on the current device (non-zero). Also whether djinn_expert_linear
 * wants a workspace, for `rows` slots.
 */
int djinn_linear_rounded(uint32_t rows, uint32_t k, uint32_t weight_dtype, uint32_t encoding);

/*
 * The most rows for which djinn_linear reads such an encoded weight on the current device. If 0, neither it nor
 * djinn_expert_linear does; otherwise the latter takes any number of slots.
 */
uint32_t djinn_linear_direct(uint32_t encoding, uint32_t weight_dtype, uint32_t k, uint32_t row_bytes);

/*
 * Whether djinn_linear takes more rows than that of rounded x and decodes the weight while it multiplies, on the current
 * device, in less time than djinn_decode and a product of the decoded weight: 1 or 0.
 */
uint32_t djinn_linear_decodes(uint32_t rows, uint32_t k, uint32_t n, uint32_t tile_rows, uint32_t encoding, uint32_t dtype,
                              uint32_t row_bytes);

/* out[r, :] = row r of an encoded weight, as plain elements, for a product that does not read it as it is. */
typedef struct djinn_decode_args {
    const void *encoded; /* [rows] rows of row_bytes, at a multiple of 16 bytes */
    void *out;           /* [rows, k] */
    uint32_t encoding;   /* djinn_encoding, not DJINN_PLAIN */
    uint32_t dtype;      /* DJINN_F16 or DJINN_BF16: the type that was encoded; blocks are rounded to it */
    uint32_t k;
    uint32_t row_bytes;
    uint32_t rows;
} djinn_decode_args;
int djinn_decode(const djinn_decode_args *args, void *stream);

/* out[i] = x[i] rounded to nearest even, to f16 or bf16. For a matrix product on 16-bit inputs. */
typedef struct djinn_convert_args {
    const float *x;     /* [len] */
    void *out;          /* [len] */
    uint32_t out_dtype; /* DJINN_F16 or DJINN_BF16 */
    uint64_t len;
} djinn_convert_args;
int djinn_convert(const djinn_convert_args *args, void *stream);

/* out[r, out_column + j] += bias[j], for a matrix product without a bias. */
typedef struct djinn_add_bias_args {
    float *out;          /* [rows, out_width] */
    const void *bias;    /* [n] */
    uint32_t bias_dtype; /* djinn_dtype */
    uint32_t n;
    uint32_t out_width;
    uint32_t out_column;
    uint32_t rows;
} djinn_add_bias_args;
int djinn_add_bias(const djinn_add_bias_args *args, void *stream);

/*
 * Rotates, in place, the first rotary_dim elements of each query and key head of
 * qkv[rows, (heads + 2 kv_heads) head_dim]: (a, b) -> (a cos - b sin, b cos + a sin).
 */
typedef struct djinn_rope_args {
    float *qkv;
    const float *table; /* [rows, rotary_dim], of djinn_rope_table */
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t rotary_dim;
    uint32_t style; /* djinn_rope_style */
    uint32_t rows;
} djinn_rope_args;
int djinn_rope(const djinn_rope_args *args, void *stream);

/*
 * The KV cache of one layer: page p starts p * page_bytes bytes after pages; within a page, row-major
 * [k|v][kv_head][slot][head_dim] in dtype. In int8, a head's [slot][head_dim] integers are followed by its [slot]
 * scales, in f32. If a page's tokens are not a multiple of 16, neither has an alignment.
 */
typedef struct djinn_kv_pages {
    void *pages;
    const uint32_t *page_table; /* [sequences, table_width] */
    uint64_t page_bytes;
    uint32_t dtype; /* djinn_dtype */
    uint32_t page_tokens;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t table_width;
} djinn_kv_pages;

/*
 * Writes keys and values of qkv[rows, (heads + 2 kv_heads) head_dim] into the pages, rounded to nearest even. In int8, a
 * vector's scale is its greatest magnitude divided by 127, and its integers are its numbers times the quotient of 127 and
 * that magnitude; scales below 2^-126 are 0. A vector with a number that is not finite has the scale NaN and integers of 0.
 */
typedef struct djinn_kv_write_args {
    const float *qkv;
    const uint32_t *row_seq;   /* [rows] */
    const uint32_t *positions; /* [rows] */
    djinn_kv_pages kv;
    uint32_t heads;
    uint32_t rows;
} djinn_kv_write_args;
int djinn_kv_write(const djinn_kv_write_args *args, void *stream);

/* djinn_rope, then djinn_kv_write of the same qkv and rows, in one launch. */
typedef struct djinn_rope_kv_write_args {
    djinn_rope_args rope;
    djinn_kv_write_args write;
} djinn_rope_kv_write_args;
int djinn_rope_kv_write(const djinn_rope_kv_write_args *args, void *stream);

/*
 * out[r, h, :] = softmax((q[r, h, :] K + bias) scale) V over positions 0 ..= p of the row's sequence, for p = positions[r].
 * Where more than DJINN_PREFILL_RUN rows of one sequence are adjacent, positions ascend by one. head_dim up to DJINN_MOST_HEAD_DIM.
 *
 * With a window, over positions max(0, p + 1 - window) ..= p; pages that no row sees are not read. With `alibi` the bias of
 * key j is bf16(bf16(slope(h)) bf16(j)), where with m the largest power of two up to heads, the first m slopes are 2^(-8 (i
 * + 1) / m) and the others 2^(-4 (2 i + 1) / m); else it is 0.
 *
 * There are two paths: row by row, and in tiles. Tiles serve rows in a run of more than DJINN_PREFILL_RUN rows of their
 * sequence, if the cache is f16, bf16 or aligned int8: on Hopper with a head_dim that is a multiple of 8 and a workspace for
 * at least one row, elsewhere with a head_dim of 64 or 128 and no bias. So a row's bits depend at most on the length of its
 * own run, never on other sequences. If the cache is f16 or bf16 and head_dim a multiple of 8, queries and probabilities are
 * rounded to its type; all else is f32.
 *
 * int8 is aligned if the pages' address, page_bytes, page_tokens and head_dim are multiples of 16. Then queries are rounded
 * to f16, as are probabilities times the values' scales. Row by row, integers are exact; in tiles, keys and values are
 * rounded to f16 as well. If int8 is not aligned, all is f32.
 *
 * The workspace holds partial results of contexts that are split over the device. Any size is right, null included.
 * `counters` are zero before their first launch, and each launch leaves them zero. Launches that share them take turns.
 */
enum {
    DJINN_PREFILL_RUN = 32,
    DJINN_ATTENTION_COUNTERS = 1 << 14,
    DJINN_MOST_HEAD_DIM = 256,
};
typedef struct djinn_attention_args {
    const float *qkv;          /* [rows, (heads + 2 kv_heads) head_dim]; only the queries are read */
    const uint32_t *row_seq;   /* [rows] */
    const uint32_t *positions; /* [rows] */
    float *out;                /* [rows, heads head_dim] */
    float *workspace;          /* or null */
    uint64_t workspace_bytes;
    uint32_t *counters; /* [DJINN_ATTENTION_COUNTERS]; null if the workspace is */
    djinn_kv_pages kv;
    uint32_t heads;
    float scale;
    uint32_t window; /* positions that a row sees, its own the last; 0 for all */
    uint32_t alibi;  /* non-zero: scores are biased by position */
    uint32_t rows;
    uint32_t short_runs; /* non-zero: no run of a sequence's rows is longer than DJINN_PREFILL_RUN, so none is looked for */
    djinn_rounded rounded;
} djinn_attention_args;
int djinn_attention(const djinn_attention_args *args, void *stream);

/* out[r, i] = silu(x[r, i]) x[r, width + i], for x[rows, 2 width]. */
typedef struct djinn_silu_mul_args {
    const float *x; /* [rows, 2 width] */
    float *out;     /* [rows, width] */
    uint32_t width;
    uint32_t rows;
    djinn_rounded rounded;
} djinn_silu_mul_args;
int djinn_silu_mul(const djinn_silu_mul_args *args, void *stream);

/* out = gelu(x), element by element. */
typedef struct djinn_gelu_args {
    const float *x; /* [len] */
    float *out;     /* [len]; may be x */
    uint32_t form;  /* djinn_gelu_form */
    uint64_t len;
} djinn_gelu_args;
int djinn_gelu(const djinn_gelu_args *args, void *stream);

/* out = a + b, element by element. */
typedef struct djinn_add_args {
    const float *a; /* [len] */
    const float *b; /* [len] */
    float *out;     /* [len]; may be a or b */
    uint64_t len;
} djinn_add_args;
int djinn_add(const djinn_add_args *args, void *stream);

/* out[i, :] = x[indices[i], :]. */
typedef struct djinn_select_rows_args {
    const float *x;          /* [_, width] */
    const uint32_t *indices; /* [rows] */
    float *out;              /* [rows, width] */
    uint32_t width;
    uint32_t rows;
} djinn_select_rows_args;
int djinn_select_rows(const djinn_select_rows_args *args, void *stream);

/*
 * y = clamp(scale y + along (y . direction) direction + add[i, :], low, high), where y is the columns from `column` on of
 * row indices[i] of x. A scale of 0 sets y to add. With an `along` of 0 the direction is not read.
 */
typedef struct djinn_edit_rows_args {
    float *x;                /* [_, x_width] */
    const uint32_t *indices; /* [rows], distinct */
    const float *direction;  /* [width] */
    const float *add;        /* [rows, width], or [width] for all rows if add_rows is 1 */
    float scale;
    float along;
    float low;
    float high;
    uint32_t column;
    uint32_t width;
    uint32_t x_width;
    uint32_t rows;
    uint32_t add_rows;
} djinn_edit_rows_args;
int djinn_edit_rows(const djinn_edit_rows_args *args, void *stream);

/*
 * ids[r, :] = the top_k greatest of logits[r, :], in descending order, the lower id first among equals; weights are the
 * softmax over all experts at these, divided by their sum if `renormalise`. A NaN is chosen like minus infinity. A NaN, or a
 * greatest logit that is infinite, makes the row's weights NaN.
 */
typedef struct djinn_route_args {
    const float *logits; /* [rows, experts] */
    float *weights;      /* [rows, top_k] */
    uint32_t *ids;       /* [rows, top_k] */
    uint32_t experts;    /* up to 1024 */
    uint32_t top_k;      /* up to 16, and to experts */
    uint32_t renormalise;
    uint32_t rows;
} djinn_route_args;
int djinn_route(const djinn_route_args *args, void *stream);

/* Slots that the host's processor computes: slot s whose id is within begin to end - 1, if s % top_k >= first; top_k > 0. */
typedef struct djinn_cpu_slots {
    uint32_t top_k;
    uint32_t first;
    uint32_t begin;
    uint32_t end;
} djinn_cpu_slots;

/*
 * order[starts[e] .. starts[e + 1]] = the slots whose id is e, ascending: those of the processor if `of_cpu`, else all others.
 * Ids are below experts. order and starts may lie in pinned host memory.
 */
typedef struct djinn_group_args {
    const uint32_t *ids; /* [slots] */
    uint32_t *order;     /* [slots] */
    uint32_t *starts;    /* [experts + 1] */
    uint32_t experts;    /* up to 1024 */
    uint32_t slots;
    djinn_cpu_slots cpu;
    uint32_t of_cpu;
} djinn_group_args;
int djinn_group(const djinn_group_args *args, void *stream);

/* djinn_route, then djinn_group of its choice: group.ids is route.ids. What group writes may share bytes with the logits. */
typedef struct djinn_route_group_args {
    djinn_route_args route;
    djinn_group_args group;
} djinn_route_group_args;
int djinn_route_group(const djinn_route_group_args *args, void *stream);

/*
 * djinn_linear for the slots of some experts, those of order[starts[e] .. starts[e + 1]] for each expert e: row s of out from
 * row s / slots_per_row of x, with the bits of djinn_linear for that row. Other rows of out are left alone; without slots no
 * weight is read. `weights` has the tiles of expert ids[0], up to DJINN_LINEAR_TILES of linear.n rows in all, then those of
 * ids[1], and so on; all experts have tiles of the same sizes. linear.weights is not read. linear.rows is the number of all
 * slots, and so of rows of out. There is no bias, and linear.rounded is null. The result does not depend on the workspace.
 * `settled`: an earlier djinn_expert_linear on the stream had this order and starts, and nothing has written them since. So they
 * may be read before the work in between is done.
 */
typedef struct djinn_expert_linear_args {
    djinn_linear_args linear;
    const uint32_t *order;  /* [linear.rows] */
    const uint32_t *starts; /* [experts + 1] */
    void *workspace;        /* for rows of x in the weight's type, at a multiple of 16 bytes; or null */
    uint64_t workspace_bytes;
    const void *weights[DJINN_EXPERT_TILES];
    uint32_t ids[DJINN_EXPERT_TILES]; /* [chosen], below experts and ascending */
    uint32_t chosen;                  /* experts whose products are computed; up to DJINN_EXPERT_TILES tiles in all */
    uint32_t experts;                 /* all that have slots, also those that are not chosen */
    uint32_t slots_per_row;
    uint32_t settled;
} djinn_expert_linear_args;
int djinn_expert_linear(const djinn_expert_linear_args *args, void *stream);

/*
 * out[r, :] = sum over j of weights[r, j] y[r top_k + j, :]. Slots of the processor are read from cpu_y instead of y. ids and
 * cpu_y may lie in pinned host memory; ids null: no slot is the processor's.
 */
typedef struct djinn_combine_args {
    const float *y;       /* [rows top_k, width] */
    const float *weights; /* [rows, top_k] */
    const uint32_t *ids;  /* [rows, top_k] */
    const float *cpu_y;   /* [rows top_k, width] */
    djinn_cpu_slots cpu;
    float *out; /* [rows, width] */
    uint32_t top_k;
    uint32_t width;
    uint32_t rows;
} djinn_combine_args;
int djinn_combine(const djinn_combine_args *args, void *stream);

/*
 * drawn[r] = the token that draws[r] chooses from logits[r, :], as djinn-device, src/choice.rs, defines it. A row of draws
 * is: flags (1: a token is chosen, 2: its log-probability is wanted), temperature, top_k, top_p, min_p, the low and the
 * high word of the seed, position, the repetition, frequency and presence penalty, how many of the most probable tokens
 * are wanted (up to 20); then the word of changes at which the row's changes begin, how many there are, the word at which
 * the bits of its allowed tokens begin and the word of earlier that is its latest token, the last two plus 1, or 0 for
 * none. A change is: token, bias, how often it was generated (with bit 31: the sequence has it), 0 (used meanwhile). A
 * row of drawn is: state (0: nothing was to be chosen, 1: a token, 2: none, since a logit is NaN or infinite, or none is
 * finite; from bit 8 on, the number of most probable tokens), token, its logit, its log-probability, and of each of the
 * most probable tokens the token and its log-probability. All but the logits, which are as before after the choice, may
 * lie in pinned host memory.
 */
typedef struct djinn_choose_args {
    float *logits;           /* [rows, vocab] */
    const uint32_t *draws;   /* [rows, 16] */
    uint32_t *changes;       /* from multiples of 16 bytes on */
    const uint32_t *earlier;
    uint32_t *drawn;         /* [rows, 44] */
    uint32_t vocab;          /* up to 2^22 */
    uint32_t rows;
} djinn_choose_args;
int djinn_choose(const djinn_choose_args *args, void *stream);

/*
 * dst = src; either may lie in pinned host memory. Copied by multiprocessors: for few bytes that must not queue behind the
 * copies of other streams.
 */
typedef struct djinn_copy_args {
    const void *src;
    void *dst;
    uint64_t bytes; /* multiples of 16, from multiples of 16 on, are the fastest */
} djinn_copy_args;
int djinn_copy(const djinn_copy_args *args, void *stream);

enum {
    /* The most copies of one djinn_copy_experts. */
    DJINN_COPIES = 64,
};

/* A copy of some bytes of an expert's weights. */
typedef struct djinn_expert_copy {
    const void *src;
    void *dst;
    uint32_t *moved;
    uint64_t bytes; /* multiples of 16, from multiples of 16 on, are the fastest */
    uint32_t expert;
} djinn_expert_copy;

/*
 * For each copy: if the expert has slots, i.e. starts[expert + 1] > starts[expert], dst = src and moved = 1; else moved = 0,
 * and neither src nor dst is touched. src may lie in pinned host memory. No dst shares bytes with that of another copy, or with
 * its src. For a stream of copies: it overlaps with no kernel of its stream, and what reads dst as a weight waits for an event
 * after it.
 */
typedef struct djinn_copy_experts_args {
    const uint32_t *starts; /* of at least the greatest expert + 2 */
    uint32_t count;         /* 1 to DJINN_COPIES */
    djinn_expert_copy copies[DJINN_COPIES];
} djinn_copy_experts_args;
int djinn_copy_experts(const djinn_copy_experts_args *args, void *stream);

/*
 * out = the wrapping sum, over the 32-bit little-endian words w of src (the last one padded with zeros), of
 * mix(w ^ mix(index)), where mix is SplitMix64's finaliser. Two operations on the stream: out is cleared first.
 */
typedef struct djinn_checksum_args {
    const void *src;
    uint64_t *out; /* one, in device memory */
    uint64_t bytes;
} djinn_checksum_args;
int djinn_checksum(const djinn_checksum_args *args, void *stream);

#ifdef __cplusplus
}
#endif

#endif
