/* What a decoding pass of a Llama does between its matrix products, on a CPU. _decode.py compiles and calls it.

   Compiled for one kind of numbers in weights and cache (-DBFLOAT16=1, or 0 for float), one size of a head (-DHEAD, a multiple of 32) and
   one number of query heads to a key head (-DGROUP), so that what is summed over stays in registers. Sums are float either way.
   Vectors are the extension that gcc and clang share; the compiler cuts them to what the processor has. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define PARTS (HEAD / LANES)
#define BLOCK 128 /* positions whose scores are held at a time */

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));

#ifdef __clang__
#define PICK(a, b, more, i0, i1, i2, i3, i4, i5, i6, i7, i8, i9, i10, i11, i12, i13, i14, i15) \
    __builtin_shufflevector(a, b, i0 + more, i1 + more, i2 + more, i3 + more, i4 + more, i5 + more, i6 + more, i7 + more, i8 + more, \
                            i9 + more, i10 + more, i11 + more, i12 + more, i13 + more, i14 + more, i15 + more)
#else
#define PICK(a, b, more, ...) __builtin_shuffle(a, b, (ints){__VA_ARGS__} + more)
#endif

static inline floats load_float(const float *from) {
    floats x;
    memcpy(&x, from, sizeof x);
    return x;
}

static inline void store_float(float *to, floats x) { memcpy(to, &x, sizeof x); }

#if BFLOAT16
typedef uint16_t number;
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));

static inline floats load(const number *from) {
    halves raw;
    memcpy(&raw, from, sizeof raw);
    return (floats)(__builtin_convertvector(raw, words) << 16);
}

static inline void store(number *to, floats x) { /* the nearest, of two the even one */
    words raw = (words)x;
    halves high = __builtin_convertvector((raw + 0x7fff + ((raw >> 16) & 1)) >> 16, halves);
    memcpy(to, &high, sizeof high);
}
#else
typedef float number;

static inline floats load(const number *from) { return load_float(from); }

static inline void store(number *to, floats x) { store_float(to, x); }
#endif

static inline floats choose(ints where, floats a, floats b) { return (floats)((where & (ints)a) | (~where & (ints)b)); }

static inline floats all(float x) { return (floats){} + x; }

/* Of two vectors, blocks of `size` lanes: the even ones of both, and the odd ones of both, each in its place. */
#define EXCHANGE(size, ...) \
    for (int i = 0; i < LANES; i++) \
        if (!(i & size)) { \
            words a = x[i], b = x[i + size]; \
            x[i] = PICK(a, b, 0, __VA_ARGS__), x[i + size] = PICK(a, b, size, __VA_ARGS__); \
        }

