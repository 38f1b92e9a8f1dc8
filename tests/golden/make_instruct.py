#!/usr/bin/env python3
"""Writes small tokenizers with chat templates, conversations, and their tokens and answers by transformers.

usage: make_instruct.py [--out FOLDER]

Needs the packages transformers and tokenizers (5.24.0 and 0.23.3 made the files in instruct/).
unit.test_instruct compares them: each line of FOLDER/KIND/ids has the tokens of one conversation of
conversations.jsonl, those of answers with a + behind them.
"""
import argparse, json, os
import tokenizers, transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
import make_tokenizers as make

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['role'] == 'assistant' %}"
          "{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}"
          "{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
HEADERS = ("{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' }}"
           "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] | trim + '<|eot_id|>' }}{% endgeneration %}"
           "{% else %}{{ m['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}")
OWN = [
    {"messages": [{"role": "user", "content": "Count: 1, 22, 12345"}, {"role": "assistant", "content": "  1\n\t22\n 12345  "}]},
    {"messages": [{"role": "user", "content": "\u0422\u0440\u0438\u0435\u0440\u0430?"}, {"role": "assistant", "content": "\u0426\u0435 \u043a\u043e\u0440\u0430\u0431\u0435\u043b\u044c \U0001f6a2 \u2013 \u6f15\u8239"}]},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say nothing."},
                  {"role": "assistant", "content": ""}, {"role": "user", "content": "Thanks."}]},
    {"messages": [{"role": "assistant", "content": "I begin: \"x\\y\" {a: [1]} \u0007"}, {"role": "user", "content": "'s it's"},
                  {"role": "assistant", "content": "def f(x):\n    return x\r\n\r\n# end\n"}]},
    {"prompt": "2 + 2 =", "answer": " 4"},
    {"messages": [{"role": "user", "content": "\u3000\u8239\u306f\uff1f\u00a0"},
                  {"role": "assistant", "content": "\u2003\x1f\u6f15\u3050\x1c\u3000\u2028"}]},
]


def trained(kind, texts, special, begin):
    if kind in ("metaspace", "prepend"):
        t = make.sentencepiece(640, texts, kind == "metaspace")
        t.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
        return t
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=380, special_tokens=["<|endoftext|>"], show_progress=False,
                                                     initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    if begin:
        t.post_processor = processors.TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, t.token_to_id(begin))])
    return t


def messages_of(line):
    if "messages" in line:
        return line["messages"]
    if "conversations" in line:
        roles = {"human": "user", "gpt": "assistant"}
        return [{"role": roles.get(m["from"], m["from"]), "content": m["value"]} for m in line["conversations"]]
    return [{"role": "user", "content": line["prompt"]}, {"role": "assistant", "content": answer_of(line)}]


def answer_of(line):
    return next(line[key] for key in ("answer", "completion", "response") if key in line)


def tokens_of(t, line, templated):
    if templated:
        out = t.apply_chat_template(messages_of(line), tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        return out["input_ids"], out["assistant_masks"]
    given, learned = t(line["prompt"])["input_ids"], t(answer_of(line), add_special_tokens=False)["input_ids"] + [t.eos_token_id]
    return given + learned, [0] * len(given) + [1] * len(learned)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(HERE, "instruct"))
    options = parser.parse_args()
    with open(os.path.join(HERE, "../../examples/instruct.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file] + OWN
    texts = [m["content"] for line in lines for m in messages_of(line)] + [open(os.path.join(HERE, "../data/devil.txt"), encoding="ascii").read()]
    kinds = {"chatml": (["<|im_start|>", "<|im_end|>"], None, CHATML),
             "llama3": (["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], "<|begin_of_text|>", HEADERS),
             "metaspace": (["<|im_start|>", "<|im_end|>"], None, CHATML),
             "prepend": (["<|im_start|>", "<|im_end|>"], None, CHATML),
             "plain": (["<|begin_of_text|>"], "<|begin_of_text|>", None)}
    for kind, (special, begin, template) in kinds.items():
        folder = os.path.join(options.out, kind)
        os.makedirs(folder, exist_ok=True)
        spec = json.dumps(json.loads(trained(kind, texts, special, begin).to_str()), ensure_ascii=False, separators=(",", ":"))
        with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
            file.write(spec)
        t = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(spec), bos_token=begin, eos_token="<|endoftext|>" if "<|endoftext|>" in spec else "</s>")
        t.chat_template = template
        if template == CHATML:
            with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
                json.dump({"chat_template": template, "eos_token": "<|im_end|>"}, file)
        elif template:
            with open(os.path.join(folder, "chat_template.jinja"), "w", encoding="utf-8") as file:
                file.write(template)
        kept = [line for line in lines if template or "prompt" in line]
        with open(os.path.join(folder, "conversations.jsonl"), "w", encoding="utf-8") as file:
            for i, line in enumerate(kept):
                file.write(json.dumps(line, ensure_ascii=i % 2 == 0) + "\n")
        with open(os.path.join(folder, "ids"), "w", encoding="utf-8") as file:
            for line in kept:
                ids, mask = tokens_of(t, line, template)
                file.write(" ".join(f"{i}{'+' if m else ''}" for i, m in zip(ids, mask)) + "\n")
        print(kind, t.vocab_size, "transformers", transformers.__version__, "tokenizers", tokenizers.__version__)


main()
