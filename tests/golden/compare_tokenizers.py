#!/usr/bin/env python3
"""Compares ids with those of the installed libraries tokenizers and tiktoken, text by text.

usage: compare_tokenizers.py TOKEN_IDS [--out FOLDER] [--vocab N] [--text FILE ...] [--strings N] [--all-code-points]

Trains each kind of tokenizer of make_tokenizers.py with the package tokenizers, into FOLDER, and encodes the random
texts, all of them in one piece (1 MB), and with --all-code-points every code point between letters, digits and spaces.
tiktoken encodes the same texts with the vocabularies of the byte-level tokenizers that cut words only, and with two
rank files: all pairs of bytes as gpt2's, and with --vocab 128000 a trained one as Llama 3's. Random added tokens, most
of white space, are compared on random texts that the reference does not fail on. TOKEN_IDS is the program of tests/tools. Ends with 1 at the first difference.
"""
import argparse, base64, importlib.metadata, json, os, random, struct, subprocess, sys
import tiktoken, tokenizers
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
import make_tokenizers as make

GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
SHOWN = 12  # ids of a difference


def byte_of_names():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def ranks_of(spec):
    """The bytes of each token of a byte-level vocabulary, without added tokens."""
    byte, added = byte_of_names(), {t["content"] for t in spec["added_tokens"]}
    return {bytes(byte[c] for c in name): i for name, i in spec["model"]["vocab"].items() if name not in added}


def code_points():
    """Texts with each code point next to letters, digits, punctuation, spaces and itself."""
    for first in range(0, 0x110000, 16):
        if not 0xD800 <= first < 0xE000:
            yield "\n".join("a{0}b 1{0}2 .{0}, {0}{0} {0}".format(chr(c)) for c in range(first, first + 16))


class Ours:
    """Encodes with the program TOKEN_IDS."""

    def __init__(self, program, texts, folder):
        self.program, self.path = program, os.path.join(folder, "texts.bin")
        self.bytes = b"".join(struct.pack("<I", len(t)) + t for t in (t.encode() for t in texts))
        with open(self.path, "wb") as file:
            file.write(self.bytes)

    def run(self, tokenizer, *options):
        return subprocess.run([self.program, tokenizer, self.path, *options], check=True, capture_output=True).stdout

    def ids(self, tokenizer, *options):
        out, at, data = [], 0, memoryview(self.run(tokenizer, *options)).cast("i")
        while at < len(data):
            out.append(data[at + 1:at + 1 + data[at]].tolist())
            at += 1 + data[at]
        return out

    def comes_back(self, tokenizer):
        return self.run(tokenizer, "--no-special", "--decode") == self.bytes


def check(what, texts, ours, theirs):
    assert len(ours) == len(theirs) == len(texts), f"{what}: {len(ours)} texts instead of {len(texts)}"
    for number, (a, b) in enumerate(zip(ours, theirs)):
        if list(a) != list(b):
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            sys.exit(f"{what}: text {number}, token {at}: {a[at:at + SHOWN]}, the reference {list(b)[at:at + SHOWN]}: "
                     f"{texts[number][:200]!r}")
    print(f"{what}: {len(texts)} texts, {sum(map(len, ours))} ids are equal")


def compare_tokenizers(name, path, texts, ours):
    t = tokenizers.Tokenizer.from_file(path)
    for mode, options, special, template in (("plain", [], False, False), ("template", ["--template"], False, True),
                                             ("no-special", ["--no-special"], True, False)):
        t.encode_special_tokens = special
        theirs = [e.ids for e in t.encode_batch(texts, add_special_tokens=template)]
        check(f"tokenizers, {name}, {mode}", texts, ours.ids(path, *options), theirs)
    if name in ("gpt2", "llama3", "o200k"):
        assert ours.comes_back(path), f"{name}: a text comes back as another"


def compare_tiktoken(what, path, encoding, texts, ours):
    check(f"tiktoken, {what}, plain", texts, ours.ids(path), encoding.encode_batch(texts, allowed_special="all"))
    check(f"tiktoken, {what}, no-special", texts, ours.ids(path, "--no-special"), encoding.encode_ordinary_batch(texts))


def added_tokens(draw, string):
    """A byte-level tokenizer without merges, with random added tokens."""
    names = pre_tokenizers.ByteLevel.alphabet()
    t = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(names))}, merges=[]))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=draw.random() < 0.3)
    t.normalizer = normalizers.NFC() if draw.random() < 0.3 else None
    for _ in range(draw.randint(1, 6)):
        content = string(1, 3) if draw.random() < 0.7 else draw.choice(["<a>", "ab", " a", "a "])
        flag = {name: draw.random() < p for name, p in (("lstrip", 0.5), ("rstrip", 0.5), ("single_word", 0.2),
                                                        ("normalized", 0.4))}
        add = t.add_special_tokens if draw.random() < 0.3 else t.add_tokens
        add([AddedToken(content + content if content in names else content, **flag)])
    return t