/* 16 vectors become the columns of what they were the rows of: blocks of 8, 4, 2 and 1 lanes cross over. */
static inline void transpose(words x[LANES]) {
    EXCHANGE(8, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
    EXCHANGE(4, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
    EXCHANGE(2, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
    EXCHANGE(1, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
}

static inline float sum(floats x) {
    float s = 0;
    for (int i = 0; i < LANES / 2; i++) s += x[i] + x[i + LANES / 2];
    return s;
}

static inline float highest_of(floats x) {
    float top = x[0];
    for (int i = 1; i < LANES; i++) top = x[i] > top ? x[i] : top;
    return top;
}

/* e^x of x <= 0, to 3e-7 of its value; of what is below -87, e^-87 */
static inline floats exponential(floats x) {
    x = choose(x > all(-87.0f), x, all(-87.0f)) * 1.44269504088896341f;
    ints whole = __builtin_convertvector(x - 0.5f, ints);
    floats rest = x - __builtin_convertvector(whole, floats);
    floats power = rest * 1.5403530e-4f + 1.3333558e-3f;
    power = power * rest + 9.6181291e-3f;
    power = power * rest + 5.5504109e-2f;
    power = power * rest + 2.4022651e-1f;
    power = power * rest + 6.9314718e-1f;
    power = power * rest + 1.0f;
    return power * (floats)((whole + 127) << 23);
}

/* x [HEAD] turned by the angles of its position, times `scale`; cos and sin [HEAD / 2] */
static inline void turn(const number *x, const float *cos, const float *sin, float scale, float *out) {
    float whole[HEAD];
    for (int c = 0; c < PARTS; c++) store_float(whole + c * LANES, load(x + c * LANES));
    for (int i = 0; i < HEAD / 2; i++) {
        float a = whole[i], b = whole[i + HEAD / 2];
        out[i] = (a * cos[i] - b * sin[i]) * scale;
        out[i + HEAD / 2] = (b * cos[i] + a * sin[i]) * scale;
    }
}

/* Products of GROUP queries with 16 keys [16, HEAD], position by position in a vector: nothing is summed across lanes. */
static inline void score(const float query[GROUP][HEAD], const number *keys, floats found[GROUP]) {
    for (int g = 0; g < GROUP; g++) found[g] = all(0);
    for (int d = 0; d < HEAD;) {
        words columns[LANES];
        for (int p = 0; p < LANES; p++) memcpy(&columns[p], keys + p * HEAD + d, sizeof columns[p]);
        transpose(columns);
        for (int i = 0; i < LANES; i++) {
#if BFLOAT16
            floats even = (floats)(columns[i] << 16), odd = (floats)(columns[i] & 0xffff0000u);
            for (int g = 0; g < GROUP; g++) found[g] += query[g][d] * even + query[g][d + 1] * odd;
            d += 2;
#else
            for (int g = 0; g < GROUP; g++) found[g] += query[g][d] * (floats)columns[i];
            d += 1;
#endif
        }
    }
}

/* Softmax mixture of the first `length` values under GROUP queries: block by block, what came before is weighed down when a higher score
   comes (arXiv:1805.02867). Up to 15 positions beyond `length` are read, and do not count. */
static void mix(const float query[GROUP][HEAD], const number *keys, const number *values, int64_t length, number *out) {
    floats mixed[GROUP][PARTS];
    float scores[GROUP][BLOCK], highest[GROUP], total[GROUP];
    memset(mixed, 0, sizeof mixed);
    for (int g = 0; g < GROUP; g++) highest[g] = -INFINITY, total[g] = 0;
    for (int64_t start = 0; start < length; start += BLOCK) {
        int count = length - start < BLOCK ? (int)(length - start) : BLOCK;
        int filled = (count + LANES - 1) / LANES * LANES;
        for (int p = 0; p < filled; p += LANES) {
            floats found[GROUP];
            for (int i = 0; i < LANES * HEAD; i += 64 / sizeof(number)) {
                __builtin_prefetch(keys + (start + p + 2 * LANES) * HEAD + i);
                __builtin_prefetch(values + (start + p) * HEAD + i);
            }
            score(query, keys + (start + p) * HEAD, found);
            for (int g = 0; g < GROUP; g++) store_float(&scores[g][p], found[g]);
        }
        for (int g = 0; g < GROUP; g++) {
            for (int p = count; p < filled; p++) scores[g][p] = -INFINITY;
            floats top = all(highest[g]), share = {};
            for (int p = 0; p < filled; p += LANES) top = choose(load_float(&scores[g][p]) > top, load_float(&scores[g][p]), top);
            float now = highest_of(top), before = start ? expf(highest[g] - now) : 0;
            for (int p = 0; p < filled; p += LANES) {
                floats weight = exponential(load_float(&scores[g][p]) - now);
                store_float(&scores[g][p], weight);
                share += weight;
            }
            highest[g] = now, total[g] = total[g] * before + sum(share);
            for (int c = 0; c < PARTS; c++) mixed[g][c] *= before;
        }
        floats more[GROUP][PARTS];
        memset(more, 0, sizeof more);
        for (int p = 0; p < count; p++)
            for (int c = 0; c < PARTS; c++) {
                floats value = load(values + (start + p) * HEAD + c * LANES);
                for (int g = 0; g < GROUP; g++) more[g][c] += scores[g][p] * value;
            }
        for (int g = 0; g < GROUP; g++)
            for (int c = 0; c < PARTS; c++) mixed[g][c] += more[g][c];
    }
    for (int g = 0; g < GROUP; g++)
        for (int c = 0; c < PARTS; c++) store(out + g * HEAD + c * LANES, mixed[g][c] / total[g]);
}

/* Attention of n new tokens, each written at its place in its row of the cache and seeing that row up to there.
   projected [n, (key_heads * (GROUP + 2)) * HEAD]: queries, keys, values. cos and sin [positions, HEAD / 2]; rows and positions [n].
   keys and values [rows, key_heads, capacity, HEAD], capacity a multiple of 16. out [n, key_heads * GROUP * HEAD]. */
void attend(const number *projected, const float *cos, const float *sin, number *keys, number *values, int64_t capacity, const int64_t *rows,
            const int64_t *positions, int64_t n, int64_t key_heads, number *out, int threads) {
    int64_t heads = key_heads * GROUP, width = (heads + 2 * key_heads) * HEAD;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t task = 0; task < n * key_heads; task++) {
            int64_t token = task / key_heads, k = task % key_heads, angle = positions[token] * (HEAD / 2);
            int64_t at = ((rows[token] * key_heads + k) * capacity + positions[token]) * HEAD;
            float key[HEAD];
            turn(projected + token * width + (heads + k) * HEAD, cos + angle, sin + angle, 1.0f, key);
            for (int part = 0; part < HEAD; part += LANES) store(keys + at + part, load_float(key + part));
            memcpy(values + at, projected + token * width + (heads + key_heads + k) * HEAD, HEAD * sizeof(number));
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < n * key_heads; task++) {
            int64_t token = task / key_heads, k = task % key_heads, angle = positions[token] * (HEAD / 2);
            int64_t row = (rows[token] * key_heads + k) * capacity * HEAD;
            float query[GROUP][HEAD];
            for (int g = 0; g < GROUP; g++)
                turn(projected + token * width + (k * GROUP + g) * HEAD, cos + angle, sin + angle, 1.0f / sqrtf(HEAD), query[g]);
            mix(query, keys + row, values + row, positions[token] + 1, out + (token * heads + k * GROUP) * HEAD);
        }
    }
}

/* x [width] += added, where there is any; returns one over its root mean square */
static inline float add(float *x, const number *added, float eps, int64_t width) {
    floats squares = {};
    for (int64_t i = 0; i < width; i += LANES) {
        floats part = load_float(x + i);
        if (added) part += load(added + i);
        store_float(x + i, part);
        squares += part * part;
    }
    return 1.0f / sqrtf(sum(squares) / width + eps);
}

/* stream [n, width] += added, where there is any; out = stream over its root mean square, times weight [width]. width: a multiple of 16 */
void add_and_norm(float *stream, const number *added, const float *weight, float eps, number *out, int64_t n, int64_t width, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < n; row++) {
        float *x = stream + row * width, scale = add(x, added ? added + row * width : 0, eps, width);
        for (int64_t i = 0; i < width; i += LANES) store(out + row * width + i, load_float(x + i) * scale * load_float(weight + i));
    }
}

/* The same for the last norm, whose result stays in the stream. */
void add_and_norm_last(float *stream, const number *added, const float *weight, float eps, int64_t n, int64_t width, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < n; row++) {
        float *x = stream + row * width, scale = add(x, added + row * width, eps, width);
        for (int64_t i = 0; i < width; i += LANES) store_float(x + i, load_float(x + i) * scale * load_float(weight + i));
    }
}

