#!/usr/bin/env python3
"""Trains tokenizers with the reference library and writes them with the ids of random texts.

usage: make_tokenizers.py [--out FOLDER] [--vocab N] [--text FILE ...]

Needs the package tokenizers (0.23.3 made the files in tokenizers/). unit.test_tokenizer draws the same
texts (the fragments and the generator are the same) and compares the ids, also of all texts in one
piece, which are 1 MB. compare_tokenizers.py compares with the installed libraries instead. With --vocab 128000 and
larger texts, into another folder, the test reads that folder: TRIREME_GOLDEN_TOKENIZERS=FOLDER.
"""
import argparse, json, os, random, struct, unicodedata
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
STRINGS, GROUP, FULL = 10000, 20, 10
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = LLAMA3.replace("{1,3}", "")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
SCRIPTS = [(0xC0, 0x17F), (0x391, 0x3C9), (0x410, 0x44F), (0x561, 0x586), (0x5D0, 0x5EA), (0x620, 0x64A), (0x905, 0x94D),
           (0x985, 0x9CD), (0xB85, 0xBCD), (0xC05, 0xC4D), (0xE01, 0xE4C), (0xF40, 0xF84), (0x10D0, 0x10FA), (0x1100, 0x11C2),
           (0x1200, 0x1248), (0x13A0, 0x13EF), (0x1780, 0x17D3), (0x1820, 0x1842), (0x3041, 0x3096), (0x30A1, 0x30FA),
           (0x4E00, 0x4F00), (0xAC00, 0xAE00), (0x1D400, 0x1D430), (0x1F600, 0x1F64F)]
# The white space of Unicode, and characters that other languages take for white space.
SPACES = [9, 10, 11, 12, 13, 0x1C, 0x1D, 0x1E, 0x1F, 0x20, 0x85, 0xA0, 0x1680, 0x180E, *range(0x2000, 0x200C), 0x2028, 0x2029,
          0x202F, 0x205F, 0x2060, 0x3000, 0xFEFF]
PIECES = ["'s", "'S", "'\u017f", "'ll", "'LL", "'Re", "'vE", "'d", "'", "\r\n", "\n\n", "\r", "  ", "   ", "        ", "\t\t",
          "<|endoftext|>", "<|x|>", "<|xy|>", "<strip>", "<str", "w\u00f6rd", "ABC\u00e9", "ABCe\u0301", "\u00e9q", "plain",
          "\u00e9", "e\u0301", "\u212b", "\u00bd", "\u00b2", "\u0663", "1234", "1", "22", "\u2177",
          "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f3f3\ufe0f\u200d\U0001f308", "\U0001f44d\U0001f3fd", "\u02bc", "/", "//\n", "\ud55c",
          "\u1112", "\u1161", "\u11ab", "\u0345\u0300\u0323", "A", "b", "Ab", "aB", "\u01c5", "\u00aab", "\u1c89", "\U00011380",
          "1\ufe0f\u20e3", "\U0001f1e9\U0001f1ea", "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
          "\u2764\ufe0f", "\U0002ebf0", "\x00", "\x01", "\x08", "\x1b", "\x7f", "\x80", "\x9f",
          "\u2581", "<0x0A>", "<s>", "</s>", "the ", "The ", "ing", "HTTPServer", "don't",
          "a=b;", "{}", "http://x.y/z?a=1&b=2", "\ufffd", "\ufb01", "\u0958", "\u2000", "\u1e9b\u0323"]


def fragments():
    draw = random.Random(7)
    out = [chr(c) for c in SPACES] + PIECES
    for first, last in SCRIPTS:
        letters = [chr(c) for c in range(first, last + 1) if unicodedata.category(chr(c)) != "Cn"]
        out += ["".join(draw.choice(letters) for _ in range(draw.randint(1, 7))) for _ in range(8)]
    return out


class Draw:
    """The generator of tests/unit/support/seed.h."""

    def __init__(self, seed):
        self.state = seed

    def up_to(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % n + 1


def draw_text(number, pool, prose):
    d, out = Draw(number), []
    for _ in range(d.up_to(24) - 1):
        kind = d.up_to(10)
        if kind <= 2:
            out.append(pool[d.up_to(len(SPACES)) - 1] * d.up_to(3))
        elif kind <= 7:
            out.append(pool[d.up_to(len(pool)) - 1])
        elif kind == 8:
            c = d.up_to(0x10FFFF)
            out.append(chr(c if not 0xD800 <= c < 0xE000 else c - 0x800))
        else:
            at = d.up_to(len(prose) - 40) - 1
            out.append(prose[at:at + d.up_to(40)])
    return "".join(out)


def fnv(ids, state):
    for value in [len(ids), *ids]:
        state = ((state ^ value) * 0x100000001B3) % 2**64
    return state


def byte_level(regex):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def trained(pre, vocab, texts, special=("<|endoftext|>",), ignore_merges=False):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab, special_tokens=list(special), show_progress=False,
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def frame(token, number):
    return processors.TemplateProcessing(single=f"{token} $A", special_tokens=[(token, number)])


def sentencepiece(vocab, texts, metaspace):
    t = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if metaspace:
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    words = [" " + word for text in texts for word in text.split()]
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    t.train_from_iterator(words, trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, show_progress=False, limit_alphabet=300))
    spec = json.loads(t.to_str())
    spec["added_tokens"] = spec["added_tokens"][:3]
    t = Tokenizer.from_str(json.dumps(spec))
    t.post_processor = frame("<s>", 1)
    return t


