"""A language model from transformers: generate() goes on working, with its cache.

A tiny GPT-2 with random weights; GPT2LMHeadModel.from_pretrained("gpt2") takes its place without another change.
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import onespike

torch.manual_seed(0)
config = GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=100, bos_token_id=0, eos_token_id=99)
model = GPT2LMHeadModel(config).eval()
tokens = torch.randint(0, 99, (4, 12))

thresholds = onespike.calibrate(model, [{"input_ids": tokens}])
snn = onespike.convert(model, thresholds)
for row in onespike.table(snn):
    print(f"{row['site']:<45} {row['neuron']}")
written = snn.generate(tokens[:1], max_new_tokens=5, do_sample=False, pad_token_id=99)
print(written[0].tolist())
