"""Writes golden files: PyTorch's and transformers' results for small models, for tests/unit/test_golden.c.

    pip install torch transformers peft h5py
    python3 tests/golden/make.py [--out FOLDER] [--seed N] [--eager] [CASE ...]

Each file is one case of CASES with random weights, norms and biases included, and three AdamW steps on
random tokens. In FP64: logits, loss and every gradient of step 1, parameters after step 3. transformers
computes norms, rotary angles and softmax in FP32 even in a double model; double_everywhere() makes the
same code compute all of this in FP64, and main() compares the result with that of the unchanged code.

In BF16 and FP16: the distance of PyTorch from these FP64 values. Mode: the model in torch.bfloat16 or torch.float16
with FP32 master weights, which are rounded before each step; its narrow gradients update the masters in FP32.
Attention is torch's scaled_dot_product_attention, the default of transformers. In FP16 the loss of a step is scaled
by LOSS_SCALE for each counted label, or by the first half of that, quarter, ... with finite gradients.

--eager writes no files. It prints how much farther from FP64 PyTorch's BF16 is with transformers' eager
attention than with the default one: the ratio of two programs of which neither is better.

HDF5 datasets of a file:
    config                     text, lines key=value: Trireme's keys of model and optimizer
    parameters                 text, lines "name sizes...": the order in the flat arrays below
    weights                    f32[n]  initial values, under their Hugging Face names
    tokens, labels, starts     i32[steps, batch, seq]; label -1: not counted; starts, only with documents:
                               where in the sequence the token's document begins
    lr                         f64[steps]
    losses, norms, valid       f64[steps]: mean over the counted labels, norm of its gradient, their number
    logits                     f64[batch, seq, vocab] of step 1
    gradients, after           f64[n], of step 1 before clipping; parameters after the last step
    bf16/logits                f64: PyTorch's distance from the values above (2-norm)
    bf16/gradients, after      f64[parameters]: likewise for each parameter
    fp16/...                   the same three in FP16
With low-rank updates (keys lora.rank, alpha and targets) peft makes the model; the parameters also have A and B,
under peft's names without their prefix, and only these are trained: the gradients of the others are 0 in the file.
Attributes: seed, torch, transformers, and peft with updates. Doubles are rounded to 37 bits, to keep the files small."""

import argparse
import contextlib
import pathlib

import h5py
import numpy as np
import peft
import torch
import torch.nn.functional as F
import transformers
from transformers.activations import ACT2FN

STEPS, BATCH, SEQ = 3, 4, 12
LOSS_SCALE = 4096  # Trireme's first
LR = [0.002, 0.004, 0.003]
OPTIMIZER = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}
# One layer has every part of a block; two layers also have edges between blocks.
GPT2 = {"family": "gpt2", "layers": 1, "width": 16, "heads": 4, "context": SEQ, "vocab": 19}
LLAMA = GPT2 | {"family": "llama", "kv_heads": 2, "mlp_width": 24, "norm_eps": 1e-6, "rope_theta": 1e4}

# Keys of the section `model`, and `documents`, which is not a key.
CASES = {
    "gpt2": GPT2 | {"layers": 2},
    "gpt2-exact-untied": GPT2 | {"activation": "gelu", "tie": False, "norm_eps": 1e-3},
    "gpt2-relu2-documents": GPT2 | {"activation": "relu2", "documents": True, "mlp_width": 40},
    "llama": LLAMA | {"layers": 2, "rope_theta": 5e5, "rope_scaling": "llama3 8 1 4 8"},
    "llama-mqa-tied": LLAMA | {"kv_heads": 1, "head_size": 6, "activation": "geglu_tanh", "tie": True,
                               "rope_scaling": "linear 4"},
    "llama-geglu-documents": LLAMA | {"kv_heads": 4, "activation": "geglu", "documents": True, "norm_eps": 1e-3},
    "llama-relu2-yarn": LLAMA | {"activation": "relu2", "head_size": 8, "mlp_width": 40, "rope_scaling": "yarn 4 2048"},
    "llama-lora": LLAMA | {"lora.rank": 4, "lora.alpha": 8, "lora.targets": "q_proj v_proj o_proj gate_proj down_proj"},
    "qwen2-lora-rank3": LLAMA | {"family": "qwen2", "lora.rank": 3, "lora.alpha": 8, "lora.targets": "q_proj k_proj v_proj up_proj down_proj"},
    "gpt2-lora": GPT2 | {"tie": False, "lora.rank": 2, "lora.alpha": 3, "lora.targets": "c_attn mlp.c_proj c_fc"},
    "qwen2": LLAMA | {"family": "qwen2", "rope_theta": 1e6},
    "qwen2-window-tied": LLAMA | {"family": "qwen2", "window": 5, "tie": True},
    "qwen3": LLAMA | {"family": "qwen3", "head_size": 8},
    "mistral": LLAMA | {"family": "mistral", "window": 4},
    "mistral-documents": LLAMA | {"family": "mistral", "window": 3, "documents": True},
}

