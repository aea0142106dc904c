/*
 * One epoch of a sidecar's batches, and the sum of a column over it.
 *
 *     forebay sidecar --socket /tmp/forebay.sock &
 *     cc -std=c11 -I crates/forebay-c/include crates/forebay-c/examples/epoch.c \
 *         -L target/release -lforebay -Wl,-rpath,"$PWD/target/release" -o epoch
 *     ./epoch /tmp/forebay.sock \
 *         '{"source": {"parquet": {"uri": "'"$PWD"'/examples/data/flights", "columns": ["distance"]}}}' \
 *         '{"batch_size": 256, "epoch_end": "partial"}' distance
 */
#include <forebay.h>
#include <stdio.h>

/* Says what is wrong; the exit status of a program that failed. */
static int fail(forebay_error *error)
{
    fprintf(stderr, "error: %s\n", forebay_error_report(error));
    forebay_error_free(error);
    return 1;
}

/* Adds a column of a batch to the sum, and its rows to theirs. */
static int add(const forebay_batch *batch, const char *name, uint64_t *rows, double *sum)
{
    forebay_error *error;
    forebay_column column;
    uint64_t n;
    size_t columns, index;
    if (forebay_batch_size(batch, &n, &columns, &error) ||
        forebay_batch_find(batch, name, &index, &error) ||
        forebay_batch_column(batch, index, &column, &error))
        return fail(error);
    if (column.kind != FOREBAY_DENSE || column.tensors->ndim != 1) {
        fprintf(stderr, "error: %s does not hold one number a row\n", name);
        return 1;
    }
    const forebay_tensor *tensor = column.tensors;
    if (tensor->dtype.code == 2 && tensor->dtype.bits == 64) {
        const double *values = tensor->data;
        for (uint64_t i = 0; i < n; i++)
            *sum += values[i];
    } else if (tensor->dtype.code == 0 && tensor->dtype.bits == 32) {
        const int32_t *values = tensor->data;
        for (uint64_t i = 0; i < n; i++)
            *sum += values[i];
    } else {
        fprintf(stderr, "error: %s holds neither doubles nor 32-bit integers\n", name);
        return 1;
    }
    *rows += n;
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: epoch SOCKET PLAN OPTIONS COLUMN\n");
        return 2;
    }
    forebay_error *error;
    forebay_loader *loader;
    forebay_epoch *epoch;
    if (forebay_loader_open(argv[1], argv[2], argv[3], NULL, 60.0, &loader, &error) ||
        forebay_epoch_start(loader, 0, 1, &epoch, &error)) {
        forebay_loader_close(loader); /* NULL where it could not be opened */
        return fail(error);
    }
    uint64_t rows = 0;
    double sum = 0;
    forebay_batch *batch;
    forebay_status status;
    int failed = 0;
    while (!failed && (status = forebay_epoch_next(epoch, -1, &batch, &error)) == FOREBAY_OK) {
        failed = add(batch, argv[4], &rows, &sum);
        /* From here on the sidecar may write the next batch where this one was. */
        forebay_batch_release(batch);
    }
    if (!failed && status == FOREBAY_ERROR)
        failed = fail(error);
    forebay_epoch_close(epoch);
    forebay_loader_close(loader);
    if (!failed)
        printf("%llu rows, sum %.17g\n", (unsigned long long)rows, sum);
    return failed;
}
