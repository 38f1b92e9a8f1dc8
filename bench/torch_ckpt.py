#!/usr/bin/env python3
"""PyTorch's distributed checkpoints (DCP) of the state that bench_ckpt saves: bench/ckpt.sh runs both in turn.

One process a rank over gloo (torchrun); 60 FP32 matrices, of which each rank holds as many rows. A save ends when all files are on
the disk, a load begins without their pages in memory. Prints a line for each round. DCP needs NumPy.
PyTorch: python3 -m venv DIR && DIR/bin/pip install torch numpy
"""
import argparse
import os
import shutil
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

MATRICES, ROWS = 60, 2048  # rows of a rank
PAUSE = 10  # seconds before a load: a virtual disk goes on writing for some time


def durable(folder):
    """Waits until the files of a folder are on the disk, and drops their pages."""
    for entry in os.scandir(folder):
        fd = os.open(entry.path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("gib", type=float)
    parser.add_argument("rounds", type=int)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    cols = int(args.gib * 2**30 / 4 / MATRICES / ROWS / ranks)
    state = {f"t{i}": DTensor.from_local(torch.randn(ROWS, cols), mesh, [Shard(0)]) for i in range(MATRICES)}
    size = 4e-9 * MATRICES * ROWS * cols * ranks
    folder = os.path.join(args.folder, "dcp")
    for _ in range(args.rounds):
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
        dist.barrier()
        begin = time.perf_counter()
        dcp.save(state, checkpoint_id=folder)
        if rank == 0:
            durable(folder)
        dist.barrier()
        saved = time.perf_counter() - begin
        time.sleep(PAUSE)
        dist.barrier()
        begin = time.perf_counter()
        dcp.load(state, checkpoint_id=folder)
        dist.barrier()
        loaded = time.perf_counter() - begin
        if rank == 0:
            print(f"PyTorch {torch.__version__} {size:.2f} GB, {ranks} ranks: save {size / saved:.2f} GB/s, "
                  f"cold load {size / loaded:.2f} GB/s", flush=True)
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
