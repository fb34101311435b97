#!/usr/bin/env python3
"""Perplexity over windows of token ids: export_peers.py hf|gguf MODEL IDS_JSON WINDOW WINDOWS"""

import ctypes
import json
import sys

import numpy as np


def losses(logits, targets):
    """logits [T, vocab], targets [T]: negative log-probabilities in float64."""
    logits = logits.astype(np.float64)
    top = logits.max(axis=1)
    log_sum = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    return log_sum - logits[np.arange(len(targets)), targets]


def with_transformers(path):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()

    def logits(window):
        with torch.no_grad():
            return model(torch.tensor([window])).logits[0].numpy()

    return logits


def with_llama_cpp(path, length):
    import llama_cpp as L

    L.llama_backend_init()
    model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
    params = L.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = length
    params.n_threads = params.n_threads_batch = 2
    params.type_k = params.type_v = 0  # float32, not half
    if hasattr(params, "flash_attn_type"):
        params.flash_attn_type = 0
    context = L.llama_init_from_model(model, params)
    vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(model))

    def logits(window):
        L.llama_memory_clear(L.llama_get_memory(context), True)
        batch = L.llama_batch_init(len(window), 0, 1)
        batch.n_tokens = len(window)
        for i, token in enumerate(window):
            batch.token[i] = token
            batch.pos[i] = i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = True
        assert L.llama_decode(context, batch) == 0
        out = np.ctypeslib.as_array(ctypes.cast(L.llama_get_logits(context), ctypes.POINTER(ctypes.c_float)),
                                    (len(window), vocab)).copy()
        L.llama_batch_free(batch)
        return out

    return logits


def main():
    kind, path, ids_path, window, windows = sys.argv[1:]
    window, windows = int(window), int(windows)
    ids = json.load(open(ids_path))["ids"]
    run = with_transformers(path) if kind == "hf" else with_llama_cpp(path, window)
    total, count = 0.0, 0
    for w in range(windows):
        part = ids[w * window:(w + 1) * window]
        each = losses(run(part)[:-1], np.array(part[1:]))
        total, count = total + each.sum(), count + len(each)
    print(repr(float(np.exp(total / count))))


main()