# Trireme's names of activations and those of transformers: in a gated MLP, in a plain one.
GATED = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_pytorch_tanh"}
PLAIN = {"gelu_tanh": "gelu_pytorch_tanh", "gelu": "gelu", "relu2": "relu2"}


def filled(case):
    """Returns the case with the families' defaults for keys that it does not set."""
    own = {"activation": "gelu_tanh", "tie": True} if case["family"] == "gpt2" else {"activation": "swiglu", "tie": False}
    return own | {"norm_eps": 1e-5} | ({} if case["family"] == "gpt2" else {"rope_scaling": "none"}) | case


class UngatedMLP(torch.nn.Module):
    """An MLP without a gate in a family that has one; Nemotron's, with ReLU^2."""

    def __init__(self, width, inner, activation):
        super().__init__()
        self.up_proj = torch.nn.Linear(width, inner, bias=False)
        self.down_proj = torch.nn.Linear(inner, width, bias=False)
        self.act_fn = ACT2FN[activation]

    def forward(self, x):
        return self.down_proj(self.act_fn(self.up_proj(x)))


def rope_parameters(case):
    kind, *numbers = case["rope_scaling"].split()
    names = {"none": [], "linear": ["factor"], "yarn": ["factor", "original_max_position_embeddings"],
             "llama3": ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]}[kind]
    values = {n: int(v) if n.startswith("original") else float(v) for n, v in zip(names, numbers)}
    return values | {"rope_type": "default" if kind == "none" else kind, "rope_theta": case["rope_theta"]}


def gpt2(case):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=case["layers"], n_embd=case["width"], n_head=case["heads"], n_positions=case["context"],
        vocab_size=case["vocab"], n_inner=case.get("mlp_width"), activation_function=PLAIN[case["activation"]],
        layer_norm_epsilon=case["norm_eps"], tie_word_embeddings=case["tie"],
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def llama_like(case):
    name = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral"}[case["family"]]
    more = {"use_sliding_window": True, "max_window_layers": 0} if name.startswith("Qwen") and "window" in case else {}
    config = getattr(transformers, name + "Config")(
        num_hidden_layers=case["layers"], hidden_size=case["width"], num_attention_heads=case["heads"],
        num_key_value_heads=case.get("kv_heads", case["heads"]), intermediate_size=case["mlp_width"],
        head_dim=case.get("head_size", case["width"] // case["heads"]), vocab_size=case["vocab"],
        max_position_embeddings=case["context"], rms_norm_eps=case["norm_eps"],
        rope_parameters=rope_parameters(case), tie_word_embeddings=case["tie"],
        sliding_window=case.get("window"), hidden_act=GATED.get(case["activation"], "silu"), **more)
    model = getattr(transformers, name + "ForCausalLM")(config)
    if case["activation"] in PLAIN:
        for layer in model.model.layers:
            layer.mlp = UngatedMLP(case["width"], case["mlp_width"], PLAIN[case["activation"]])
    return model


def build(case, dtype, attention="sdpa"):
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # unlike model.to(dtype) it leaves the rotary frequencies in FP32
    model = gpt2(case) if case["family"] == "gpt2" else llama_like(case)
    torch.set_default_dtype(default)
    # BF16 and FP16 use transformers' default attention. "eager" rounds differently: it computes the gradient of the
    # scores from FP32 probabilities, sdpa and Trireme from the rounded output.
    model.config._attn_implementation = "eager" if dtype == torch.float64 else attention
    if "lora.rank" in case:
        updates = peft.LoraConfig(r=case["lora.rank"], lora_alpha=case["lora.alpha"],
                                  target_modules=case["lora.targets"].split(), fan_in_fan_out=case["family"] == "gpt2")
        model = peft.get_peft_model(model, updates, autocast_adapter_dtype=False).base_model.model
        assert all(p.dtype == dtype for p in model.parameters())
    return model.train()


def parameters(model):
    """Yields the parameters with the names of a checkpoint."""
    for name, p in model.named_parameters():
        yield name.replace(".base_layer", "").replace(".default", ""), p


@contextlib.contextmanager
def double_everywhere():
    """Code that asks for FP32 gets FP64, also for the rotary frequencies of a model that is built meanwhile."""
    kept = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = kept


def draw_weights(model, rng):
    """Returns weights that are multiples of 2^-12, which BF16 must round."""
    out = {}
    for name, p in parameters(model):
        x = rng.standard_normal(tuple(p.shape))
        if p.dim() == 1:
            x = 0.2 * x + (1 if name.endswith("weight") else 0)
        elif "wte" not in name and "wpe" not in name and "embed" not in name:
            x *= p.shape[1] ** -0.5
        out[name] = np.round(x * 4096) / 4096
    return out


def draw_inputs(case, rng):
    shape = (STEPS, BATCH, SEQ)
    tokens, labels = (rng.integers(0, case["vocab"], shape) for _ in range(2))
    # Unequal numbers of labels in every sample.
    labels[rng.random(shape) < np.array([0.05, 0.5, 0.2, 0])[:, None]] = -1
    starts = np.zeros(shape, int)
    if case.get("documents"):
        begins = rng.random(shape) < 0.25
        begins[..., 0] = True
        starts = np.maximum.accumulate(np.where(begins, np.arange(SEQ), 0), axis=-1)
    return tokens, labels, starts


def logits_of(model, case, tokens, starts, dtype):
    i, j = torch.arange(SEQ)[:, None], torch.arange(SEQ)
    allowed = (j <= i) & (j >= torch.tensor(starts)[..., None])
    if "window" in case:
        allowed &= i - j < case["window"]
    mask = torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)[:, None]
    return model(input_ids=torch.tensor(tokens), attention_mask=mask, use_cache=False,
                 position_ids=torch.arange(SEQ) - torch.tensor(starts)).logits


