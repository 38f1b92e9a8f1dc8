#!/usr/bin/env python3
"""Writes 20 steps of optimizers on given gradients, for unit.test_optimizers.

    pip install numpy torch
    python3 tests/golden/make_optimizers.py [--out FILE] [--seed N]

SGD, Adam and AdamW are PyTorch's in FP64; Lion and LAMB are written here from their papers (Chen et al. 2023, algorithm 2; You et al.
2020, algorithm 2, with phi(x) = x), Muon from its author's page (kellerjordan.github.io/posts/muon), with the length of Liu et al.
2025, section 2.2, and Adafactor from its paper (Shazeer & Stern 2018, algorithms 4 and 5, with the learning rate as rho). For LAMB,
Muon and Adafactor the parameters are the tensors of TENSORS. The first line is
"N STEPS", the second one the N parameters, then a line for the gradient of each step. Two lines a case follow: Trireme's keys, with
"; " between them, and the parameters after the last step. Gradients are of FP32, so that every precision begins with the same. No
step of Lion depends on a sign that rounding could change: where the mean is below 1e-6 the gradient is drawn again.
"""
import argparse
import pathlib

import numpy as np
import torch

HERE = pathlib.Path(__file__).parent
N, STEPS, LR = 96, 20, 3e-3
TENSORS = ((8, 5), (4, 8), (24,))  # unit.test_optimizers has the same
ENDS = np.cumsum([np.prod(shape) for shape in TENSORS])[:-1]


class Lion:
    def __init__(self, betas, weight_decay):
        self.betas, self.weight_decay, self.m = betas, weight_decay, np.zeros(N)

    def step(self, w, g, lr=LR):
        b1, b2 = self.betas
        mean = b1 * self.m + (1 - b1) * g
        self.m = b2 * self.m + (1 - b2) * g
        return w - lr * (np.sign(mean) + self.weight_decay * w), np.abs(mean)


class Lamb:
    def __init__(self, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01):
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.m, self.v, self.t = np.zeros(N), np.zeros(N), 0

    def step(self, x, g, lr=LR):
        b1, b2 = self.betas
        self.t += 1
        self.m = b1 * self.m + (1 - b1) * g
        self.v = b2 * self.v + (1 - b2) * g**2
        r = self.m / (1 - b1**self.t) / (np.sqrt(self.v / (1 - b2**self.t)) + self.eps) + self.weight_decay * x
        steps = []
        for x_i, r_i in zip(np.split(x, ENDS), np.split(r, ENDS)):
            size, length = np.linalg.norm(x_i), np.linalg.norm(r_i)
            steps.append(lr * (size / length if size > 0 and length > 0 else 1) * r_i)
        return x - np.concatenate(steps), None


class Muon:
    """Nesterov's momentum of each matrix, made orthogonal; PyTorch's AdamW for the vectors."""

    def __init__(self, momentum=0.95, nesterov=True, weight_decay=0.1):
        self.momentum, self.nesterov, self.weight_decay = momentum, nesterov, weight_decay
        self.buffer, self.vector, self.adamw = np.zeros(N), None, None

    def step(self, x, g, lr=LR):
        self.buffer = self.momentum * self.buffer + g
        u = g + self.momentum * self.buffer if self.nesterov else self.buffer
        after = []
        for shape, x_i, u_i, g_i in zip(TENSORS, np.split(x, ENDS), np.split(u, ENDS), np.split(g, ENDS)):
            if len(shape) == 1:
                after.append(self.step_vector(x_i, g_i, lr))
                continue
            length = 0.2 * np.sqrt(max(shape))
            o = newton_schulz(u_i.reshape(shape)).reshape(-1)
            after.append(x_i - lr * (length * o + self.weight_decay * x_i))
        return np.concatenate(after), None

    def step_vector(self, x, g, lr):
        if self.adamw is None:
            self.vector = torch.nn.Parameter(torch.tensor(x))
            self.adamw = torch.optim.AdamW([self.vector], lr=lr, betas=(0.9, 0.95), weight_decay=self.weight_decay)
        self.vector.grad = torch.tensor(g)
        self.adamw.step()
        return self.vector.detach().numpy().copy()


class Adafactor:
    def __init__(self, weight_decay=0.0, eps1=1e-30, eps2=1e-3, d=1.0):
        self.weight_decay, self.eps1, self.eps2, self.d, self.t = weight_decay, eps1, eps2, d, 0
        self.moments = [[np.zeros(n) for n in shape] for shape in TENSORS]

    def step(self, x, g, lr=LR):
        self.t += 1
        beta2, after = 1 - self.t**-0.8, []
        for shape, moments, x_i, g_i in zip(TENSORS, self.moments, np.split(x, ENDS), np.split(g, ENDS)):
            square = g_i.reshape(shape) ** 2 + self.eps1
            for axis, moment in enumerate(moments):
                others = tuple(other for other in range(len(shape)) if other != axis)
                moment[:] = beta2 * moment + (1 - beta2) * square.sum(axis=others)
            v = moments[0] if len(shape) == 1 else np.outer(*moments) / moments[0].sum()
            u = g_i / np.sqrt(v).reshape(-1)
            u = u / max(1, rms(u) / self.d)
            after.append(x_i - lr * (max(self.eps2, rms(x_i)) * u + self.weight_decay * x_i))
        return np.concatenate(after), None


