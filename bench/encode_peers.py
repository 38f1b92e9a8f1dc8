#!/usr/bin/env python3
"""Compares the speed of encoding on one core with tiktoken and tokenizers, where they are installed.

usage: bench/encode_peers.py TOKENIZER.json TEXT [BENCH_TOKENIZER]

Every program encodes the same text; the two libraries get it in documents of about 100 kB, which is
to their advantage. Rates are MB (10^6 bytes) per second of processor time, the best of three runs.
"""
import importlib.metadata, json, os, re, subprocess, sys, time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"


def documents(text):
    at, out = 0, []
    while at < len(text):
        end = text.find("\n", at + 100_000) + 1 or len(text)
        out.append(text[at:end])
        at = end
    return out


def best(encode, texts, megabytes):
    rates = []
    for _ in range(3):
        start = time.process_time()
        tokens = sum(encode(text) for text in texts)
        rates.append(megabytes / (time.process_time() - start))
    return max(rates), tokens


def ranks_of(model):
    """The rank file that the vocabulary of a byte-level tokenizer.json means."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    byte = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
    return {bytes(byte[c] for c in name): i for name, i in model["vocab"].items()
            if all(c in byte for c in name)}


def main():
    path, text_path = sys.argv[1:3]
    bench = sys.argv[3] if len(sys.argv) > 3 else "build/release/bench/bench_tokenizer"
    print(f"trireme     {subprocess.run([bench, path, text_path, '3'], capture_output=True, text=True).stdout.splitlines()[-1]}")
    data = open(text_path, "rb").read().decode("utf-8", "replace")
    texts, megabytes = documents(data), 1e-6 * len(data.encode())
    try:
        import tokenizers
        t = tokenizers.Tokenizer.from_file(path)
        rate, tokens = best(lambda x: len(t.encode(x, add_special_tokens=False).ids), texts, megabytes)
        print(f"tokenizers  {tokenizers.__version__}: {tokens} tokens: best {rate:.1f} MB/s")
    except ImportError:
        print("tokenizers  skipped: not installed")
    spec = json.load(open(path))
    if spec["model"].get("byte_fallback"):
        print("tiktoken    skipped: it has no byte fallback")
        return
    try:
        import tiktoken
        pre = json.dumps(spec["pre_tokenizer"])
        found = re.search(r'"Regex": ("(?:[^"\\]|\\.)*")', pre)
        regex = json.loads(found.group(1)) if found else (
            r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s")
        e = tiktoken.Encoding("x", pat_str=regex, mergeable_ranks=ranks_of(spec["model"]), special_tokens={})
        rate, tokens = best(lambda x: len(e.encode_ordinary(x)), texts, megabytes)
        print(f"tiktoken    {importlib.metadata.version('tiktoken')}: {tokens} tokens: best {rate:.1f} MB/s")
    except ImportError:
        print("tiktoken    skipped: not installed")


main()
