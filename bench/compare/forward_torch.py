"""One forward pass of 512 tokens with transformers: {"tokens_per_s": ...}.

python forward_torch.py HF_DIRECTORY f32|bf16 [tokens] [threads] [repetitions]
"""

import json
import statistics
import sys
import time

import torch
from transformers import AutoModelForCausalLM

path, dtype = sys.argv[1], sys.argv[2]
tokens, threads, repetitions = (int(a) for a in (sys.argv[3:] + ["512", "2", "7"][len(sys.argv) - 3 :]))
torch.set_num_threads(threads)
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32 if dtype == "f32" else torch.bfloat16).eval()
ids = torch.tensor([[(i * 7919) % (model.config.vocab_size - 10) for i in range(tokens)]])
seconds = []
with torch.no_grad():
    for _ in range(repetitions + 1):
        start = time.perf_counter()
        logits = model(ids, use_cache=False).logits[0, :-1]
        torch.nn.functional.cross_entropy(logits.float(), ids[0, 1:], reduction="none")
        seconds.append(time.perf_counter() - start)
print(json.dumps({"dtype": dtype, "tokens_per_s": tokens / statistics.median(seconds[1:])}))
