/*
 * Forebay's C interface: batches that a sidecar serves, mapped by a trainer in any language.
 *
 *     forebay sidecar --socket /run/forebay.sock        the process that reads and decodes
 *     cc trainer.c -lforebay                            the program that trains
 *
 * docs/c.md has an example. What is said here holds for all functions:
 *
 * Handles   A loader, an epoch and a batch are handles to what the library owns. Each is given back
 *           with its own function, once, in any order: what one needs of another it keeps by itself.
 *           NULL is nothing to give back. A handle must not be used any more after that.
 * Errors    A function that can fail returns a forebay_status, and takes a `forebay_error **` as its
 *           last argument. It is written in every call: with an error if the status is FOREBAY_ERROR,
 *           which the caller frees, and with NULL otherwise. It may be NULL for a caller who does not
 *           want to know. A handle or an argument that is NULL and may not be is an error of the kind
 *           "invalid_input". Results are valid with FOREBAY_OK only; handles and texts that a function
 *           gives are NULL otherwise. A defect in the library is an error of the kind "internal":
 *           nothing unwinds into the caller.
 * Threads   Any thread may call any function, also several threads on the same handle at the same
 *           time, except that whoever gives a handle or an error back must be the last to use it. The
 *           library starts no threads, and handles no signals.
 * fork      A forked child has no part in its parent's epochs: forebay_epoch_next is an error there. A
 *           loader makes a connection of its own in the child, if no other thread of the parent was in
 *           a call at the time of the fork. Batches may be read and released; their memory goes back
 *           to the sidecar when the parent releases them.
 * Texts     are UTF-8 and end with a NUL. A NUL within a name of a column or an error, which C would
 *           take for its end, is replaced by U+FFFD.
 */
#ifndef FOREBAY_H
#define FOREBAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. A program is compatible with a library of the same version. */
#define FOREBAY_ABI_VERSION 1

/* FOREBAY_ABI_VERSION of the library that is loaded. */
uint32_t forebay_abi_version(void);

/* What a function that can fail returns. */
typedef enum forebay_status {
    FOREBAY_OK = 0,      /* done */
    FOREBAY_END = 1,     /* the epoch is over; of forebay_epoch_next alone */
    FOREBAY_TIMEOUT = 2, /* nothing came in time; of forebay_epoch_next alone */
    FOREBAY_ERROR = 3    /* the error says what is wrong */
} forebay_status;

/* A loader at a sidecar: a connection, and a position in the dataset's epochs. */
typedef struct forebay_loader forebay_loader;

/* One iteration of a loader. */
typedef struct forebay_epoch forebay_epoch;

/* One batch, in memory that the sidecar shares. */
typedef struct forebay_batch forebay_batch;

/* What is wrong. It never changes, and may be read by several threads. */
typedef struct forebay_error forebay_error;

/* ---------------------------------------------------------------- errors */

/*
 * The kind, a word that does not change between versions and that a program may branch on:
 * "invalid_input", "not_found", "corrupt" and so on, as docs/errors.md lists them. This text and those
 * of the next functions stay until the error is freed; each is NULL if `error` is.
 */
const char *forebay_error_kind(const forebay_error *error);

/* What happened and where, on one line. */
const char *forebay_error_message(const forebay_error *error);

/* What to do; NULL where there is nothing to say. */
const char *forebay_error_hint(const forebay_error *error);

/* The whole story for a person, on a few lines: message, causes, hint. */
const char *forebay_error_report(const forebay_error *error);

/* Frees an error and its texts. */
void forebay_error_free(forebay_error *error);

/* Frees a text that a function handed out through a `char **`. */
void forebay_string_free(char *text);

/* ---------------------------------------------------------------- loaders */

/* How a loader is. */
typedef struct forebay_facts {
    uint64_t steps;      /* batches of an epoch, for this process */
    uint64_t rows;       /* rows of an epoch, for all processes together */
    uint64_t rank;       /* this process, from 0 */
    uint64_t world_size; /* number of processes */
} forebay_facts;

/*
 * Connects to a sidecar, and opens a loader there.
 *
 * socket    path of the socket that `forebay sidecar --socket` was given
 * plan      what is read and done, in JSON: {"source": ..., "steps": [...]} with the keys of docs/jobs.md.
 *           Paths must be absolute: the sidecar has another working directory
 * options   options of the loader, in JSON, with the keys of docs/loader.md: {"batch_size": 256}. Without
 *           "rank" and "world_size" this is the only process. "format" may be "arrow" for columns that
 *           are all FOREBAY_ARROW; the other formats make no difference. "pin_memory" has no effect
 * snapshot  the id of the snapshot of the files that must be what the sidecar sees, or NULL
 * reconnect_timeout_seconds
 *           how long a sidecar that is gone later is waited for, 0 or more, INFINITY for ever. If it is
 *           back within that time, epochs go on at the next sample
 * loader    the loader, which forebay_loader_close closes
 *
 * Waits until the sidecar has looked at the files; where a filter decides which rows take part, until it
 * has read the filter's columns.
 */
forebay_status forebay_loader_open(const char *socket, const char *plan, const char *options,
                                   const char *snapshot, double reconnect_timeout_seconds,
                                   forebay_loader **loader, forebay_error **error);

/* Closes a loader. Its epochs go on, and its batches stay. */
void forebay_loader_close(forebay_loader *loader);

/* How the loader is. */
forebay_status forebay_loader_facts(const forebay_loader *loader, forebay_facts *facts,
                                    forebay_error **error);

/*
 * The position after the last batch that was taken, as JSON for a checkpoint: any later loader over the
 * same data, on any number of processes, goes on from there with forebay_loader_load_state. Of several
 * epochs the one that was started last moves the position. The caller frees the text with
 * forebay_string_free.
 */
