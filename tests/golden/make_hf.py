"""Writes small random models as transformers saves them, and their logits, for tests/unit/test_hf.c.

    pip install torch transformers   (version 4 or 5)
    python3 tests/golden/make_hf.py [--out FOLDER] [--seed N]

Each folder of tests/golden/hf is a case: config.json, the weights, tokens.i32 and logits.f32 (one
sequence; computed in FP32 from the stored weights), logits.f64 (in FP64 from the stored weights rounded to BF16) and
logits.bf16 (transformers' own in BF16, widened to FP32). The weights have the type, the dialect and the
files that the case names:

    gpt2-hub        names without "transformer.", with the masks that old versions saved; dialect of version 4
    llama-shards    BF16, three files and an index, scaled rotary positions; dialect of version 5
    qwen2-v4        FP16, tied; dialect of version 4
    qwen3           BF16, tied, heads wider than width / heads; dialect of version 5
    mistral-window  FP32, with a window of 5; dialect of version 5
    yarn-v4         llama with yarn, dialect of version 4
    mixed           llama with BF16 matrices and FP32 norms

gpt2.llmc3.bin and gpt2.llmc5.bin are the first case in llm.c's format, the second rounded to BF16."""

import argparse
import json
import pathlib
import struct

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

V, SEQ = 37, 12
FIVE = int(transformers.__version__.split(".")[0]) >= 5
BASE = dict(vocab_size=V, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            intermediate_size=24, max_position_embeddings=32, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2)
LLAMA3 = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8)
YARN = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=8)


def rope(values):
    """The arguments of a config: version 4 passes over rope_parameters."""
    scaling = {key: value for key, value in values.items() if key != "rope_theta"}
    return dict(rope_parameters=values) if FIVE else dict(rope_theta=values["rope_theta"], rope_scaling=scaling)


CASES = {
    "gpt2-hub": (transformers.GPT2Config(vocab_size=V, n_embd=16, n_layer=2, n_head=4, n_positions=16,
                                         bos_token_id=1, eos_token_id=2), torch.float32, 4),
    "llama-shards": (transformers.LlamaConfig(**BASE, **rope(LLAMA3)), torch.bfloat16, 5),
    "qwen2-v4": (transformers.Qwen2Config(**BASE, tie_word_embeddings=True), torch.float16, 4),
    "qwen3": (transformers.Qwen3Config(**BASE, head_dim=8, tie_word_embeddings=True), torch.bfloat16, 5),
    "mistral-window": (transformers.MistralConfig(**BASE, sliding_window=5), torch.float32, 5),
    "yarn-v4": (transformers.LlamaConfig(**BASE, **rope(YARN)), torch.float32, 4),
    "mixed": (transformers.LlamaConfig(**BASE), torch.bfloat16, 5),
}


def dialect4(path):
    """Rewrites config.json as version 4 wrote it."""
    config = json.loads(path.read_text())
    config.setdefault("torch_dtype", config.pop("dtype", None))
    rope = config.pop("rope_parameters", None)
    if rope:
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config.pop("layer_types", None)
    config["transformers_version"] = "4.46.0"
    path.write_text(json.dumps(config, indent=2) + "\n")


def as_hub(folder):
    """Renames the tensors as in the first published GPT-2, with the masks of its attention."""
    file = folder / "model.safetensors"
    tensors = {name.removeprefix("transformer."): t for name, t in load_file(file).items()}
    for layer in range(2):
        tensors[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 16, 16, dtype=torch.uint8).tril()
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, file)


def llmc(folder, path, version):
    """Writes the format of llm.c's train_gpt2.py: matrices [out, in], the vocabulary padded to 128."""
    w = {name.removeprefix("transformer."): t.double() for name, t in load_file(folder / "model.safetensors").items()}
    header = np.zeros(256, np.int32)
    header[:8] = [20240326, version, 16, V, 2, 4, 16, 128]

    def raw(t):
        t = t.float()
        return t.numpy().tobytes() if version == 3 else t.to(torch.bfloat16).view(torch.int16).numpy().tobytes()

    with open(path, "wb") as f:
        f.write(header.tobytes())
        f.write(raw(torch.cat([w["wte.weight"], torch.zeros(128 - V, 16)])) + raw(w["wpe.weight"]))
        for name in ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
                     "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias",
                     "mlp.c_proj.weight", "mlp.c_proj.bias"):
            for layer in range(2):
                t = w[f"h.{layer}.{name}"]
                f.write(raw(t.T.contiguous() if t.dim() == 2 else t))
        f.write(raw(w["ln_f.weight"]) + raw(w["ln_f.bias"]))


def logits_of(folder, tokens, dtype, rounded=False):
    """Loads the stored weights, which are rounded to BF16 first if `rounded`, and computes in `dtype`. The frequencies of
    rotary positions stay in FP32, as from_pretrained leaves them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    if rounded:
        for p in model.parameters():
            p.data = p.data.to(torch.bfloat16).to(dtype)
    with torch.no_grad():
        return model(tokens, use_cache=False).logits


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "hf")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    out = arguments.out
    for name, (config, dtype, dialect) in CASES.items():
        torch.manual_seed(len(name) + 1000 * arguments.seed)
        config._attn_implementation = "eager"
        model = transformers.AutoModelForCausalLM.from_config(config)
        for p in model.parameters():
            p.data.normal_(1 if p.dim() == 1 and p.data.mean() == 1 else 0, 0.2)
        model.to(dtype).eval()
        if name == "mixed":
            for parameter in model.named_parameters():
                if "norm" in parameter[0]:
                    parameter[1].data = parameter[1].data.float() + 1e-4
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(folder, max_shard_size="4KB" if name == "llama-shards" else "1GB")
        (folder / "generation_config.json").write_text('{"eos_token_id": 2}\n')
        tokens = torch.randint(V, (1, SEQ))
        tokens.numpy().astype(np.int32).tofile(folder / "tokens.i32")
        # Loaded again: a model that was rounded as a whole has rounded rotary frequencies, too.
        logits_of(folder, tokens, torch.float32).numpy().tofile(folder / "logits.f32")
        logits_of(folder, tokens, torch.float64, rounded=True).numpy().tofile(folder / "logits.f64")
        logits_of(folder, tokens, torch.bfloat16).float().numpy().tofile(folder / "logits.bf16")
        if name == "gpt2-hub":
            as_hub(folder)
            llmc(folder, out / "gpt2.llmc3.bin", 3)
            llmc(folder, out / "gpt2.llmc5.bin", 5)
        if dialect == 4:
            dialect4(folder / "config.json")
        print(name, sorted(p.name for p in folder.iterdir()))


if __name__ == "__main__":
    main()