def old_merges(t):
    """The file with merges as older versions wrote them: "a b"."""
    spec = json.loads(t.to_str())
    spec["model"]["merges"] = [" ".join(pair) for pair in spec["model"]["merges"]]
    return json.dumps(spec, ensure_ascii=False, separators=(",", ":"))


def make_all(vocab, texts):
    yield "gpt2", trained(pre_tokenizers.ByteLevel(add_prefix_space=False), vocab, texts)
    llama = trained(byte_level(LLAMA3), vocab, texts, ["<|begin_of_text|>", "<|end_of_text|>"], ignore_merges=True)
    llama.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), frame("<|begin_of_text|>", 0)])
    yield "llama3", llama
    qwen = trained(byte_level(QWEN), vocab, texts)
    qwen.normalizer = normalizers.NFC()
    qwen.add_tokens([AddedToken("w\u00f6rd", single_word=True), AddedToken("<strip>", lstrip=True, rstrip=True),
                     AddedToken("<str", rstrip=True), AddedToken("ABC\u00e9", normalized=True),
                     AddedToken("e\u0301q", normalized=True), AddedToken("plain", normalized=False)])
    qwen.add_special_tokens([AddedToken("<|x|>", lstrip=True), AddedToken("<|xy|>", single_word=True)])
    yield "qwen", qwen
    yield "o200k", trained(byte_level(O200K), vocab, texts)
    yield "prefix", trained(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                     pre_tokenizers.ByteLevel(add_prefix_space=True)]), vocab, texts)
    yield "llama2", sentencepiece(vocab, texts, False)
    yield "metaspace", sentencepiece(vocab, texts, True)


def corpus(paths):
    """Returns the texts to train on, with the files of `paths`, and what draw_text draws from."""
    prose = open(os.path.join(HERE, "../data/devil.txt"), encoding="ascii", newline="").read()
    pool = fragments()
    texts = [prose, " ".join(pool[len(SPACES) + len(PIECES):] * 20)]
    return texts + [open(path, "rb").read().decode("utf-8", "replace") for path in paths], pool, prose


def word_hash(step):
    """Returns a hash of the code points that do not cut a word; test_tokenizer_golden.c has the hashes."""
    state = 0xCBF29CE484222325
    for cp in [*range(0x80, 0xD800), *range(0xE000, 0x110000)]:
        joins = len(step.pre_tokenize_str("a" + chr(cp) + "a")) == 1
        state = (state ^ joins) * 0x100000001B3 % 2**64
    return state


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(HERE, "tokenizers"))
    parser.add_argument("--vocab", type=int, default=1200)
    parser.add_argument("--text", nargs="*", default=[])
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    texts, pool, prose = corpus(options.text)
    with open(os.path.join(options.out, "fragments.bin"), "wb") as file:
        for text in pool:
            file.write(struct.pack("<H", len(text.encode())) + text.encode())
    strings = [draw_text(i, pool, prose) for i in range(STRINGS)]
    for name, t in make_all(options.vocab, texts):
        spec = old_merges(t) if name == "gpt2" else json.dumps(json.loads(t.to_str()), ensure_ascii=False, separators=(",", ":"))
        with open(os.path.join(options.out, name + ".json"), "w", encoding="utf-8") as file:
            file.write(spec)
        t = Tokenizer.from_str(spec)
        with open(os.path.join(options.out, name + ".ids"), "w") as file:
            file.write(f"tokenizers {tokenizers.__version__}\n")
            for mode, special, template in (("plain", False, False), ("template", False, True), ("no-special", True, False)):
                t.encode_special_tokens = special
                ids = [e.ids for e in t.encode_batch(strings, add_special_tokens=template)]
                for i in range(FULL if mode == "plain" else 0):
                    file.write(" ".join(map(str, ["ids", len(ids[i]), *ids[i]])) + "\n")
                for i in range(0, STRINGS, GROUP):
                    state = 0xCBF29CE484222325
                    for k in range(i, i + GROUP):
                        state = fnv(ids[k], state)
                    file.write(f"{state:016x}\n")
                    if mode != "plain" and i >= 40 * GROUP:
                        break
            t.encode_special_tokens = False
            whole = t.encode("".join(strings), add_special_tokens=False).ids
            file.write(f"{fnv(whole, 0xCBF29CE484222325):016x}\n")
        print(name, t.get_vocab_size())
    steps = [pre_tokenizers.Whitespace(), pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(), pre_tokenizers.Punctuation(),
             *(pre_tokenizers.Split(Regex(r), "isolated") for r in (r"\w+", r"[\w]+", r"\W+"))]
    for step in steps:
        print(step, f"{word_hash(step):016x}")


if __name__ == "__main__":
    main()