def rms(x):
    return np.sqrt(np.mean(x**2))


def newton_schulz(g, a=3.4445, b=-4.7750, c=2.0315):
    x = g / (np.linalg.norm(g) + 1e-7)
    if g.shape[0] > g.shape[1]:
        x = x.T
    for _ in range(5):
        m = x @ x.T
        x = a * x + (b * m + c * m @ m) @ x
    return x.T if g.shape[0] > g.shape[1] else x


def draw(rng):
    w = rng.normal(size=N).astype(np.float32).astype(np.float64)
    scale = np.exp(rng.normal(size=N))
    lions, gradients = [Lion((0.9, 0.99), 0), Lion((0.8, 0.95), 0)], []
    for _ in range(STEPS):
        g = (scale * rng.normal(size=N)).astype(np.float32).astype(np.float64)
        for lion in lions:
            while (doubt := np.abs(lion.betas[0] * lion.m + (1 - lion.betas[0]) * g) < 1e-6).any():
                g[doubt] = (scale * rng.normal(size=N)).astype(np.float32).astype(np.float64)[doubt]
        for lion in lions:
            lion.step(w, g)
        gradients.append(g)
    return w, gradients


def follow(make, w, gradients, change=lambda g, w: g):
    p = torch.nn.Parameter(torch.tensor(w))
    optimizer = make([p])
    for g in gradients:
        p.grad = change(torch.tensor(g), p.detach())
        optimizer.step()
    return p.detach().numpy()


def follow_own(optimizer, w, gradients):
    for g in gradients:
        w, _ = optimizer.step(w, g)
    return w


def cases(w, gradients):
    o = torch.optim
    betas = "optim.beta1=0.8; optim.beta2=0.97; optim.eps=1e-7"
    some = dict(lr=LR, betas=(0.8, 0.97), eps=1e-7)
    yield "optim.name=adamw", follow(lambda p: o.AdamW(p, lr=LR, betas=(0.9, 0.95), weight_decay=0.1), w, gradients)
    yield f"optim.name=adamw; {betas}; optim.weight_decay=0.02", follow(lambda p: o.AdamW(p, **some, weight_decay=0.02), w, gradients)
    yield "optim.name=adam", follow(lambda p: o.Adam(p, lr=LR, betas=(0.9, 0.95)), w, gradients)
    yield f"optim.name=adam; {betas}; optim.weight_decay=0.03", follow(lambda p: o.Adam(p, **some, weight_decay=0.03), w, gradients)
    yield "optim.name=adam; optim.l1=0.02; optim.l2=0.01; optim.clip_value=0.7", follow(
        lambda p: o.Adam(p, lr=LR, betas=(0.9, 0.95)), w, gradients,
        lambda g, p: g.clamp(-0.7, 0.7) + 0.02 * p.sign() + 0.01 * p)
    yield "optim.name=sgd", follow(lambda p: o.SGD(p, lr=LR, momentum=0.9), w, gradients)
    yield "optim.name=sgd; optim.momentum=0", follow(lambda p: o.SGD(p, lr=LR), w, gradients)
    yield "optim.name=sgd; optim.momentum=0.8; optim.nesterov=true; optim.weight_decay=0.05", follow(
        lambda p: o.SGD(p, lr=LR, momentum=0.8, nesterov=True, weight_decay=0.05), w, gradients)
    yield "optim.name=sgd; optim.clip_value=0.5; optim.l1=0.1", follow(
        lambda p: o.SGD(p, lr=LR, momentum=0.9), w, gradients, lambda g, p: g.clamp(-0.5, 0.5) + 0.1 * p.sign())
    yield "optim.name=lion", follow_own(Lion((0.9, 0.99), 0.1), w, gradients)
    yield "optim.name=lion; optim.beta1=0.8; optim.beta2=0.95; optim.weight_decay=0", follow_own(Lion((0.8, 0.95), 0), w, gradients)
    yield "optim.name=lamb", follow_own(Lamb(), w, gradients)
    yield "optim.name=muon", follow_own(Muon(), w, gradients)
    yield "optim.name=muon; optim.momentum=0.8; optim.nesterov=false; optim.weight_decay=0.3", follow_own(
        Muon(0.8, False, 0.3), w, gradients)
    yield f"optim.name=lamb; {betas}; optim.weight_decay=0.2", follow_own(Lamb((0.8, 0.97), 1e-7, 0.2), w, gradients)
    yield "optim.name=adafactor", follow_own(Adafactor(), w, gradients)
    yield "optim.name=adafactor; optim.weight_decay=0.3", follow_own(Adafactor(0.3), w, gradients)


def text(values):
    return " ".join(format(float(x), ".17g") for x in values)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "optimizers.txt")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    w, gradients = draw(np.random.default_rng(args.seed))
    lines = [f"{N} {STEPS}", text(w), *map(text, gradients)]
    for keys, after in cases(w, gradients):
        lines += [f"optim.lr={LR}; {keys}", text(after)]
    args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