def loss_of(logits, labels):
    wide = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.to(wide).flatten(0, 1), torch.tensor(labels).flatten(), ignore_index=-1)


def gradients_of(model, loss, scale):
    """Returns the gradients in the loss's type: those of the scaled loss, which it divides by the scale. It halves
    the scale until they are finite."""
    while True:
        model.zero_grad()
        (scale * loss).backward(retain_graph=True)
        gradients = {n: torch.zeros_like(p, dtype=loss.dtype) if p.grad is None else p.grad.to(loss.dtype) / scale
                     for n, p in parameters(model)}
        if all(g.isfinite().all() for g in gradients.values()):
            return gradients
        scale /= 2


def train(case, weights, inputs, dtype, attention="sdpa"):
    """Takes three steps of AdamW with master weights; returns all recorded values as double arrays."""
    model = build(case, dtype, attention)
    wide = torch.promote_types(dtype, torch.float32)
    masters = {n: torch.tensor(w, dtype=wide, requires_grad=True) for n, w in weights.items()}
    decay = {n: OPTIMIZER["weight_decay"] if m.dim() > 1 else 0.0 for n, m in masters.items()}
    trained = {n for n, p in parameters(model) if p.requires_grad}
    optimizer = torch.optim.AdamW(
        [{"params": [m], "weight_decay": decay[n]} for n, m in masters.items() if n in trained], lr=1.0,
        betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]), eps=OPTIMIZER["eps"])
    out = {"losses": [], "norms": []}
    for step, (tokens, labels, starts) in enumerate(zip(*inputs)):
        with torch.no_grad():
            for n, p in parameters(model):
                p.copy_(masters[n])
        logits = logits_of(model, case, tokens, starts, dtype)
        loss = loss_of(logits, labels)
        gradients = gradients_of(model, loss, LOSS_SCALE * (labels >= 0).sum() if dtype == torch.float16 else 1)
        norm = torch.sqrt(sum((g.double() ** 2).sum() for g in gradients.values()))
        if step == 0:
            out["logits"] = logits.detach().double().numpy()
            out["gradients"] = {n: g.double().numpy().copy() for n, g in gradients.items()}
        out["losses"].append(loss.item())
        out["norms"].append(norm.item())
        for n, m in masters.items():
            m.grad = gradients[n] * min(1.0, OPTIMIZER["clip"] / norm.item())
        for group in optimizer.param_groups:
            group["lr"] = LR[step]
        optimizer.step()
    out["after"] = {n: m.detach().double().numpy() for n, m in masters.items()}
    return out


def distance(a, b):
    return float(np.linalg.norm(np.asarray(a) - np.asarray(b)))


def rounded(x):
    """Returns x rounded to 37 bits: relative errors below 1e-11."""
    fraction, exponent = np.frexp(np.asarray(x, np.float64))
    return np.ldexp(np.round(np.ldexp(fraction, 37)), exponent - 37)


