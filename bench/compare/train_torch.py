"""Training steps of 512 tokens with transformers and torch.optim.AdamW.

python train_torch.py HF_DIRECTORY f32|bf16 [tokens] [threads] [steps]

bf16 is torch.autocast: float32 weights, bfloat16 products, as halflin's. Prints
{"tokens_per_s": median over steps without the first two, "peak_bytes": ...}.
"""

import json
import resource
import statistics
import sys
import time

import torch
from transformers import AutoModelForCausalLM

path, dtype = sys.argv[1], sys.argv[2]
tokens, threads, steps = (int(a) for a in (sys.argv[3:] + ["512", "2", "6"][len(sys.argv) - 3 :]))
torch.set_num_threads(threads)
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01)
ids = torch.tensor([[(i * 7919) % (model.config.vocab_size - 10) for i in range(tokens)]])
seconds = []
for _ in range(steps):
    start = time.perf_counter()
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
        loss = model(ids, labels=ids, use_cache=False).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    seconds.append(time.perf_counter() - start)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"tokens_per_s": tokens / statistics.median(seconds[2:]), "peak_bytes": peak}))
