/* The phases of repro/ops/phases.py on CPU: one head, float32, rows [tokens, width] without gaps.

   Every pass visits a token once, with its rows in the first cache: what plain operations read and write
   several times is read and written once here. Scalars of a token lie side by side, z as [tokens, n, Q].
   Sums over tokens have two stages and a fixed order for a given number of threads. */

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <omp.h>

typedef float v4 __attribute__((vector_size(16)));
typedef float v8 __attribute__((vector_size(32)));
typedef float v16 __attribute__((vector_size(64)));
typedef float u16 __attribute__((vector_size(64), aligned(4))); /* loads and stores at any address */

#define LANES 16
#define LOAD(p) ((v16) * (const u16 *)(p))
#define STORE(p, x) (*(u16 *)(p) = (x))
#define SUMMED_TOKENS 256 /* tokens that one stage of a sum over tokens adds up */

enum { SOFTMAX = 0, SIGMOID = 1, LINEAR = 2 };

static inline float lanes(v16 a) {
    union { v16 v; v8 h[2]; } x = {a};
    union { v8 v; v4 h[2]; } y = {x.h[0] + x.h[1]};
    v4 c = y.h[0] + y.h[1];
    return (c[0] + c[2]) + (c[1] + c[3]);
}

static inline float dot(const float *a, const float *b, int64_t width) {
    v16 s = {0}, t = {0};
    float rest = 0;
    int64_t d = 0;
    for (; d + 2 * LANES <= width; d += 2 * LANES) {
        s += LOAD(a + d) * LOAD(b + d);
        t += LOAD(a + d + LANES) * LOAD(b + d + LANES);
    }
    for (; d + LANES <= width; d += LANES) s += LOAD(a + d) * LOAD(b + d);
    for (; d < width; d++) rest += a[d] * b[d];
    return lanes(s + t) + rest;
}

/* Products of one row with four. */
static inline void dot4(const float *a, const float *const *b, int64_t width, float *out) {
    v16 s[4] = {{0}, {0}, {0}, {0}};
    float rest[4] = {0, 0, 0, 0};
    int64_t d = 0;
    for (; d + LANES <= width; d += LANES) {
        v16 x = LOAD(a + d);
        for (int k = 0; k < 4; k++) s[k] += x * LOAD(b[k] + d);
    }
    for (; d < width; d++)
        for (int k = 0; k < 4; k++) rest[k] += a[d] * b[k][d];
    for (int k = 0; k < 4; k++) out[k] = lanes(s[k]) + rest[k];
}

static inline void dots(const float *a, const float *const *b, int count, int64_t width, float *out) {
    int k = 0;
    for (; k + 4 <= count; k += 4) dot4(a, b + k, width, out + k);
    for (; k < count; k++) out[k] = dot(a, b[k], width);
}

/* out = start (or 0) times scale + sum of weights[k * step] rows[k]. */
static inline void combine(float *out, const float *start, float scale, const float *const *rows,
                           const float *weights, int step, int count, int64_t width) {
    int64_t d = 0;
    for (; d + 4 * LANES <= width; d += 4 * LANES) {
        v16 s[4] = {{0}, {0}, {0}, {0}};
        if (start)
            for (int j = 0; j < 4; j++) s[j] = scale * LOAD(start + d + j * LANES);
        for (int k = 0; k < count; k++)
            for (int j = 0; j < 4; j++) s[j] += weights[k * step] * LOAD(rows[k] + d + j * LANES);
        for (int j = 0; j < 4; j++) STORE(out + d + j * LANES, s[j]);
    }
    for (; d + LANES <= width; d += LANES) {
        v16 s = {0};
        if (start) s = scale * LOAD(start + d);
        for (int k = 0; k < count; k++) s += weights[k * step] * LOAD(rows[k] + d);
        STORE(out + d, s);
    }
    for (; d < width; d++) {
        float s = start ? scale * start[d] : 0;
        for (int k = 0; k < count; k++) s += weights[k * step] * rows[k][d];
        out[d] = s;
    }
}

