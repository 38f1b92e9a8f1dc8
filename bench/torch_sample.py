#!/usr/bin/env python3
"""Greedy generation of one text with transformers on one core: bench/sample.sh compares with it.

Prints the milliseconds a token from the difference of a long and a short text.
PyTorch and transformers: python3 -m venv DIR && DIR/bin/pip install torch transformers
"""
import sys
import time

import torch
import transformers

folder, precision, short, long = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
dtype = torch.bfloat16 if precision == "bf16" else torch.float32
model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
prompt = torch.tensor([[84, 104, 101, 32]])


def seconds(tokens):
    begin = time.perf_counter()
    with torch.inference_mode():
        text = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, min_new_tokens=tokens,
                              max_new_tokens=tokens, pad_token_id=0)
    assert text.shape[1] == prompt.shape[1] + tokens
    return time.perf_counter() - begin


seconds(short)
print("%.2f ms a token" % ((seconds(long) - seconds(short)) / (long - short) * 1e3))
