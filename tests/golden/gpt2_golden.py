"""Writes gpt2_golden.txt: loss, logits and every gradient of a tiny GPT-2, by automatic
differentiation in double precision. Needs the Python packages jax, jaxlib and numpy; only to make the
file anew:

    python3 tests/golden/gpt2_golden.py > tests/golden/gpt2_golden.txt

Weights, tokens and labels come from the integer formulas below, which test_layers.c repeats, so that
both sides start from the same bits. Lines: "name count", then the values."""

import jax

jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
import numpy as np

LAYERS, WIDTH, HEADS, CONTEXT, VOCAB, BATCH, SEQ = 2, 16, 2, 7, 11, 2, 5


def shapes():
    yield "transformer.wte.weight", (VOCAB, WIDTH)
    yield "transformer.wpe.weight", (CONTEXT, WIDTH)
    for i in range(LAYERS):
        h = f"transformer.h.{i}."
        yield h + "ln_1.weight", (WIDTH,)
        yield h + "ln_1.bias", (WIDTH,)
        yield h + "attn.c_attn.weight", (WIDTH, 3 * WIDTH)
        yield h + "attn.c_attn.bias", (3 * WIDTH,)
        yield h + "attn.c_proj.weight", (WIDTH, WIDTH)
        yield h + "attn.c_proj.bias", (WIDTH,)
        yield h + "ln_2.weight", (WIDTH,)
        yield h + "ln_2.bias", (WIDTH,)
        yield h + "mlp.c_fc.weight", (WIDTH, 4 * WIDTH)
        yield h + "mlp.c_fc.bias", (4 * WIDTH,)
        yield h + "mlp.c_proj.weight", (4 * WIDTH, WIDTH)
        yield h + "mlp.c_proj.bias", (WIDTH,)
    yield "transformer.ln_f.weight", (WIDTH,)
    yield "transformer.ln_f.bias", (WIDTH,)


def value(param, element):
    x = (param * 1000003 + element) * 2654435761 % 2**32
    x ^= x >> 16
    x = x * 73244475 % 2**32
    return (x >> 16) / 65536 - 0.5


def weights():
    out = {}
    for p, (name, shape) in enumerate(shapes()):
        flat = np.array([value(p, i) for i in range(int(np.prod(shape)))])
        norm = ".ln_" in name and name.endswith("weight")
        out[name] = jnp.asarray((flat * 0.5 + norm).reshape(shape))
    return out


def norm(x, w, name):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(var + 1e-5) * w[name + ".weight"] + w[name + ".bias"]


def conv1d(x, w, name):
    return x @ w[name + ".weight"] + w[name + ".bias"]


def attention(x, w, name):
    q, k, v = jnp.split(conv1d(x, w, name + "c_attn"), 3, axis=-1)
    split = lambda t: t.reshape(BATCH, SEQ, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)
    scores = split(q) @ split(k).transpose(0, 1, 3, 2) / jnp.sqrt(WIDTH // HEADS)
    scores = jnp.where(jnp.tril(jnp.ones((SEQ, SEQ), bool)), scores, -jnp.inf)
    y = jax.nn.softmax(scores, axis=-1) @ split(v)
    return conv1d(y.transpose(0, 2, 1, 3).reshape(BATCH, SEQ, WIDTH), w, name + "c_proj")


def logits(w, tokens):
    x = w["transformer.wte.weight"][tokens] + w["transformer.wpe.weight"][:SEQ]
    for i in range(LAYERS):
        h = f"transformer.h.{i}."
        x = x + attention(norm(x, w, h + "ln_1"), w, h + "attn.")
        u = conv1d(norm(x, w, h + "ln_2"), w, h + "mlp.c_fc")
        x = x + conv1d(jax.nn.gelu(u, approximate=True), w, h + "mlp.c_proj")
    return norm(x, w, "transformer.ln_f") @ w["transformer.wte.weight"].T


def loss(w, tokens, labels):
    """Sum, not mean, over the positions that count."""
    logp = jax.nn.log_softmax(logits(w, tokens), axis=-1)
    picked = jnp.take_along_axis(logp, jnp.maximum(labels, 0)[..., None], -1)[..., 0]
    return -jnp.where(labels >= 0, picked, 0).sum()


def show(name, array):
    flat = np.asarray(array).reshape(-1)
    print(name, flat.size)
    for i in range(0, flat.size, 8):
        print(" ".join(f"{x:.8e}" for x in flat[i : i + 8]))


def main():
    index = np.arange(BATCH * SEQ)
    tokens = jnp.asarray((7 * index + 3) % VOCAB).reshape(BATCH, SEQ)
    labels = np.where(index == 3, -1, (5 * index + 1) % VOCAB)
    labels = jnp.asarray(labels).reshape(BATCH, SEQ)
    w = weights()
    total, grads = jax.value_and_grad(loss)(w, tokens, labels)
    show("loss", total)
    show("logits", logits(w, tokens))
    for name, _ in shapes():
        show(name, grads[name])


main()