/* e^x to 2e-7 without a branch, so that loops over it are vectorised; 0 and infinity beyond float's range. */
static inline float exponential(float x) {
    float bounded = x < -87.3f ? -87.3f : (x > 88.3f ? 88.3f : x);
    float n = rintf(bounded * 1.44269504f);
    float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    union { int32_t i; float f; } scale = {((int32_t)n + 127) << 23};
    float y = p * scale.f;
    return x < -87.3f ? 0.0f : (x > 88.3f ? INFINITY : y);
}

static inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

/* The tokens of one thread. */
static inline void share(int64_t tokens, int64_t *begin, int64_t *end) {
    int64_t threads = omp_get_num_threads(), own = omp_get_thread_num();
    *begin = tokens * own / threads;
    *end = tokens * (own + 1) / threads;
}

/* Rows of a thread's stage added to its sum, and emptied. */
static inline void flush(float *sum, float *stage, int64_t size) {
    for (int64_t k = 0; k < size; k++) sum[k] += stage[k];
    memset(stage, 0, size * sizeof(float));
}

static void add_up(float *out, const float *scratch, int threads, int64_t size) {
    memset(out, 0, size * sizeof(float));
    for (int i = 0; i < threads; i++)
        for (int64_t k = 0; k < size; k++) out[k] += scratch[2 * i * size + k];
}

/* Logits [tokens, R] of source + addend, which is written to total, and its inverse RMS (null: no norm). */
void score_forward(int threads, int64_t tokens, int64_t width, int reads, float eps, const float *source,
                   const float *addend, const float *queries, float *total, float *logits, float *inverse) {
#pragma omp parallel num_threads(threads)
    {
        int64_t begin, end;
        const float *rows[reads];
        for (int r = 0; r < reads; r++) rows[r] = queries + r * width;
        share(tokens, &begin, &end);
        for (int64_t t = begin; t < end; t++) {
            const float *x = source + t * width;
            if (addend) {
                const float *one = x;
                combine(total + t * width, addend + t * width, 1, &one, (const float[]){1}, 1, 1, width);
                x = total + t * width;
            }
            dots(x, rows, reads, width, logits + t * reads);
            if (inverse) {
                inverse[t] = 1 / sqrtf(dot(x, x, width) / width + eps);
                for (int r = 0; r < reads; r++) logits[t * reads + r] *= inverse[t];
            }
        }
    }
}

/* Gradient of the source on top of grad_in, and of the queries [R, width]; scratch: [threads, 2, R, width]. */
void score_backward(int threads, int64_t tokens, int64_t width, int reads, const float *grad,
                    const float *grad_in, const float *source, const float *queries, const float *logits,
                    const float *inverse, float *back, float *grad_queries, float *scratch) {
    int64_t size = reads * width;
    memset(scratch, 0, 2 * threads * size * sizeof(float));
#pragma omp parallel num_threads(threads)
    {
        int64_t begin, end;
        const float *rows[reads + 1];
        float raw[reads + 1], *sum = scratch + 2 * omp_get_thread_num() * size, *stage = sum + size;
        for (int r = 0; r < reads; r++) rows[r] = queries + r * width;
        share(tokens, &begin, &end);
        for (int64_t t = begin; t < end; t++) {
            const float *x = source + t * width;
            float product = 0;
            for (int r = 0; r < reads; r++) {
                float g = grad[t * reads + r];
                raw[r] = inverse ? g * inverse[t] : g;
                product += g * logits[t * reads + r];
            }
            rows[reads] = x;
            raw[reads] = inverse ? -product * inverse[t] * inverse[t] / width : 0;
            combine(back + t * width, grad_in ? grad_in + t * width : 0, 1, rows, raw, 1, reads + 1, width);
            for (int r = 0; r < reads; r++) {
                float *q = stage + r * width;
                for (int64_t d = 0; d < width; d++) q[d] += raw[r] * x[d];
            }
            if ((t + 1 - begin) % SUMMED_TOKENS == 0) flush(sum, stage, size);
        }
        flush(sum, stage, size);
    }
    add_up(grad_queries, scratch, threads, size);
}

