"""llama.cpp, driven through llama-cpp-python.

python llama_bench.py quantize FROM.gguf TO.gguf f32|f16|bf16|q8_0|q4_0
    writes FROM in another format
python llama_bench.py bench MODEL.gguf [prompt] [generate] [depth] [threads] [repetitions]
    prints {"prefill_tokens_per_s": ..., "decode_tokens_per_s": ...}, medians; decoding begins with `depth` tokens of the
    prompt in the cache; nothing is sampled on either side
"""

import ctypes
import json
import statistics
import sys
import time

import llama_cpp as llama

FORMATS = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 7, "bf16": 32}  # llama_ftype


def quantize(source, target, name):
    params = llama.llama_model_quantize_default_params()
    params.ftype = FORMATS[name]
    params.allow_requantize = True
    if llama.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params)) != 0:
        sys.exit(f"{source}: llama.cpp could not write it as {name}")


def bench(path, prompt=512, generate=96, depth=512, threads=2, repetitions=3):
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    params = llama.llama_context_default_params()
    params.n_ctx = prompt + generate + 8
    params.n_batch = params.n_ubatch = prompt
    params.n_threads = params.n_threads_batch = threads
    context = llama.llama_init_from_model(model, params)
    memory = llama.llama_get_memory(context)
    ids = [(i * 7919 + 10) % vocab for i in range(prompt + generate)]

    def decode(tokens):
        array = (llama.llama_token * len(tokens))(*tokens)
        if llama.llama_decode(context, llama.llama_batch_get_one(array, len(tokens))) != 0:
            sys.exit(f"{path}: llama_decode failed")
        llama.llama_synchronize(context)

    prefill, single = [], []
    for repetition in range(repetitions + 1):
        llama.llama_memory_clear(memory, True)
        start = time.perf_counter()
        decode(ids[:prompt])
        prefill.append(time.perf_counter() - start)
        llama.llama_memory_clear(memory, True)
        if depth > 0:
            decode(ids[:depth])
        start = time.perf_counter()
        for i in range(generate):
            decode([ids[depth + i]])
        single.append(time.perf_counter() - start)
    print(
        json.dumps(
            {
                "prefill_tokens_per_s": prompt / statistics.median(prefill[1:]),
                "decode_tokens_per_s": generate / statistics.median(single[1:]),
            }
        )
    )


if __name__ == "__main__":
    llama.llama_backend_init()
    if sys.argv[1] == "quantize":
        quantize(*sys.argv[2:5])
    else:
        bench(sys.argv[2], *(int(a) for a in sys.argv[3:]))
