"""A GPT-2 small enough to sweep in a second: random weights, a token for each byte."""

import array
import json
import random
import struct

WIDTH, HEADS, LAYERS, POSITIONS, VOCABULARY = 16, 2, 3, 64, 256


def write_safetensors(path, tensors):
    """tensors: {name: (shape, array of float32)}."""
    header, at = {}, 0
    for name, (shape, values) in tensors.items():
        size = 4 * len(values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            file.write(values.tobytes())


def byte_characters():
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_in, spare = {}, 256
    for byte in range(256):
        stand_in[byte] = chr(byte if byte in printable else spare)
        spare += byte not in printable
    return stand_in


def write_model(folder):
    chance = random.Random(1)

    def normal(*shape, scale=0.3):
        count = 1
        for side in shape:
            count *= side
        return list(shape), array.array("f", (chance.gauss(0, scale) for _ in range(count)))

    def constant(value, size):
        return [size], array.array("f", [value] * size)

    tensors = {"wte.weight": normal(VOCABULARY, WIDTH), "wpe.weight": normal(POSITIONS, WIDTH)}
    for layer in range(LAYERS):
        at = f"h.{layer}."
        for norm in ("ln_1", "ln_2"):
            tensors[at + norm + ".weight"] = constant(1, WIDTH)
            tensors[at + norm + ".bias"] = constant(0, WIDTH)
        tensors[at + "attn.c_attn.weight"] = normal(WIDTH, 3 * WIDTH)
        tensors[at + "attn.c_attn.bias"] = constant(0, 3 * WIDTH)
        tensors[at + "attn.c_proj.weight"] = normal(WIDTH, WIDTH)
        tensors[at + "attn.c_proj.bias"] = constant(0, WIDTH)
        tensors[at + "mlp.c_fc.weight"] = normal(WIDTH, 4 * WIDTH)
        tensors[at + "mlp.c_fc.bias"] = constant(0, 4 * WIDTH)
        tensors[at + "mlp.c_proj.weight"] = normal(4 * WIDTH, WIDTH)
        tensors[at + "mlp.c_proj.bias"] = constant(0, WIDTH)
    tensors["ln_f.weight"] = constant(1, WIDTH)
    tensors["ln_f.bias"] = constant(0, WIDTH)
    folder.mkdir(parents=True)
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": WIDTH,
        "n_head": HEADS, "n_layer": LAYERS, "n_positions": POSITIONS, "vocab_size": VOCABULARY,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "n_inner": None,
        "scale_attn_weights": True, "tie_word_embeddings": True}))
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [], "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "vocab": {c: byte for byte, c in byte_characters().items()}, "merges": []}}))
