/* What a decoding pass of a Llama does between its matrix products, on a CPU. cpu_decode.py compiles and calls it.

   Compiled for one kind of numbers in weights and cache (-DBFLOAT16=1, or 0 for float), one size of a head (-DHEAD, a multiple of 32) and
   one number of query heads to a key head (-DGROUP), so that what is summed over stays in registers. Sums are float either way.
   Vectors are the extension that gcc and clang share. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef LANES /* floats in a register: gcc takes wider vectors apart lane by lane, at several times the cost */
#if defined __AVX512F__
#define LANES 16
#elif defined __AVX__
#define LANES 8
#else
#define LANES 4
#endif
#endif
#define PARTS (HEAD / LANES)
#define BLOCK 128 /* positions whose scores are held at a time */

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));

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

/* LANES vectors become the columns of what they were the rows of: blocks of half of the lanes cross over, then of a quarter, down to single
   ones. Of two vectors the even blocks of both are picked, and the odd ones, which stand one block further on. */
#if LANES == 16
#define CROSSINGS \
    CROSS(8, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) \
    CROSS(4, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) \
    CROSS(2, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) \
    CROSS(1, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
#define MOVED(by, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) \
    a + by, b + by, c + by, d + by, e + by, f + by, g + by, h + by, i + by, j + by, k + by, l + by, m + by, n + by, o + by, p + by
#elif LANES == 8
#define CROSSINGS CROSS(4, 0, 1, 2, 3, 8, 9, 10, 11) CROSS(2, 0, 1, 8, 9, 4, 5, 12, 13) CROSS(1, 0, 8, 2, 10, 4, 12, 6, 14)
#define MOVED(by, a, b, c, d, e, f, g, h) a + by, b + by, c + by, d + by, e + by, f + by, g + by, h + by
#else
#define CROSSINGS CROSS(2, 0, 1, 4, 5) CROSS(1, 0, 4, 2, 6)
#define MOVED(by, a, b, c, d) a + by, b + by, c + by, d + by
#endif

#ifdef __clang__
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (ints){__VA_ARGS__})
#endif

#define CROSS(size, ...) \
    for (int lane = 0; lane < LANES; lane++) \
        if (!(lane & size)) { \
            words a = x[lane], b = x[lane + size]; \
            x[lane] = PICK(a, b, __VA_ARGS__), x[lane + size] = PICK(a, b, MOVED(size, __VA_ARGS__)); \
        }

static inline void transpose(words x[LANES]) { CROSSINGS }

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

/* e^x of x <= 0, to some 1e-6 of its value; of what is below -87, e^-87 */
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

/* Products of GROUP queries with LANES keys [LANES, HEAD], position by position in a vector: nothing is summed across lanes. */
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
   comes (arXiv:1805.02867). Up to LANES - 1 positions beyond `length` are read, and do not count. */
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

/* LANES logits from `first` on; beyond the vocabulary, what is never drawn */
static inline floats some_of(const float *logits, int64_t first, int64_t vocabulary) {
    float last[LANES];
    if (first + LANES <= vocabulary) return load_float(logits + first);
    for (int i = 0; i < LANES; i++) last[i] = first + i < vocabulary ? logits[first + i] : -INFINITY;
    return load_float(last);
}

/* e^x of x <= 0, and nothing at all of what is below -87: what is impossible must stay so */
static inline floats share_of(floats x) { return choose(x > all(-87.0f), exponential(x), all(0)); }

/* One token for each row of logits [n, vocabulary]: the likeliest at temperature 0, else the first whose share and those before it, at this
   temperature, exceed `uniform` in [0, 1). scores: log-probabilities at the temperature, at 1 of the likeliest; NaN where no number says
   what is likely. */
void draw(const float *logits, const float *temperature, const float *uniform, int64_t n, int64_t vocabulary, int64_t *ids, float *scores,
          int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < n; row++) {
        const float *x = logits + row * vocabulary;
        floats tops = all(-INFINITY);
        ints odd = {};
        for (int64_t i = 0; i < vocabulary; i += LANES) {
            floats some = some_of(x, i, vocabulary);
            tops = choose(some > tops, some, tops), odd |= some != some;
        }
        float top = highest_of(tops), scale = temperature[row] > 0 ? 1.0f / temperature[row] : 1.0f, total = 0;
        int unsound = !(top > -INFINITY && top < INFINITY);
        for (int i = 0; i < LANES; i++) unsound |= odd[i] != 0;
        for (int64_t i = 0; i < vocabulary; i += LANES) total += sum(share_of((some_of(x, i, vocabulary) - top) * scale));
        int64_t likeliest = 0;
        while (likeliest < vocabulary - 1 && !(x[likeliest] >= top)) likeliest++;
        int64_t chosen = likeliest;
        float below = 0, sought = uniform[row] * total; /* below the total, which is summed in the same order */
        for (int64_t i = 0; i < vocabulary && temperature[row] > 0 && !unsound; i += LANES) {
            floats some = share_of((some_of(x, i, vocabulary) - top) * scale);
            float with = below + sum(some);
            if (with <= sought) {
                below = with;
                continue;
            }
            for (int lane = 0; lane < LANES; lane++) { /* token by token the sum may round to less: then it is the last that can be drawn */
                if (some[lane] > 0) chosen = i + lane;
                if ((below += some[lane]) > sought) break;
            }
            break;
        }
        ids[row] = chosen;
        scores[row] = unsound ? NAN : (x[chosen] - top) * scale - logf(total);
    }
}
