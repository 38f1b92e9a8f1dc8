#!/usr/bin/env python3
"""PyTorch on the same training step as bench_train: bench/torch.sh compares with it.

One step is forward and backward of each micro-batch and AdamW (fused), on random tokens in one process; under torchrun,
--batch sequences in each process, and DistributedDataParallel sums the gradients over gloo. Prints the best and the median
step after two of warm-up, and model GFLOP/s of the process by 6 N_matmul + 6 L T C a token.
PyTorch: python3 -m venv DIR && DIR/bin/pip install torch
"""
import argparse
import contextlib
import os
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
for key, value in dict(layers=6, width=384, heads=6, vocab=256, context=256, batch=8, threads=1, steps=7).items():
    parser.add_argument("--" + key, type=int, default=value)
parser.add_argument("--micro_batch", type=int, help="sequences of one forward and backward; the batch when not given")
parser.add_argument("--mode", default="fp32", choices=["fp32", "autocast", "bf16"])
parser.add_argument("--device", default="cpu")
parser.add_argument("--compile", action="store_true")
args = parser.parse_args()
torch.set_num_threads(args.threads)
torch.manual_seed(0)
ranks = int(os.environ.get("WORLD_SIZE", 1))
if ranks > 1:
    torch.distributed.init_process_group("gloo")


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):  # (B, T, C)
        B, T, C = x.shape
        qkv = self.attn(self.ln_1(x)).split(C, dim=2)
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in qkv)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(args.vocab, args.width)
        self.wpe = nn.Embedding(args.context, args.width)
        self.blocks = nn.ModuleList(Block(args.width, args.heads) for _ in range(args.layers))
        self.ln_f = nn.LayerNorm(args.width)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, labels):
        x = self.wte(tokens) + self.wpe.weight
        for block in self.blocks:
            x = block(x)
        logits = self.ln_f(x) @ self.wte.weight.T
        return F.cross_entropy(logits.view(-1, args.vocab).float(), labels.view(-1))


model = GPT().to(args.device)
if args.mode == "bf16":
    model = model.bfloat16()
if ranks > 1:
    model = nn.parallel.DistributedDataParallel(model)
forward = torch.compile(model) if args.compile else model
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
tokens, labels = (torch.randint(0, args.vocab, (args.batch, args.context), device=args.device) for _ in range(2))
size = args.micro_batch or args.batch
seconds = []
for _ in range(args.steps + 2):
    start, loss = time.perf_counter(), 0
    parts = list(zip(tokens.split(size), labels.split(size)))
    for k, (part, labels_part) in enumerate(parts):
        with model.no_sync() if ranks > 1 and k < len(parts) - 1 else contextlib.nullcontext():
            with torch.autocast(args.device.split(":")[0], dtype=torch.bfloat16, enabled=args.mode == "autocast"):
                share = forward(part, labels_part) * (len(part) / args.batch)
            share.backward()
        loss += share.detach()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if args.device != "cpu":
        torch.cuda.synchronize()
    seconds.append(time.perf_counter() - start)
best, median = min(seconds[2:]), statistics.median(seconds[2:])
n_matmul = 12 * args.layers * args.width**2 + args.vocab * args.width
flops = args.batch * args.context * (6 * n_matmul + 6 * args.layers * args.context * args.width)
if ranks > 1:
    torch.distributed.destroy_process_group()
    if int(os.environ["RANK"]) > 0:
        raise SystemExit
print(f"step best {best * 1e3:.1f} ms median {median * 1e3:.1f} ms; {args.batch * args.context / best:.0f} tok/s "
      f"{flops / best * 1e-9:.1f} GFLOP/s (best); loss {loss.item():.4f}; torch {torch.__version__} {args.mode}{' compiled' if args.compile else ''}")
