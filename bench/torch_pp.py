#!/usr/bin/env python3
"""PyTorch's pipeline runtime on stages that sleep: bench/sleep.sh compares bench_sleep with it.

One process a rank over gloo (torchrun). Forward, input gradient and weight gradient of a stage sleep for --ms from their
call on: what the runtime does between them counts. Prints a line for each schedule: its name, stages a rank, median
milliseconds of a step. The orders of schedules with several stages a rank go to --orders as CSV.
PyTorch: python3 -m venv DIR && DIR/bin/pip install torch
"""
import argparse
import ctypes
import os
import re
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules

SCHEDULES = {  # stages a rank, in a V or in a loop
    "GPipe": (1, False),
    "1F1B": (1, False),
    "Interleaved1F1B": (2, False),
    "LoopedBFS": (2, False),
    "InterleavedZeroBubble": (2, False),
    "ZBVZeroBubble": (2, True),
    "DualPipeV": (2, True),
}
COMPUTE = re.compile(r"\d+[FIWB]\d+|\(.*\)OVERLAP_F_B")  # the actions of an order, without transfers and reductions

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--ms", type=float, default=10)
parser.add_argument("--micro-batches", type=int, default=8)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--orders", help="an existing folder")
args = parser.parse_args()
PR_SET_TIMERSLACK = 29
ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0)  # sleeps then end within a microsecond of their time


def rest():
    time.sleep(args.ms * 1e-3)


class Activation(torch.autograd.Function):
    """Its forward is F of the stage, its backward I."""

    @staticmethod
    def forward(ctx, x):
        rest()
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        rest()
        return gradient.clone()


class Weight(torch.autograd.Function):
    """Its backward is W, a separate path that a pass for input gradients does not take."""

    @staticmethod
    def forward(ctx, w):
        return w.clone()

    @staticmethod
    def backward(ctx, gradient):
        rest()
        return gradient


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return Activation.apply(x) + Weight.apply(self.w)


def stages_of(rank, ranks, chunks, is_v):
    return [rank, 2 * ranks - 1 - rank] if is_v else [rank + k * ranks for k in range(chunks)]


def measure(name, chunks, is_v):
    ranks, rank = dist.get_world_size(), dist.get_rank()
    count, mine = ranks * chunks, stages_of(rank, ranks, chunks, is_v)
    stages = [PipelineStage(Stage(), k, count, torch.device("cpu")) for k in mine]
    loss = lambda output, target: ((output - target) ** 2).mean()
    kind = schedules.get_schedule_class(name)
    schedule = kind(stages if chunks > 1 else stages[0], args.micro_batches, loss_fn=loss)
    x, target = (torch.randn(args.micro_batches, 1024) for _ in range(2))
    seconds = []
    for _ in range(args.steps + 1):
        dist.barrier()
        start = time.monotonic()
        inputs = (x,) if 0 in mine else ()
        schedule.step(*inputs, **({"target": target} if count - 1 in mine else {}))
        dist.barrier()
        seconds.append(time.monotonic() - start)
    if rank:
        return
    if args.orders and chunks > 1:
        with open(os.path.join(args.orders, name + ".csv"), "w") as file:
            for r in range(ranks):
                cells = [str(a) for a in schedule.pipeline_order[r] if a is not None]
                file.write(",".join(a for a in cells if COMPUTE.fullmatch(a)) + "\n")
    print(f"{name} {chunks} {statistics.median(seconds[1:]) * 1e3:.1f}", flush=True)


torch.set_num_threads(1)
dist.init_process_group("gloo")
for name, (chunks, is_v) in SCHEDULES.items():
    measure(name, chunks, is_v)
dist.barrier()
dist.destroy_process_group()
