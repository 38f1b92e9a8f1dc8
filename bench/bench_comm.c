/* Compares comm/ with plain MPI, in one run of two or more ranks:
 *   mpirun --bind-to none -n 2 build/release/bench/bench_comm
 * Exchange: each of ranks 0 and 1 sends and receives one message (channels; MPI_Sendrecv);
 * bandwidth counts one direction. All-reduce over all ranks (FP32 sum; MPI_Allreduce); bus
 * bandwidth is 2 (n - 1) / n * bytes / seconds. The last line is the CPU time of the progress
 * thread while a rank has a receive outstanding and waits for nothing. */
#include "base/memory.h"
#include "bench/measure.h"
#include "comm/comm.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const size_t sizes[] = {8, 256, 4096, 65536, 1 << 20, 16 << 20};
enum { SIZES = sizeof sizes / sizeof *sizes, MAX_BYTES = 16 << 20 };

typedef struct bench {
    tr_world *world;
    tr_device *device;
    tr_stream *stream;
    tr_channel *to, *from;
    tr_group *group;
    char *out, *in;
} bench;

static tr_status exchange_channel(bench *b, size_t bytes) {
    int64_t ticket;
    TR_TRY(tr_channel_send(b->to, b->stream, b->out, bytes, &ticket));
    TR_TRY(tr_channel_take(b->from, b->stream, b->in, bytes));
    TR_TRY(tr_channel_wait_sent(b->to, b->stream, ticket));
    return TR_OK;
}

static tr_status exchange_mpi(bench *b, size_t bytes) {
    int peer = 1 - tr_world_rank(b->world);
    MPI_Sendrecv(b->out, (int)bytes, MPI_BYTE, peer, 0, b->in, (int)bytes, MPI_BYTE, peer, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return TR_OK;
}

static tr_status reduce_group(bench *b, size_t bytes) {
    TR_TRY(tr_group_all_reduce(b->group, b->stream, b->out, (int64_t)(bytes / 4), TR_F32,
                               TR_REDUCE_SUM));
    return TR_OK;
}

static tr_status reduce_mpi(bench *b, size_t bytes) {
    MPI_Allreduce(MPI_IN_PLACE, b->out, (int)(bytes / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return TR_OK;
}

/* Measures the seconds of one call: the median of five runs. */
static tr_status measure(bench *b, tr_status (*call)(bench *, size_t), double *seconds) {
    for (int s = 0; s < SIZES; s++) {
        int64_t times = sizes[s] < 100000 ? 1000 : (int64_t)(200000000 / sizes[s]) + 1;
        double run[5];
        for (int r = 0; r < 5; r++) {
            TR_TRY(call(b, sizes[s]));
            double start = tr_now_s();
            for (int64_t i = 0; i < times / 5 + 1; i++) TR_TRY(call(b, sizes[s]));
            run[r] = (tr_now_s() - start) / (double)(times / 5 + 1);
        }
        seconds[s] = bench_median(run, 5);
    }
    return TR_OK;
}

static void print_table(const char *title, const char *ours, const char *theirs, const double *a,
                        const double *b, double factor) {
    printf("\n%s\n%10s %14s %14s %10s %10s\n", title, "bytes", ours, theirs, "GB/s", "GB/s");
    for (int s = 0; s < SIZES; s++) {
        double bytes = (double)sizes[s] * factor * 1e-9;
        printf("%10zu %11.1f us %11.1f us %10.3f %10.3f\n", sizes[s], a[s] * 1e6, b[s] * 1e6,
               bytes / a[s], bytes / b[s]);
    }
}

static tr_status run_exchange(bench *b) {
    double ours[SIZES], theirs[SIZES];
    int rank = tr_world_rank(b->world);
    if (rank < 2) {
        TR_TRY(tr_channel_open(b->world, b->device, 1 - rank, true, MAX_BYTES, &b->to));
        TR_TRY(tr_channel_open(b->world, b->device, 1 - rank, false, MAX_BYTES, &b->from));
        TR_TRY(measure(b, exchange_channel, ours));
    }
    TR_TRY(tr_world_barrier(b->world));
    double start = tr_now_s(), used = tr_clock_s(CLOCK_PROCESS_CPUTIME_ID);
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    used = (tr_clock_s(CLOCK_PROCESS_CPUTIME_ID) - used) / (tr_now_s() - start);
    /* The progress thread must sleep while MPI is called directly, so no channel is open here. */
    if (rank < 2) {
        tr_channel_close(b->to);
        tr_channel_close(b->from);
    }
    TR_TRY(tr_world_barrier(b->world));
    if (rank < 2) TR_TRY(measure(b, exchange_mpi, theirs));
    TR_TRY(tr_world_barrier(b->world));
    if (rank == 0) {
        print_table("Exchange of ranks 0 and 1", "channels", "MPI_Sendrecv", ours, theirs, 1);
        printf("\nProgress thread with one receive outstanding: %.1f%% of a core\n", used * 100);
    }
    return TR_OK;
}

static tr_status run_reduce(bench *b) {
    double ours[SIZES], theirs[SIZES];
    int n = tr_world_size(b->world), ranks[256];
    for (int i = 0; i < n && i < 256; i++) ranks[i] = i;
    TR_TRY(tr_group_open(b->world, b->device, ranks, n, 0, 4 << 20, &b->group));
    TR_TRY(measure(b, reduce_group, ours));
    TR_TRY(tr_world_barrier(b->world));
    TR_TRY(measure(b, reduce_mpi, theirs));
    TR_TRY(tr_world_barrier(b->world));
    tr_group_close(b->group);
    if (tr_world_rank(b->world) == 0)
        print_table("All-reduce, FP32 sum", "group", "MPI_Allreduce", ours, theirs,
                    2.0 * (n - 1) / n);
    return TR_OK;
}

static tr_status run(bench *b) {
    if (tr_world_size(b->world) < 2 || tr_world_size(b->world) > 256)
        return TR_FAIL(TR_ERR_USAGE, "start this with mpirun -n 2 (to 256)");
    TR_TRY(tr_device_open("ref", &(tr_device_options){.threads = 1}, &b->device));
    b->stream = tr_device_compute(b->device);
    TR_TRY(tr_calloc(1, MAX_BYTES, &b->out));
    TR_TRY(tr_calloc(1, MAX_BYTES, &b->in));
    TR_TRY(run_exchange(b));
    TR_TRY(run_reduce(b));
    free(b->out);
    free(b->in);
    tr_device_close(b->device);
    return TR_OK;
}

int main(void) {
    bench b = {0};
    tr_status status = tr_world_open_mpi(&b.world);
    if (status == TR_OK) status = run(&b);
    if (status != TR_OK) fprintf(stderr, "%s (%s)\n", tr_error_message(), tr_error_trace());
    if (status != TR_OK && b.world) tr_world_abort(b.world, (int)status);
    tr_world_close(b.world);
    return (int)status;
}