/* out [n, width] = silu(gate) * up, of both [n, 2 * width] side by side. width: a multiple of 16 */
void gate(const number *both, number *out, int64_t n, int64_t width, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < n; row++)
        for (int64_t i = 0; i < width; i += LANES) {
            floats g = load(both + row * 2 * width + i), up = load(both + row * 2 * width + width + i);
            floats power = exponential(choose(g < 0, g, -g)); /* e^-|g|, which no size of g makes infinite */
            store(out + row * width + i, g * up * choose(g < 0, power, all(1.0f)) / (1.0f + power));
        }
}

/* 16 logits from `first` on; beyond the vocabulary, what is as good as never drawn */
static inline floats some_of(const float *logits, int64_t first, int64_t vocabulary) {
    float last[LANES];
    if (first + LANES <= vocabulary) return load_float(logits + first);
    for (int i = 0; i < LANES; i++) last[i] = first + i < vocabulary ? logits[first + i] : -INFINITY;
    return load_float(last);
}

/* One token for each row of logits [n, vocabulary]: the likeliest at temperature 0, else the first whose share and those before it, at this
   temperature, exceed `uniform` in [0, 1). scores: log-probabilities at the temperature, at 1 of the likeliest. */
void draw(const float *logits, const float *temperature, const float *uniform, int64_t n, int64_t vocabulary, int64_t *ids, float *scores,
          int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < n; row++) {
        const float *x = logits + row * vocabulary;
        int64_t chosen = vocabulary - 1;
        floats tops = all(-INFINITY), share = {};
        for (int64_t i = 0; i < vocabulary; i += LANES) {
            floats some = some_of(x, i, vocabulary);
            tops = choose(some > tops, some, tops);
        }
        float top = highest_of(tops), scale = temperature[row] > 0 ? 1.0f / temperature[row] : 1.0f;
        for (int64_t i = 0; i < vocabulary; i += LANES) share += exponential((some_of(x, i, vocabulary) - top) * scale);
        float total = sum(share), below = 0, sought = uniform[row] * total;
        if (temperature[row] == 0)
            for (chosen = 0; chosen < vocabulary - 1 && x[chosen] < top;) chosen++;
        for (int64_t i = 0; i < vocabulary && temperature[row] > 0; i += LANES) {
            floats some = exponential((some_of(x, i, vocabulary) - top) * scale);
            float with = below + sum(some);
            if (with <= sought) {
                below = with;
                continue;
            }
            for (chosen = i; chosen < i + LANES - 1 && chosen < vocabulary - 1; chosen++)
                if ((below += some[chosen - i]) > sought) break;
            break;
        }
        ids[row] = chosen;
        scores[row] = (x[chosen] - top) * scale - logf(total);
    }
}
