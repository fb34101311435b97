"""Greedy continuations of SmolLM2-135M-Instruct by transformers in float32: tests/fixtures/generate/smollm2.json.

python make_generate_fixtures.py HF_DIRECTORY

HF_DIRECTORY holds the weights of the GGUF file that scripts/get-smollm2.sh fetches, dequantised to float32
(AutoModelForCausalLM.from_pretrained(..., gguf_file=...).save_pretrained(...)). `margin` is the smallest lead of the best
logit over the second at any step: a test that rounds differently may part from these ids only where it is tiny.
"""

import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = [
    "The lighthouse keeper climbed the stairs every evening, and",
    "<|im_start|>user\nExplain why the sky is blue.<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "In 1867 the committee published a report on the state of the canals, which said that",
    "Ingredients: 200 g flour, 3 eggs, 100 ml milk. Method:",
]
TOKENS = 200

path = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
cases = []
for prompt in PROMPTS:
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    out = []
    margin = float("inf")
    cache = None
    step = torch.tensor([ids])
    with torch.no_grad():
        for _ in range(TOKENS):
            result = model(step, past_key_values=cache, use_cache=True)
            cache = result.past_key_values
            best = torch.topk(result.logits[0, -1], 2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            out.append(int(best.indices[0]))
            step = torch.tensor([[out[-1]]])
    print(len(ids), margin, repr(tokenizer.decode(out))[:100], flush=True)
    cases.append({"prompt": ids, "continuation": out, "margin": round(margin, 6)})
target = pathlib.Path(__file__).parent.parent / "fixtures" / "generate" / "smollm2.json"
target.parent.mkdir(exist_ok=True)
with open(target, "w") as file:
    file.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
