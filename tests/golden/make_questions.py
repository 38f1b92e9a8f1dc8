#!/usr/bin/env python3
"""Writes multiple-choice questions in llm.c's layout, and how transformers answers them, for tests/run/eval.sh.

    pip install torch transformers
    python3 tests/golden/make_questions.py [--out FOLDER] [--seed N] [--questions N]

Written from the description of llm.c's HellaSwag file: 256 words of 32 bits (magic 20240522, version 1, the number of
questions, the bytes of the longest), then questions of 16-bit words: 65535, its bytes, its index, the label, the number of
endings, the length of the context and its tokens, and for each ending its length and tokens. The tokens are random, the models are those
of tests/golden/hf in FP64. An answer is the ending of the highest log probability, or of the highest one a token.
"""
import argparse
import json
import pathlib

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).parent
MODELS = ["gpt2-hub", "qwen3"]
LEAST_GAP = 1e-4  # of the best two endings of a question, in nats: rounding must not decide


def positions(config):
    return getattr(config, "n_positions", None) or config.max_position_embeddings


def draw(rng, vocab, most):
    ids = lambda n: rng.integers(0, vocab, n).tolist()
    context = ids(int(rng.integers(1, most // 2)))
    endings = [ids(int(rng.integers(1, most // 2))) for _ in range(int(rng.integers(2, 6)))]
    return context, endings, int(rng.integers(0, len(endings)))


def write(path, questions):
    stream, longest = b"", 0
    for index, (context, endings, label) in enumerate(questions):
        words = [index, label, len(endings), len(context), *context]
        for ending in endings:
            words += [len(ending), *ending]
        size = 2 * (2 + len(words))
        stream += np.array([65535, size, *words], dtype="<u2").tobytes()
        longest = max(longest, size)
    head = np.zeros(256, dtype="<i4")
    head[:4] = 20240522, 1, len(questions), longest
    path.write_bytes(head.tobytes() + stream)


def nats(model, context, ending):
    ids = torch.tensor(context + ending)[None]
    log_p = torch.log_softmax(model(ids).logits[0, :-1], -1)
    return -log_p.gather(1, ids[0, 1:, None])[len(context) - 1:, 0].sum().item()


def answer(model, questions):
    """The shares of right answers, and the smallest gap between the best two endings."""
    right, gap = [0, 0], float("inf")
    for context, endings, label in questions:
        sums = np.array([nats(model, context, ending) for ending in endings])
        for k, scores in enumerate((sums, sums / [len(ending) for ending in endings])):
            right[k] += int(scores.argmin() == label)
            gap = min(gap, np.diff(np.sort(scores))[0])
    return [n / len(questions) for n in right], gap


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "questions")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--questions", type=int, default=40)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        model = transformers.AutoModelForCausalLM.from_pretrained(HERE / "hf" / name, dtype=torch.float64).eval()
        rng = np.random.default_rng(args.seed)
        most = positions(model.config)
        questions = [draw(rng, model.config.vocab_size, most) for _ in range(args.questions)]
        with torch.no_grad():
            (accuracy, normalised), gap = answer(model, questions)
        assert gap > LEAST_GAP, f"{name}: two endings are {gap} nats apart: another --seed"
        write(args.out / f"{name}.bin", questions)
        error = lambda p: (p * (1 - p) / (args.questions - 1)) ** 0.5
        (args.out / f"{name}.json").write_text(json.dumps(dict(
            acc=accuracy, acc_stderr=error(accuracy), acc_norm=normalised, acc_norm_stderr=error(normalised))) + "\n")
        print(f"{name}: {args.questions} questions, the nearest two endings {gap:.1e} nats apart; "
              f"torch {torch.__version__}, transformers {transformers.__version__}")


main()