forebay_status forebay_loader_state(const forebay_loader *loader, char **state,
                                    forebay_error **error);

/* The next epoch that is started goes on from a position. Epochs that run move no position any more. */
forebay_status forebay_loader_load_state(const forebay_loader *loader, const char *state,
                                         forebay_error **error);

/*
 * The next epoch that is started is that number, from its beginning; if the position is in the midst of
 * that epoch already, it stays. Needed only to choose: an epoch that was taken to its end is followed by
 * the next number, which has another order.
 */
forebay_status forebay_loader_set_epoch(const forebay_loader *loader, uint64_t epoch,
                                        forebay_error **error);

/* ---------------------------------------------------------------- epochs */

/*
 * Starts an epoch, at the loader's position: of what is left of its steps number `first`, and every
 * `stride`-th from there. 0 and 1 are all; worker w of n that share an epoch takes w and n.
 *
 * The sidecar works ahead from here on. forebay_epoch_close closes the epoch.
 */
forebay_status forebay_epoch_start(const forebay_loader *loader, uint64_t first, uint64_t stride,
                                   forebay_epoch **epoch, forebay_error **error);

/*
 * The next batch, which forebay_batch_release releases.
 *
 * timeout_ms  how long it is waited for; negative: until it is there. The clock is looked at about ten
 *             times a second. Where several threads take batches of one epoch, they take turns, and
 *             waiting for the turn does not count
 *
 * FOREBAY_OK       the batch
 * FOREBAY_END      the epoch is over, now and in every later call
 * FOREBAY_TIMEOUT  nothing yet; nothing is lost, and the next call goes on waiting
 * FOREBAY_ERROR    the epoch is over: what comes later is FOREBAY_END
 */
forebay_status forebay_epoch_next(const forebay_epoch *epoch, int64_t timeout_ms,
                                  forebay_batch **batch, forebay_error **error);

/* Ends an epoch, and the sidecar's work for it. Batches of it stay. */
void forebay_epoch_close(forebay_epoch *epoch);

/* ---------------------------------------------------------------- batches */

/* The type of an element: DLPack's DLDataType. */
typedef struct forebay_dtype {
    uint8_t code;   /* 0 signed integer, 1 unsigned integer, 2 float, 4 bfloat, 6 bool */
    uint8_t bits;   /* of one element; a bool has 8 */
    uint16_t lanes; /* 1 */
} forebay_dtype;

/*
 * A tensor on the CPU: contiguous, row-major, aligned to its elements. The memory is this process's until
 * the batch is released: it may be written, which nobody else sees.
 */
typedef struct forebay_tensor {
    void *data;           /* the first element; not to be looked at where nbytes is 0 */
    forebay_dtype dtype;  /* of each element */
    int32_t ndim;         /* number of axes */
    const int64_t *shape; /* their lengths */
    uint64_t nbytes;      /* of all elements */
} forebay_tensor;

/* What the values of a column are. */
typedef enum forebay_kind {
    FOREBAY_DENSE = 0,  /* tensors[0], whose first axis is the batch's rows */
    FOREBAY_EACH = 1,   /* tensors[i] is row i: pictures of different sizes */
    FOREBAY_RAGGED = 2, /* lists: row i is tensors[0] from tensors[1][i] to tensors[1][i + 1], int64 */
    FOREBAY_ARROW = 3   /* no tensors: texts, bytes, and what else only forebay_batch_arrow gives */
} forebay_kind;

/* A column. What the struct points to stays until the batch is released. */
typedef struct forebay_column {
    const char *name;
    forebay_kind kind;
    size_t tensor_count;           /* 1, the number of rows, 2 or 0: see the kinds */
    const forebay_tensor *tensors; /* not to be looked at where there are none */
} forebay_column;

/* The number of rows and of columns. Every batch of a loader has the same columns. */
forebay_status forebay_batch_size(const forebay_batch *batch, uint64_t *rows, size_t *columns,
                                  forebay_error **error);

/* The index of the column of that name. "not_found" where there is none, with the nearest one as hint. */
forebay_status forebay_batch_find(const forebay_batch *batch, const char *name, size_t *index,
                                  forebay_error **error);

/* The column of that index, from 0. Columns have the order that they have in the plan. */
forebay_status forebay_batch_column(const forebay_batch *batch, size_t index,
                                    forebay_column *column, forebay_error **error);

/* Arrow's C data interface, as arrow.apache.org/docs/format/CDataInterface.html has it. */
#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE

#define ARROW_FLAG_DICTIONARY_ORDERED 1
#define ARROW_FLAG_NULLABLE 2
#define ARROW_FLAG_MAP_KEYS_SORTED 4

struct ArrowSchema {
    const char *format;
    const char *name;
    const char *metadata;
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

#endif /* ARROW_C_DATA_INTERFACE */

/*
 * The column of that index as an Arrow array, with its name and type. Dense columns have one too: numbers
 * for one axis, fixed-size lists (arrow.fixed_shape_tensor) otherwise; of booleans it is a copy, as Arrow
 * has them in bits. FOREBAY_EACH and FOREBAY_RAGGED have none: an error of the kind "unsupported".
 *
 * Both structs are the caller's, who calls their `release`, from any thread. The array keeps the memory
 * that it needs: it may outlive the batch.
 */
forebay_status forebay_batch_arrow(const forebay_batch *batch, size_t index,
                                   struct ArrowArray *array, struct ArrowSchema *schema,
                                   forebay_error **error);

/* Releases a batch: its memory goes back to the sidecar, which writes another batch into it. */
void forebay_batch_release(forebay_batch *batch);

#ifdef __cplusplus
}
#endif

#endif /* FOREBAY_H */