def config_lines(case):
    keys = {f"model.{k}": v for k, v in case.items() if k != "documents"}
    keys |= {f"optim.{k}": v for k, v in OPTIMIZER.items()}
    text = {True: "true", False: "false"}
    return "".join(f"{k}={text[v] if isinstance(v, bool) else v}\n" for k, v in keys.items())


def write_distances(f, precision, names, narrow, truth):
    f[f"{precision}/logits"] = [distance(narrow["logits"], truth["logits"])]
    f[f"{precision}/gradients"] = [distance(narrow["gradients"][n], truth["gradients"][n]) for n in names]
    noise = 1e-12 * truth["norms"][0]
    moved = {n: np.abs(truth["gradients"][n]) > noise for n in names}
    f[f"{precision}/after"] = [distance(narrow["after"][n][moved[n]], truth["after"][n][moved[n]]) for n in names]


def write(path, case, seed, weights, inputs, truth, bf16, fp16):
    names = list(weights)
    flat = lambda tensors: np.concatenate([tensors[n].ravel() for n in names])
    with h5py.File(path, "w", libver=("v110", "v110")) as f:
        put = lambda name, x: f.create_dataset(name, data=x, chunks=x.shape, shuffle=True, compression=9)
        f.attrs.update(seed=seed, torch=str(torch.__version__), transformers=transformers.__version__)
        if "lora.rank" in case:
            f.attrs.update(peft=peft.__version__)
        f["config"] = np.bytes_(config_lines(case))
        f["parameters"] = np.bytes_("".join(f"{n} {' '.join(map(str, weights[n].shape))}\n" for n in names))
        put("weights", flat(weights).astype(np.float32))
        for name, x in zip(("tokens", "labels", "starts"), inputs):
            if name != "starts" or case.get("documents"):
                put(name, x.astype(np.int32))
        f["lr"] = LR
        f["losses"], f["norms"] = truth["losses"], truth["norms"]
        f["valid"] = (inputs[1] >= 0).sum(axis=(1, 2)).astype(np.float64)
        put("logits", rounded(truth["logits"]))
        put("gradients", rounded(flat(truth["gradients"])))
        put("after", rounded(flat(truth["after"])))
        write_distances(f, "bf16", names, bf16, truth)
        write_distances(f, "fp16", names, fp16, truth)


def check_double(name, case, weights, inputs, truth):
    """Checks that transformers' unchanged code gives these values, except for its FP32 parts."""
    own = train(case, weights, inputs, torch.float64)
    for what in ("logits", "losses"):
        off = distance(own[what], truth[what]) / np.linalg.norm(truth[what])
        assert off < 1e-5, f"{name}: {what} of unchanged transformers code are off by {off}"


def print_ratios(name, truth, sdpa, eager):
    """Prints the ratios of errors that tests/unit/test_golden.c limits, eager to sdpa."""
    errors = [{n: distance(x["gradients"][n], t) for n, t in truth["gradients"].items()} for x in (sdpa, eager)]
    total = np.linalg.norm([[distance(x["after"][n], t) for n, t in truth["after"].items()] for x in (sdpa, eager)], axis=1)
    print(f"{name}: all parameters {total[1] / total[0]:.2f}")
    for n, error in errors[0].items():
        if error > 0:  # not frozen
            print(f"{name}: {n} {errors[1][n] / error:.2f}")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--eager", action="store_true")
    arguments.add_argument("case", nargs="*", help="default: all of CASES")
    options = arguments.parse_args()
    transformers.logging.set_verbosity_error()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.case or CASES:
        case = filled(CASES[name])
        rng = np.random.default_rng([options.seed, *name.encode()])
        weights = draw_weights(build(case, torch.float64), rng)
        inputs = draw_inputs(case, rng)
        with double_everywhere():
            truth = train(case, weights, inputs, torch.float64)
        check_double(name, case, weights, inputs, truth)
        bf16 = train(case, weights, inputs, torch.bfloat16)
        if options.eager:
            print_ratios(name, truth, bf16, train(case, weights, inputs, torch.bfloat16, "eager"))
            continue
        path = options.out / f"{name}.h5"
        write(path, case, options.seed, weights, inputs, truth, bf16, train(case, weights, inputs, torch.float16))
        print(f"{name}: {sum(w.size for w in weights.values())} parameters, {path.stat().st_size} bytes, "
              f"losses {truth['losses']}, norms {truth['norms']}")


main()