def compare_added(program, folder, rounds, texts_of_each):
    draw = random.Random(3)
    path, failed, compared = os.path.join(folder, "added.json"), 0, 0

    def string(least, most):
        return "".join(draw.choice(" \t\n\u00a0ab_.\u3000") for _ in range(draw.randint(least, most)))

    for number in range(rounds):
        added_tokens(draw, string).save(path)
        t = Tokenizer.from_file(path)
        texts = [string(0, 14) + draw.choice(["", "<a>", " <a> "]) + string(0, 6) for _ in range(texts_of_each)]
        ours = Ours(program, texts, folder)
        for special, options in ((False, []), (True, ["--no-special"])):
            t.encode_special_tokens = special
            for text, have in zip(texts, ours.ids(path, *options)):
                try:
                    want = t.encode(text).ids
                except BaseException:  # pyo3's PanicException
                    failed += 1
                    continue
                compared += 1
                if have != want:
                    sys.exit(f"added tokens, {number}{options}: {have}, the reference {want}: {text!r}; {path}")
    print(f"added tokens: {compared} texts are equal; the reference failed on {failed}")


def write_ranks(path, ranks):
    with open(path, "wb") as file:
        for token, rank in sorted(ranks.items(), key=lambda pair: pair[1]):
            file.write(base64.b64encode(token) + b" %d\n" % rank)


def compare_rank_files(folder, vocab, corpus, texts, ours):
    """Rank files of the sizes that say gpt2 and Llama 3."""
    pairs = [bytes([b]) for b in range(256)] + [bytes([i // 256, i % 256]) for i in range(50256 - 256)]
    path, ranks = os.path.join(folder, "pairs.tiktoken"), {token: i for i, token in enumerate(pairs)}
    write_ranks(path, ranks)
    compare_tiktoken("a rank file of gpt2's size", path, tiktoken.Encoding(
        "pairs", pat_str=GPT2, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256}), texts, ours)
    if vocab != 128000:
        print("tiktoken, a rank file of Llama 3's size: skipped, it needs --vocab 128000")
        return
    t = make.trained(make.byte_level(make.LLAMA3), vocab, corpus, [])
    path, ranks = os.path.join(folder, "llama3.tiktoken"), ranks_of(json.loads(t.to_str()))
    if len(ranks) != vocab:
        sys.exit(f"the text gives only {len(ranks)} words of {vocab}: name more text with --text")
    write_ranks(path, ranks)
    compare_tiktoken("a rank file of Llama 3's size", path, tiktoken.Encoding(
        "ranks", pat_str=make.LLAMA3, mergeable_ranks=ranks,
        special_tokens={"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001, "<|eot_id|>": 128009}), texts, ours)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--out", default=".")
    parser.add_argument("--vocab", type=int, default=1200)
    parser.add_argument("--text", nargs="*", default=[])
    parser.add_argument("--strings", type=int, default=make.STRINGS)
    parser.add_argument("--all-code-points", action="store_true")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    print(f"tokenizers {tokenizers.__version__}, tiktoken {importlib.metadata.version('tiktoken')}, {options.vocab} words")
    corpus, pool, prose = make.corpus(options.text)
    texts = [make.draw_text(i, pool, prose) for i in range(options.strings)]
    texts.append("".join(texts))
    if options.all_code_points:
        texts += code_points()
    ours = Ours(options.program, texts, options.out)
    regexes = {"gpt2": GPT2, "llama3": make.LLAMA3, "o200k": make.O200K}
    for name, t in make.make_all(options.vocab, corpus):
        path = os.path.join(options.out, name + ".json")
        with open(path, "w", encoding="utf-8") as file:
            file.write(make.old_merges(t) if name == "gpt2" else t.to_str())
        compare_tokenizers(name, path, texts, ours)
        if name in regexes:
            spec = json.loads(t.to_str())
            compare_tiktoken(name, path, tiktoken.Encoding(
                name, pat_str=regexes[name], mergeable_ranks=ranks_of(spec),
                special_tokens={token["content"]: token["id"] for token in spec["added_tokens"]}), texts, ours)
    compare_rank_files(options.out, options.vocab, corpus, texts, ours)
    compare_added(options.program, options.out, 40, 100)


main()
