/* Kernel: turns a batch of rows into sums of products; engines/program.py writes its program.
 *
 * Rows are ordered by group, a part of the batch at a time, and go through all steps in blocks
 * that stay in the fastest cache.  Each block is centred before its products are taken, and
 * blocks are merged as in Chan, Golub & LeVeque (1983).
 *
 * The file includes itself once for each kind of processor; `poolwise_add` picks one. */
#ifndef KIND
#include <math.h>
#include <string.h>

#include "kernel.h"

#define JOIN(a, b) a##_##b
#define NAMED(a, b) JOIN(a, b)
#define MINE(name) NAMED(name, KIND)

static const number WIDTH[] = {8, 4, 1, 2, 4, 8, 1, 2, 4, 8}; /* bytes of each type */

#if defined(__aarch64__)
#define FUSED
#endif
#define KIND any
#include "kernel.c"
#undef KIND
#if defined(__x86_64__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#define FUSED
#define KIND avx2
#include "kernel.c"
#undef KIND
#pragma clang attribute pop
#include <cpuid.h>

static int detect_avx2(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & (1u << 12 | 1u << 27)) != (1u << 12 | 1u << 27))
        return 0; /* no FMA, or registers that the system does not keep */
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & 6) == 6 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & 1u << 5);
}

static int has_avx2(void) { /* a virtual machine answers the instruction slowly */
    static int known = -1;
    if (known < 0) known = detect_avx2();
    return known;
}
#endif

#if defined(_WIN32)
#define PUBLIC __declspec(dllexport)
#else
#define PUBLIC __attribute__((visibility("default")))
#endif

PUBLIC uint32_t poolwise_source(void) { return SOURCE; }

/* Add the rows of a batch to sums, on any processor; 1 after a bad row, else 0. */
PUBLIC int poolwise_add_anywhere(const Program *program, const Input *input, Sums *sums) {
    return add_all_any(program, input, sums);
}

/* Do so with the fastest code for this processor. */
PUBLIC int poolwise_add(const Program *program, const Input *input, Sums *sums) {
#if defined(__x86_64__)
    if (has_avx2()) return add_all_avx2(program, input, sums);
#endif
    return add_all_any(program, input, sums);
}

#else /* the kernel for one kind of processor */

typedef double MINE(v8) __attribute__((vector_size(64), aligned(8)));
typedef int64_t MINE(m8) __attribute__((vector_size(64), aligned(8)));
typedef uint64_t MINE(u8) __attribute__((vector_size(64), aligned(8)));
typedef double MINE(v4) __attribute__((vector_size(32), aligned(8)));
#define v8 MINE(v8)
#define m8 MINE(m8)
#define v4 MINE(v4)
#define LINE(k) ((v8 *)program->line[k])
#define PICK(mask, yes, no) ((v8)(((mask) & (m8)(yes)) | (~(mask) & (m8)(no))))