/* Q mixes of n sources on top of priors (or none), and their lse [tokens, Q]. */
void mix_forward(int threads, int64_t tokens, int64_t width, int n, int reads, int act,
                 const float *const *sources, const float *z, const float *const *priors,
                 const float *prior_lse, float *const *mixed, float *lse) {
#pragma omp parallel num_threads(threads)
    {
        int64_t begin, end;
        const float *rows[n];
        float weights[n * reads], top[reads], sum[reads], prior[reads];
        share(tokens, &begin, &end);
        for (int64_t t = begin; t < end; t++) {
            const float *own = z + t * n * reads;
            for (int i = 0; i < n; i++) rows[i] = sources[i] + t * width;
            if (act == SOFTMAX) {
                for (int q = 0; q < reads; q++) top[q] = prior_lse ? prior_lse[t * reads + q] : own[q];
                for (int k = 0; k < n * reads; k += reads)
                    for (int q = 0; q < reads; q++) top[q] = own[k + q] > top[q] ? own[k + q] : top[q];
                for (int k = 0; k < n * reads; k += reads)
                    for (int q = 0; q < reads; q++) weights[k + q] = exponential(own[k + q] - top[q]);
                for (int q = 0; q < reads; q++) {
                    prior[q] = prior_lse ? exponential(prior_lse[t * reads + q] - top[q]) : 0;
                    sum[q] = prior[q];
                }
                for (int k = 0; k < n * reads; k += reads)
                    for (int q = 0; q < reads; q++) sum[q] += weights[k + q];
                for (int q = 0; q < reads; q++) {
                    lse[t * reads + q] = top[q] + logf(sum[q]);
                    sum[q] = 1 / sum[q];
                    prior[q] *= sum[q];
                }
                for (int k = 0; k < n * reads; k += reads)
                    for (int q = 0; q < reads; q++) weights[k + q] *= sum[q];
            } else {
                for (int k = 0; k < n * reads; k++) weights[k] = act == SIGMOID ? sigmoid(own[k]) : own[k];
                for (int q = 0; q < reads; q++) prior[q] = 1, lse[t * reads + q] = 0;
            }
            for (int q = 0; q < reads; q++)
                combine(mixed[q] + t * width, priors ? priors[q] + t * width : 0, prior[q], rows, weights + q,
                        reads, n, width);
        }
    }
}

/* Gradients of the sources on top of grads_in, of the logits, and delta [tokens, Q] of the whole reads: given
   where a read continues, computed where it ends here, from products with sources and prior. */
void mix_backward(int threads, int64_t tokens, int64_t width, int n, int reads, int act,
                  const float *const *grads, const float *lse, const float *delta, const char *continued,
                  const float *const *priors, const float *prior_lse, const float *grad_lse,
                  const float *const *sources, const float *z, const float *const *grads_in,
                  float *const *back, float *grad_z, float *delta_out) {
#pragma omp parallel num_threads(threads)
    {
        int64_t begin, end;
        const float *rows[reads];
        float weights[n * reads], whole[reads];
        share(tokens, &begin, &end);
        for (int64_t t = begin; t < end; t++) {
            const float *own = z + t * n * reads, *of = lse + t * reads;
            float *products = grad_z + t * n * reads;
            for (int q = 0; q < reads; q++) rows[q] = grads[q] + t * width;
            for (int k = 0; k < n * reads; k += reads)
                for (int q = 0; q < reads; q++)
                    weights[k + q] = act == SOFTMAX   ? exponential(own[k + q] - of[q])
                                     : act == SIGMOID ? sigmoid(own[k + q])
                                                      : own[k + q];
            for (int i = 0; i < n; i++) {
                dots(sources[i] + t * width, rows, reads, width, products + i * reads);
                combine(back[i] + t * width, grads_in[i] ? grads_in[i] + t * width : 0, 1, rows,
                        weights + i * reads, 1, reads, width);
            }
            for (int q = 0; q < reads; q++) {
                whole[q] = delta[t * reads + q];
                if (act == SOFTMAX && !continued[q]) {
                    for (int k = q; k < n * reads; k += reads) whole[q] += products[k] * weights[k];
                    if (priors[q])
                        whole[q] += exponential(prior_lse[t * reads + q] - of[q]) *
                                    dot(rows[q], priors[q] + t * width, width);
                }
                if (grad_lse) whole[q] -= grad_lse[t * reads + q];
                delta_out[t * reads + q] = whole[q];
            }
            for (int k = 0; k < n * reads; k += reads)
                for (int q = 0; q < reads; q++) {
                    float w = weights[k + q];
                    if (act == SOFTMAX) products[k + q] = (products[k + q] - whole[q]) * w;
                    if (act == SIGMOID) products[k + q] *= w * (1 - w);
                }
        }
    }
}

