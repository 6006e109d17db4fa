/* What engines/compiled.py passes to the kernel.  Fields keep this order there.
 *
 * A block is a matrix of a few hundred rows of the log: its columns, then the probability of
 * the row's own logger, the mixtures, and one line for each factor and product.  "Line" is a
 * line of this matrix, by its number. */
#include <stdint.h>

typedef int64_t number;

enum { TILE_LEFT = 4, TILE_RIGHT = 2, POWERS = 6 };
enum { DIVIDE, INVERT, QUOTIENT, MULTIPLY, SUBTRACT, LEAST, CLIP, SWITCH, OPTIMISTIC, GAIN, LOSS,
       IS_ZERO, INVERSE, MIX };

typedef struct {
    number op, out, left, right, inverse; /* lines */
    double bound, zero;
} Step;

typedef struct {
    number left[TILE_LEFT], right[TILE_RIGHT]; /* lines */
    number place[TILE_LEFT * TILE_RIGHT];      /* of each product among the sums, or -1 */
} Tile;

typedef struct {
    number size;
    const number *line;
} Lines;

typedef struct {
    number columns, crossed; /* the crossed loggers have the columns 1, 2, ... */
    const double *lows, *tops;
    number own, mixture, period_mixture; /* lines; -1 if there is none to compute */
    number propensity, logs;
    Lines logged; /* lines of logarithms */
    double tolerance, least; /* of the row's own probability */
    number groups, strata;
    const number *place;        /* of each stratum's logger among the crossed ones, or -1 */
    const double *shares;       /* of the crossed loggers in the mixture, for each stratum */
    const double *own_period;   /* likewise in the mixture of the stratum's period */
    const double *periods;      /* likewise in each period */
    number steps, all_steps;    /* the last ones are only for rows with a probability of 0 */
    const Step *step;
    Lines singles, extremes, tails, histograms, sliced, powered;
    number tiles, plain_tiles, all_plain_tiles;
    const Tile *tile, *plain_tile;
    number pairs, plain;        /* sums of centred and of plain products */
    const number *left, *right; /* singles of each centred product */
    number slices, bins, first_bin, bin_shift;
    const double *floors;       /* of each tail and stratum */
    number lines, block;     /* lines of the matrix, and their largest number of rows */
    number part, room;       /* rows that are ordered at once, and room for them in a column */
    double **line;           /* where the rows of a block begin in each line */
    double *ordered, *moved; /* columns of a part; room for two numbers of each single */
    int32_t *order;          /* rows of a part, ordered by group */
    number *starts, *ends;   /* of each group in a part */
} Program;

typedef struct {
    number rows, before; /* rows of the batch, and of earlier ones */
    number tail_room;    /* for values of a tail */
    const void *const *columns;
    const number *types; /* places in the list of types of compiled.py */
    const int32_t *codes;
    double *tails;        /* large values of each tail */
    int32_t *tail_strata; /* their strata */
    number *tail_rows;    /* their number, for each tail; the batch adds to it */
    double *values;       /* of each single, ordered by group; or null */
    const number *starts; /* first of these of each group */
} Input;

/* Sums of each group, to which rows are added: the arrays of engines/sums.py. */
typedef struct {
    number *count, *spans;
    double *means, *rest, *products, *plain, *lowest, *largest;
    number *histograms;
    double *slices, *powers;
} Sums;