static inline double MINE(total)(v8 x) {
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

static inline int MINE(any)(m8 x) { return __builtin_reduce_or(x) != 0; }

static inline double MINE(least)(v8 x) {
    double y = x[0];
    for (int k = 1; k < 8; k++) y = x[k] < y ? x[k] : y;
    return y;
}

static inline double MINE(most)(v8 x) {
    double y = x[0];
    for (int k = 1; k < 8; k++) y = x[k] > y ? x[k] : y;
    return y;
}

/* Order the rows of a part by group.  Each group begins at a multiple of eight: its last row is
 * repeated to fill the gap.  Return the number of places; 0 if a row has no group. */
static number MINE(sort)(const Program *program, const int32_t *codes, number first,
                         number rows) {
    const int32_t groups = (int32_t)program->groups;
    int outside = 0;
    for (number j = 0; j < rows; j++) outside |= (codes[j] < 0) | (codes[j] >= groups);
    if (outside) return 0;
    number *ends = program->ends, total = 0;
    memset(ends, 0, program->groups * sizeof(number));
    for (number j = 0; j < rows; j++) ends[codes[j]]++;
    for (number g = 0; g < program->groups; g++) {
        const number size = ends[g];
        program->starts[g] = ends[g] = total;
        total += (size + 7) / 8 * 8;
    }
    for (number j = 0; j < rows; j++) program->order[ends[codes[j]]++] = (int32_t)(first + j);
    for (number g = 0; g < program->groups; g++)
        for (number j = ends[g]; j % 8; j++) program->order[j] = program->order[j - 1];
    return total;
}

#define LOAD(type)                                                                  \
    {                                                                               \
        const type *from = source;                                                  \
        if (adjacent)                                                               \
            for (number j = 0; j < adjacent; j++) out[j] = (double)from[order[0] + j]; \
        for (number j = adjacent; j < rows; j++) out[j] = (double)from[order[j]];   \
        break;                                                                      \
    }

/* Copy a column in an order, of which the first rows may be adjacent. */
static void MINE(load)(double *restrict out, const void *source, number type,
                       const int32_t *restrict order, number rows, number adjacent) {
    switch (type) {
    case 0: LOAD(double)
    case 1: LOAD(float)
    case 2: LOAD(int8_t)
    case 3: LOAD(int16_t)
    case 4: LOAD(int32_t)
    case 5: LOAD(int64_t)
    case 6: LOAD(uint8_t)
    case 7: LOAD(uint16_t)
    case 8: LOAD(uint32_t)
    default: LOAD(uint64_t)
    }
}
#undef LOAD

/* Return 0 if a value is outside of the limits, or NaN.  Add to `zero` where values are 0. */
static inline int MINE(within)(const v8 *x, number size, double low, double top, m8 *zero) {
    m8 good = ~(m8){0}, none = *zero;
    for (number i = 0; i < size; i++) {
        good &= (x[i] >= low) & (x[i] <= top);
        none |= x[i] == 0.0;
    }
    *zero = none;
    return !MINE(any)(~good);
}

static void MINE(mix)(const Program *program, v8 *restrict out, const double *shares, number size) {
    const v8 *first = LINE(1);
    const number lines = program->crossed, apart = program->room / 8;
    for (number i = 0; i < size; i++) {
        v8 sum = shares[0] * first[i];
        for (number k = 1; k < lines; k++) sum += shares[k] * first[k * apart + i];
        out[i] = sum;
    }
}

static void MINE(take_exp)(const Program *program, number size) {
    const v8 *own = LINE(program->own);
    v8 *top = LINE(program->lines);
    for (number i = 0; i < size; i++) top[i] = own[i];
    for (number k = 1; k <= program->crossed; k++) {
        const v8 *x = LINE(k);
        for (number i = 0; i < size; i++) top[i] = PICK(x[i] > top[i], x[i], top[i]);
    }
    for (number k = 0; k < program->logged.size; k++) {
        double *x = (double *)LINE(program->logged.line[k]);
        for (number j = 0; j < 8 * size; j++) x[j] = exp(x[j] - ((double *)top)[j]);
    }
}

/* Check the columns, and compute own probability and mixtures; 0 if a row is bad. */
static int MINE(check)(const Program *program, number stratum, number size, int *zeros) {
    m8 zero = {0}, other = {0}; /* where a crossed logger, or another column, is 0 */
    for (number k = 0; k < program->columns; k++)
        if (!MINE(within)(LINE(k), size, program->lows[k], program->tops[k],
                          k >= 1 && k <= program->crossed ? &zero : &other))
            return 0;
    const number place = program->place[stratum];
    v8 *own = LINE(program->own);
    if (place >= 0) {
        const v8 *prob = LINE(1 + place);
        m8 good = ~(m8){0};
        if (program->propensity)
            for (number i = 0; i < size; i++) {
                v8 gap = prob[i] - own[i];
                good &= (gap <= program->tolerance) & (gap >= -program->tolerance);
            }
        else
            memcpy(own, prob, size * sizeof(v8));
        if (MINE(any)(~good)) return 0;
    }
    if (!program->propensity && !MINE(within)(own, size, program->least, INFINITY, &other))
        return 0;
    if (program->logs) {
        MINE(take_exp)(program, size);
        zero = (m8){0};
        for (number k = 1; k <= program->crossed; k++)
            MINE(within)(LINE(k), size, 0.0, 1.0, &zero);
    }
    *zeros = MINE(any)(zero);
    const double *shares[] = {program->shares, program->own_period};
    const number lines[] = {program->mixture, program->period_mixture};
    for (int k = 0; k < 2; k++) {
        if (lines[k] < 0) continue;
        if (program->crossed)
            MINE(mix)(program, LINE(lines[k]), shares[k] + stratum * program->crossed, size);
        else
            memcpy(LINE(lines[k]), own, size * sizeof(v8));
    }
    return 1;
}

/* Divide by `right`, of which the inverse is known, into another line: that is cheap
 * (Markstein, 1990).  Without fused multiplication, and where the inverse overflows, by
 * division. */
static inline void MINE(divide)(v8 *out, const v8 *left, const v8 *right, const v8 *inverse,
                                number size) {
    m8 bad = ~(m8){0};
#if defined(FUSED)
    bad = (m8){0};
    for (number i = 0; i < size; i++) {
        const v8 near = left[i] * inverse[i];
        const v8 gap = __builtin_elementwise_fma(-near, right[i], left[i]);
        out[i] = __builtin_elementwise_fma(gap, inverse[i], near);
        bad |= out[i] != out[i];
    }
#endif
    (void)inverse;
    if (MINE(any)(bad))
        for (number i = 0; i < size; i++) out[i] = left[i] / right[i];
}

#define EACH(expression) for (number i = 0; i < size; i++) out[i] = (expression); break

/* Compute factors and products, each into its line. */
static void MINE(fill)(const Program *program, number size, int zeros) {
    const v8 none = {0}, one = none + 1.0;
    for (number k = 0; k < (zeros ? program->all_steps : program->steps); k++) {
        const Step *step = program->step + k;
        v8 *out = LINE(step->out);
        const v8 *left = LINE(step->left), *right = LINE(step->right);
        const v8 *inverse = LINE(step->inverse);
        const double bound = step->bound, zero = step->zero;
        switch (step->op) {
        case DIVIDE: EACH(left[i] / right[i]);
        case INVERT: EACH(1.0 / right[i]);
        case QUOTIENT: MINE(divide)(out, left, right, inverse, size); break;
        case MULTIPLY: EACH(left[i] * right[i]);
        case SUBTRACT: EACH(left[i] - right[i]);
        case LEAST:
            memcpy(out, LINE(1), size * sizeof(v8));
            for (number p = 2; p <= program->crossed; p++) {
                const v8 *x = LINE(p);
                for (number i = 0; i < size; i++) out[i] = PICK(x[i] < out[i], x[i], out[i]);
            }
            break;
        case CLIP: EACH(PICK(left[i] > bound, none + bound, left[i]));
        case SWITCH: EACH(PICK(left[i] > bound, none, left[i]));
        case OPTIMISTIC: EACH(left[i] * (bound / (left[i] * left[i] + bound)));
        case GAIN:
        case LOSS:
            for (number i = 0; i < size; i++) {
                v8 gain = step->op == GAIN ? right[i] - zero : zero - right[i];
                v8 scaled = left[i] * PICK(gain > 0.0, gain, none) / bound;
                for (int j = 0; j < 8; j++) out[i][j] = log1p(scaled[j]);
            }
            break;
        case IS_ZERO: EACH(PICK(left[i] == 0.0, one, none));
        case INVERSE: EACH(PICK(right[i] == 0.0, none + bound, left[i] / right[i]));
        case MIX: MINE(mix)(program, out, program->periods + step->left * program->crossed, size);
        }
    }
}
#undef EACH

/* Add the products of a tile to sums: `sums[place] += left . right`. */
static inline void MINE(multiply)(const Program *program, const Tile *tile, number size,
                                  double *sums) {
    const v4 *a = (v4 *)LINE(tile->left[0]), *b = (v4 *)LINE(tile->left[1]),
             *c = (v4 *)LINE(tile->left[2]), *d = (v4 *)LINE(tile->left[3]),
             *x = (v4 *)LINE(tile->right[0]), *y = (v4 *)LINE(tile->right[1]);
    v4 sum[TILE_LEFT * TILE_RIGHT] = {0};
    for (number i = 0; i < 2 * size; i++) {
        sum[0] += a[i] * x[i], sum[1] += a[i] * y[i];
        sum[2] += b[i] * x[i], sum[3] += b[i] * y[i];
        sum[4] += c[i] * x[i], sum[5] += c[i] * y[i];
        sum[6] += d[i] * x[i], sum[7] += d[i] * y[i];
    }
    for (int k = 0; k < TILE_LEFT * TILE_RIGHT; k++)
        if (tile->place[k] >= 0)
            sums[tile->place[k]] += (sum[k][0] + sum[k][2]) + (sum[k][1] + sum[k][3]);
}

static void MINE(add_extremes)(const Program *program, Sums *sums, number group, number size) {
    for (number k = 0; k < program->extremes.size; k++) {
        const v8 *x = LINE(program->extremes.line[k]);
        v8 low = x[0], high = x[0];
        for (number i = 1; i < size; i++) {
            low = PICK(x[i] < low, x[i], low);
            high = PICK(x[i] > high, x[i], high);
        }
        const number at = group * program->extremes.size + k;
        sums->lowest[at] = fmin(sums->lowest[at], MINE(least)(low));
        sums->largest[at] = fmax(sums->largest[at], MINE(most)(high));
    }
}

/* List values that may be among the largest. */
static void MINE(add_tails)(const Program *program, const Input *input, number group,
                            number rows) {
    for (number k = 0; k < program->tails.size; k++) {
        const number stratum = group % program->strata;
        const double floor = program->floors[k * program->strata + stratum];
        const v8 *x = LINE(program->tails.line[k]);
        const number first = k * input->tail_room;
        number *count = input->tail_rows + k;
        for (number i = 0; 8 * i < rows; i += 4) { /* lines have room for all 32 rows */
            if (!MINE(any)((x[i] >= floor) | (x[i + 1] >= floor) | (x[i + 2] >= floor) |
                           (x[i + 3] >= floor)))
                continue;
            for (number j = 8 * i; j < rows && j < 8 * i + 32; j++)
                if (((double *)x)[j] >= floor) {
                    input->tail_strata[first + *count] = (int32_t)stratum;
                    input->tails[first + (*count)++] = ((double *)x)[j];
                }
        }
    }
}

static void MINE(count_bins)(const Program *program, Sums *sums, number stratum, number rows) {
    const m8 none = {0}, one = none + 1, last = none + (program->bins - 1);
    for (number k = 0; k < program->histograms.size; k++) {
        const v8 *x = LINE(program->histograms.line[k]);
        number *counts = sums->histograms + (k * program->strata + stratum) * program->bins;
        for (number i = 0; 8 * i < rows; i++) {
            m8 place = (m8)((MINE(u8))x[i] >> program->bin_shift) - (program->first_bin - 1);
            place = __builtin_elementwise_min(__builtin_elementwise_max(place, one), last);
            place &= x[i] != 0.0;
            const number left = rows - 8 * i;
            for (number j = 0; j < (left < 8 ? left : 8); j++) counts[place[j]]++;
        }
    }
}

/* Deal the rows of a group to slices in turn, from where its last block ended. */
static void MINE(deal)(const Program *program, Sums *sums, number group, number rows) {
    for (number k = 0; k < program->sliced.size; k++) {
        const double *restrict x = (double *)LINE(program->sliced.line[k]);
        double *slices = sums->slices + (group * program->sliced.size + k) * program->slices;
        number slice = sums->count[group] % program->slices;
        for (number done = 0; done < rows; slice = 0) {
            const number left = rows - done, room = program->slices - slice;
            const number next = left < room ? left : room;
            double *restrict out = slices + slice;
            for (number j = 0; j < next; j++) out[j] += x[done + j];
            done += next;
        }
    }
}

static void MINE(add_powers)(const Program *program, Sums *sums, number group, number size) {
    for (number k = 0; k < program->powered.size; k++) {
        const v8 *x = LINE(program->powered.line[k]);
        v8 first = {0}, second = {0}, third = {0}, fourth = {0}, largest = {0};
        m8 others = {0};
        for (number i = 0; i < size; i++) {
            v8 value = PICK(x[i] < 0.0, -x[i], x[i]), square = value * value;
            others += x[i] != 0.0; /* minus the rows */
            first += value, second += square;
            third += value * square, fourth += square * square;
            largest = PICK(value > largest, value, largest);
        }
        double *powers = sums->powers + (group * program->powered.size + k) * POWERS;
        for (int j = 0; j < 8; j++) powers[0] -= (double)others[j];
        powers[1] += MINE(total)(first), powers[2] += MINE(total)(second);
        powers[3] += MINE(total)(third), powers[4] += MINE(total)(fourth);
        powers[5] = fmax(powers[5], MINE(most)(largest));
    }
}

/* Zero a line from the last row to the next multiple of eight. */
static inline void MINE(clear)(const Program *program, number line, number rows) {
    for (number j = rows; j % 8; j++) ((double *)LINE(line))[j] = 0.0;
}

/* Add up a line, in four sums that do not wait for each other. */
static inline double MINE(sum)(const v8 *x, number size) {
    v8 a = {0}, b = {0}, c = {0}, d = {0};
    number i = 0;
    for (; i + 4 <= size; i += 4) a += x[i], b += x[i + 1], c += x[i + 2], d += x[i + 3];
    for (; i < size; i++) a += x[i];
    return MINE(total)((a + b) + (c + d));
}

/* Subtract a number from a line; return the sum of what is left. */
static inline double MINE(subtract)(v8 *x, number rows, double less) {
    const number size = (rows + 7) / 8;
    v8 a = {0}, b = {0};
    number i = 0;
    for (; i + 2 < size; i += 2) {
        x[i] -= less, x[i + 1] -= less;
        a += x[i], b += x[i + 1];
    }
    for (; i < size; i++) {
        x[i] -= less;
        for (number j = rows; i == size - 1 && j % 8; j++) ((double *)x)[j] = 0.0;
        a += x[i];
    }
    return MINE(total)(a + b);
}

/* Centre a line; return its mean, and the mean that rounding left. */
static double MINE(centre)(v8 *x, number rows, double *rest) {
    const double alike = 1e-13, rounded = 4 * 2.220446049250313e-16;
    const number size = (rows + 7) / 8;
    double mean = MINE(sum)(x, size) / (double)rows;
    const double *value = (double *)x, first = value[0];
    if (fabs(mean) < INFINITY && fabs(first - mean) <= alike * fabs(mean)) {
        double low = first, high = first;
        for (number j = 1; j < rows; j++) {
            low = value[j] < low ? value[j] : low;
            high = value[j] > high ? value[j] : high;
        }
        if (high - low <= rounded * fabs(mean)) { /* they differ by rounding only */
            memset(x, 0, size * sizeof(v8));
            *rest = 0.0;
            return first;
        }
    }
    *rest = MINE(subtract)(x, rows, mean) / (double)rows;
    return mean;
}

/* Add means and centred products of a block to those of its group.  The first block of a group
 * is centred by its own means, later ones by those of the rows before, whose distance from
 * the block's means is taken out of the products. */
static void MINE(add_centred)(const Program *program, Sums *sums, number group, number rows) {
    const number singles = program->singles.size, size = (rows + 7) / 8;
    double *means = sums->means + group * singles, *rests = sums->rest + group * singles;
    double *products = sums->products + group * program->pairs;
    double *moved = program->moved, *off = program->moved + singles;
    const double before = (double)sums->count[group], number_of = (double)rows;
    const double part = number_of / (before + number_of), scale = sqrt(before * part);
    for (number k = 0; k < singles; k++) {
        v8 *x = LINE(program->singles.line[k]);
        if (before == 0.0) {
            means[k] = MINE(centre)(x, rows, rests + k);
            continue;
        }
        const double distance = MINE(subtract)(x, rows, means[k]) / number_of;
        const double gap = distance - rests[k], step = gap * part;
        const double next = means[k] + step;
        rests[k] += (means[k] - next) + step;
        means[k] = next;
        moved[k] = gap * scale, off[k] = distance * sqrt(number_of);
    }
    for (number k = 0; k < program->tiles; k++)
        MINE(multiply)(program, program->tile + k, size, products);
    if (before > 0.0)
        for (number k = 0; k < program->pairs; k++) {
            const number a = program->left[k], b = program->right[k];
            products[k] += moved[a] * moved[b] - off[a] * off[b];
        }
}

static void MINE(copy)(const Program *program, const Input *input, const Sums *sums, number group,
                       number rows) {
    const number start = input->starts[group] + sums->count[group];
    for (number k = 0; k < program->singles.size; k++)
        memcpy(input->values + k * input->rows + start, LINE(program->singles.line[k]),
               rows * sizeof(double));
}

/* Ask for rows of the next part, which the processor fetches while a block is added. */
static void MINE(fetch)(const Program *program, const Input *input, number first,
                        number rows) {
    const number left = input->rows - first, end = first + (rows < left ? rows : left);
    for (number k = 0; k < program->columns; k++) {
        const number width = WIDTH[input->types[k]];
        const char *column = input->columns[k];
        for (number at = first * width; at < end * width; at += 64)
            __builtin_prefetch(column + at, 0, 2);
    }
}

/* Add a block: rows of one group, from a place in the order of the part on. */
static int MINE(add)(const Program *program, const Input *input, Sums *sums, number group,
                     number from, number rows) {
    const number stratum = group % program->strata, size = (rows + 7) / 8;
    int zeros;
    for (number k = 0; k < program->columns; k++)
        program->line[k] = program->ordered + k * program->room + from;
    if (!MINE(check)(program, stratum, size, &zeros)) return 0;
    MINE(fill)(program, size, zeros);
    if (input->values) MINE(copy)(program, input, sums, group, rows);
    MINE(add_extremes)(program, sums, group, size);
    MINE(add_tails)(program, input, group, rows);
    MINE(count_bins)(program, sums, stratum, rows);
    MINE(deal)(program, sums, group, rows);
    for (number k = 0; k < program->lines; k++) MINE(clear)(program, k, rows);
    MINE(add_powers)(program, sums, group, size);
    double *plain = sums->plain + group * program->plain;
    for (number k = 0; k < (zeros ? program->all_plain_tiles : program->plain_tiles); k++)
        MINE(multiply)(program, program->plain_tile + k, size, plain);
    MINE(add_centred)(program, sums, group, rows);
    number *spans = sums->spans + group;
    if (!sums->count[group]) spans[0] = input->before + program->order[from];
    spans[program->groups] = input->before + program->order[from + rows - 1];
    sums->count[group] += rows;
    return 1;
}

/* Add the rows of a group in a part, in blocks of about the same size. */
static int MINE(add_group)(const Program *program, const Input *input, Sums *sums,
                           number group, number next) {
    number from = program->starts[group];
    const number end = program->ends[group], block = program->block;
    for (number blocks = (end - from + block - 1) / block; blocks > 0; blocks--) {
        const number equal = ((end - from + blocks - 1) / blocks + 7) / 8 * 8;
        const number rows = equal < end - from ? equal : end - from;
        MINE(fetch)(program, input, next + from, rows);
        if (!MINE(add)(program, input, sums, group, from, rows)) return 0;
        from += rows;
    }
    return 1;
}

static int MINE(add_all)(const Program *program, const Input *input, Sums *sums) {
    for (number first = 0; first < input->rows; first += program->part) {
        const number left = input->rows - first;
        const number part = left < program->part ? left : program->part;
        const number rows = MINE(sort)(program, input->codes + first, first, part);
        if (!rows) return 1;
        const int32_t group_of_first = input->codes[first];
        const number alike = program->ends[group_of_first] - program->starts[group_of_first];
        for (number k = 0; k < program->columns; k++)
            MINE(load)(program->ordered + k * program->room, input->columns[k],
                       input->types[k], program->order, rows, alike == part ? part : 0);
        for (number group = 0; group < program->groups; group++)
            if (!MINE(add_group)(program, input, sums, group, first + part)) return 1;
    }
    return 0;
}
#undef v8
#undef m8
#undef v4
#undef LINE
#undef PICK
#endif