/* Read, partial sum (not written where partial is null: it is output), its logit, inverse RMS, and lse. */
void merge_forward(int threads, int64_t tokens, int64_t width, int act, float eps, const float *prior,
                   const float *prior_lse, const float *partial, const float *output,
                   const float *query, float *mixed, float *total, float *z, float *inverse, float *lse) {
#pragma omp parallel num_threads(threads)
    {
        int64_t begin, end;
        share(tokens, &begin, &end);
        for (int64_t t = begin; t < end; t++) {
            const float *x = output + t * width;
            if (partial) {
                combine(total + t * width, partial + t * width, 1, &x, (const float[]){1}, 1, 1, width);
                x = total + t * width;
            }
            float logit = dot(x, query, width), before = prior_lse[t], weight, rest = 1;
            if (inverse) {
                inverse[t] = 1 / sqrtf(dot(x, x, width) / width + eps);
                logit *= inverse[t];
            }
            if (act == SOFTMAX) {
                float apart = logit - before;
                float small = apart < 0 ? apart : -apart; /* minus the distance: nothing overflows */
                float e = expf(small);
                weight = (apart < 0 ? e : 1) / (1 + e);
                rest = (apart < 0 ? 1 : e) / (1 + e);
                lse[t] = (apart < 0 ? before : logit) + log1pf(e);
            } else {
                weight = sigmoid(logit);
                lse[t] = before;
            }
            z[t] = logit;
            combine(mixed + t * width, prior + t * width, rest, &x, &weight, 1, 1, width);
        }
    }
}

/* Gradient of the partial sum on top of grad_total, delta of the read, gradient of the query; of the read
   (mixed) and the prior one is given. scratch: [threads, 2, width]. */
void merge_backward(int threads, int64_t tokens, int64_t width, int act, const float *grad,
                    const float *grad_total, const float *prior, const float *total, const float *query,
                    const float *z, const float *inverse, const float *lse, const float *mixed, float *back,
                    float *delta, float *grad_query, float *scratch) {
    memset(scratch, 0, 2 * threads * width * sizeof(float));
#pragma omp parallel num_threads(threads)
    {
        int64_t begin, end;
        float *sum = scratch + 2 * omp_get_thread_num() * width, *stage = sum + width;
        share(tokens, &begin, &end);
        for (int64_t t = begin; t < end; t++) {
            const float *g = grad + t * width, *x = total + t * width;
            float product = dot(g, x, width), weight, of_logit;
            if (act == SOFTMAX) {
                weight = expf(z[t] - lse[t]);
                delta[t] = mixed ? dot(g, mixed + t * width, width)
                                 : (1 - weight) * dot(g, prior + t * width, width) + weight * product;
                of_logit = weight * (product - delta[t]);
            } else {
                weight = sigmoid(z[t]);
                delta[t] = 0;
                of_logit = product * weight * (1 - weight);
            }
            float raw = inverse ? of_logit * inverse[t] : of_logit;
            float shrink = inverse ? -of_logit * z[t] * inverse[t] * inverse[t] / width : 0;
            const float *rows[3] = {g, query, x};
            combine(back + t * width, grad_total ? grad_total + t * width : 0, 1, rows,
                    (const float[]){weight, raw, shrink}, 1, 3, width);
            for (int64_t d = 0; d < width; d++) stage[d] += raw * x[d];
            if ((t + 1 - begin) % SUMMED_TOKENS == 0) flush(sum, stage, width);
        }
        flush(sum, stage, width);
    }
    add_up(grad_query, scratch, threads, width);
}
