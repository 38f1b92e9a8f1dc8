#!/usr/bin/env python3
"""Writes learning rates of PyTorch's and transformers' schedulers, for unit.test_lr.

    pip install torch transformers
    python3 tests/golden/make_lr.py [--out FILE]

Two lines a case: Trireme's keys, with "; " between them, and the rates of steps 1, 2, .... A rate of step s is that of the
scheduler after s calls of step(), so the first step of a warm-up has 1/warmup of the highest rate. CyclicLR begins at the
bottom and is moved by half a cycle. Schedules with restarts are those of their parts, one after the other.
"""
import argparse
import pathlib

import torch
import transformers

HERE = pathlib.Path(__file__).parent
LR = 3e-3


def follow(make, steps, lr=LR):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = make(optimizer)
    rates = []
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
        rates.append(scheduler.get_last_lr()[0])
    return rates


def cases():
    t, sched = transformers, torch.optim.lr_scheduler
    for warmup, horizon in [(0, 40), (7, 60)]:
        keys = f"optim.warmup={warmup}; optim.horizon={horizon}"
        yield f"optim.schedule=constant; {keys}", follow(
            lambda o: t.get_constant_schedule_with_warmup(o, warmup), horizon + 5)
        yield f"optim.schedule=linear; {keys}", follow(
            lambda o: t.get_linear_schedule_with_warmup(o, warmup, horizon), horizon + 5)
        yield f"optim.schedule=cosine; {keys}", follow(
            lambda o: t.get_cosine_schedule_with_warmup(o, warmup, horizon), horizon)
        yield f"optim.schedule=cosine; optim.min_lr=3e-4; {keys}", follow(
            lambda o: t.get_cosine_with_min_lr_schedule_with_warmup(o, warmup, horizon, min_lr=3e-4), horizon)
        yield f"optim.schedule=inverse-root; {keys}", follow(
            lambda o: t.get_inverse_sqrt_schedule(o, warmup), horizon + 5)
        least = 0 if warmup else 0.2  # transformers' warm-up begins at the lowest rate
        yield f"optim.schedule=wsd; optim.decay=12; optim.min_lr={least * LR}; {keys}", follow(
            lambda o: t.get_wsd_schedule(o, warmup, 12, num_training_steps=horizon, decay_type="linear", min_lr_ratio=least),
            horizon + 5)
    yield "optim.schedule=linear; optim.min_lr=3e-4; optim.horizon=50", follow(
        lambda o: sched.LinearLR(o, start_factor=1, end_factor=0.1, total_iters=50), 60)
    yield "optim.schedule=cosine; optim.min_lr=1e-4; optim.horizon=50", follow(
        lambda o: sched.CosineAnnealingLR(o, 50, eta_min=1e-4), 50)
    yield "optim.schedule=steps; optim.milestones=10 25 26; optim.milestone_factor=0.3; optim.horizon=40", follow(
        lambda o: sched.MultiStepLR(o, [10, 25, 26], gamma=0.3), 45)
    yield "optim.schedule=steps; optim.horizon=40", follow(lambda o: sched.MultiStepLR(o, [20, 30], gamma=0.1), 45)
    yield "optim.schedule=cycles; optim.cycle=20; optim.min_lr=1e-4; optim.horizon=90", follow(
        lambda o: sched.CyclicLR(o, 1e-4, LR, step_size_up=10, cycle_momentum=False), 100)[10:]
    part = [follow(lambda o, n=n: t.get_cosine_schedule_with_warmup(o, 5, n), n) for n in (20, 30, 25)]
    yield "optim.schedule=cosine; optim.warmup=5; optim.restarts=20 50; optim.horizon=75", sum(part, [])
    again = follow(lambda o: sched.CosineAnnealingWarmRestarts(o, 20), 60)
    yield "optim.schedule=cosine; optim.restarts=20 40; optim.horizon=60", [
        0.0 if s % 20 == 0 else rate for s, rate in enumerate(again, 1)]  # Trireme's parts end at the lowest rate


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "lr.txt")
    args = parser.parse_args()
    lines = []
    for keys, rates in cases():
        lines += [f"optim.lr={LR}; {keys}", " ".join(format(rate, ".17g") for rate in rates)]
    args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
