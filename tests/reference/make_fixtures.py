#!/usr/bin/env python3
"""Makes the fixtures under tests/fixtures with PyTorch: tiny random models and quantised blocks, with what they must give.

    python3 -m venv venv && venv/bin/pip install -r tests/reference/requirements.txt
    venv/bin/python tests/reference/make_fixtures.py            # all of them; or --only llama_gqa quants

models/<name>/        config.json and model.safetensors (or two shards and an index), or model.gguf
    expected.safetensors   of one forward pass in float32 with eager attention on the weights as stored:
        input_ids     float32 [T], whole numbers
        logits        float32 [T, vocab]
      and, in those of HOOKED, to find where a difference begins:
        mlp_in.<l>    float32 [T, d]   output of the norm before layer l's MLP
        mlp_out.<l>   float32 [T, d]   the MLP's output, before it is added to the residual stream
        resid_final   float32 [T, d]   the residual stream that enters the final norm
quants/<TYPE>.safetensors   bytes uint8 [n blocks x block size], expected float32 [n values]

Weights are far larger than a usual initialisation, norms are not 1 and biases not 0, so that a swapped, transposed or
forgotten tensor moves the logits. Everything follows from the fixture's name, so one can be remade alone.
"""

import argparse
import json
import shutil
import zlib
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

ROOT = Path(__file__).resolve().parents[1] / "fixtures"
T = 37  # positions: prime, so no tile or vector width divides it

FAMILIES = {
    "gpt2": (GPT2Config, GPT2LMHeadModel),
    "neox": (GPTNeoXConfig, GPTNeoXForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
}

# ---------------------------------------------------------------------------------------------------------------------
# What is made. A name's first word is its family; its entry overrides the family's base. Where a base has an unusual
# value (eps 1e-3), it is so that a default used in its place moves the logits.

BASE = {
    "gpt2": dict(
        vocab_size=37,
        n_embd=24,
        n_layer=1,
        n_head=4,
        n_inner=29,
        n_positions=37,
        layer_norm_epsilon=1e-3,
        bos_token_id=0,
        eos_token_id=0,
    ),
    "neox": dict(
        vocab_size=37,
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=29,
        max_position_embeddings=48,
        layer_norm_eps=1e-3,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5),
        bos_token_id=0,
        eos_token_id=0,
    ),
    "llama": dict(
        vocab_size=37,
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=25,
        max_position_embeddings=48,
        rms_norm_eps=1e-3,
    ),
}
BASE["mistral"] = dict(BASE["llama"], sliding_window=8)  # shorter than T


def rope(kind, theta=10000.0, **more):
    """One `rope_parameters` entry, as transformers 5 spells it."""
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=theta, **more))


def neox_rope(pct, theta=10000.0):
    return rope("default", theta, partial_rotary_factor=pct)


MODELS = {
    "gpt2_base": dict(n_layer=2, n_inner=None, layer_norm_epsilon=1e-5),
    "gpt2_inner_one_layer": dict(vocab_size=257, n_inner=35),
    "gpt2_head12": dict(n_embd=36, n_head=3),
    "gpt2_head7_relu": dict(n_embd=28, activation_function="relu"),
    "gpt2_exact_gelu": dict(activation_function="gelu"),
    "gpt2_inverse_layer_scale": dict(scale_attn_by_inverse_layer_idx=True, n_layer=2),
    "gpt2_untied_unscaled": dict(tie_word_embeddings=False, scale_attn_weights=False),
    # head 16, of which 4 rotate, as in Pythia
    "neox_base": dict(hidden_size=32, num_hidden_layers=2, intermediate_size=36, **neox_rope(0.25)),
    "neox_odd": dict(hidden_size=28, num_attention_heads=4, **neox_rope(0.6)),
    "neox_full_rotary_tanh": dict(
        hidden_size=30, num_attention_heads=3, hidden_act="gelu_new", **neox_rope(1.0, 500.0)
    ),
    "neox_sequential": dict(use_parallel_residual=False),
    "neox_tied_no_attention_bias": dict(tie_word_embeddings=True, attention_bias=False),
    "llama_gqa": dict(num_hidden_layers=2),
    "llama_mha_tied": dict(num_key_value_heads=4, tie_word_embeddings=True, num_hidden_layers=2),
    "llama_mqa_theta": dict(num_key_value_heads=1, **rope("default", 123.0)),
    "llama_odd": dict(hidden_size=30, num_attention_heads=5, num_key_value_heads=1, intermediate_size=27),
    "llama_head_dim": dict(head_dim=10),  # 4 x 10 is not 24
    "llama_biases": dict(mlp_bias=True, attention_bias=True),
    # original_max_position_embeddings puts the wavelengths of head 6 in all three bands.
    "llama_rope_llama3": dict(
        max_position_embeddings=128,
        **rope(
            "llama3",
            theta=500.0,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    "llama_rope_linear": rope("linear", factor=2.5),
    # T exceeds max_position_embeddings, where dynamic scaling begins.
    "llama_rope_dynamic": dict(max_position_embeddings=16, **rope("dynamic", factor=2.0)),
    "llama_rope_yarn": dict(
        max_position_embeddings=64, **rope("yarn", factor=4.0, original_max_position_embeddings=16)
    ),
    "mistral_window": dict(head_dim=10, num_hidden_layers=2),
    "mistral_no_window": dict(sliding_window=None),
}

# Where the tensors inside a layer are kept too; the others hold input_ids and logits only, to stay small.
HOOKED = {
    "gpt2_base",
    "gpt2_head7_relu",
    "neox_base",
    "neox_odd",
    "neox_sequential",
    "llama_gqa",
    "llama_head_dim",
    "mistral_window",
}

STORED_AS = {"llama_mha_tied": torch.bfloat16, "gpt2_head12": torch.float16}

# Copies of a fixture in another form, which must give the same logits.
OLD_SPELLING = {  # config.json as transformers 4 wrote it
    "gpt2_old_config": "gpt2_exact_gelu",
    "neox_old_config": "neox_odd",
    "llama_old_config": "llama_rope_llama3",
    "llama_old_config_linear": "llama_rope_linear",  # scaling in the oldest spelling, "type"
}
SHARDED = {"llama_sharded": "llama_gqa"}
GGUF = {"llama_gguf": "llama_gqa", "gpt2_gguf": "gpt2_base", "neox_gguf": "neox_base"}

QUANTS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16"]


def seed_of(name):
    return zlib.crc32(name.encode())


# ---------------------------------------------------------------------------------------------------------------------
# Hugging Face checkpoints


def randomise(model, generator):
    """Weights and biases N(0, 0.2^2), norm weights N(1, 0.2^2).

    GELU's input is shifted to about -2 and its output weighs more: the tanh form and the exact one differ most there, and
    the logits then tell one from the other.
    """
    for name, p in sorted(model.named_parameters()):
        noise = torch.randn(p.shape, generator=generator)
        if name.endswith(("mlp.c_fc.bias", "mlp.dense_h_to_4h.bias")):
            p.data.copy_(0.2 * noise - 2)
        elif name.endswith(("mlp.c_proj.weight", "mlp.dense_4h_to_h.weight")):
            p.data.copy_(noise)
        elif p.dim() == 1 and not name.endswith("bias"):
            p.data.copy_(1 + 0.2 * noise)
        else:
            p.data.copy_(0.2 * noise)


def hooks(model):
    """(norm before the MLP, MLP) of each layer and the final norm, whatever the family calls them."""
    body = model.base_model
    blocks = body.h if hasattr(body, "h") else body.layers
    before = [b.ln_2 if hasattr(b, "ln_2") else b.post_attention_layernorm for b in blocks]
    final = next(getattr(body, n) for n in ("ln_f", "final_layer_norm", "norm") if hasattr(body, n))
    return before, [b.mlp for b in blocks], final


@torch.no_grad()
def expected_of(model, input_ids):
    """One forward pass in float32; returns the tensors of expected.safetensors."""
    out = {"input_ids": input_ids.to(torch.float32)}
    before, mlps, final = hooks(model)

    def keep(key, value):
        out[key] = value.detach()[0].clone().contiguous()

    handles = [final.register_forward_hook(lambda m, i, o: keep("resid_final", i[0]))]
    for l, (norm, mlp) in enumerate(zip(before, mlps)):
        handles.append(norm.register_forward_hook(lambda m, i, o, l=l: keep(f"mlp_in.{l}", o)))
        handles.append(mlp.register_forward_hook(lambda m, i, o, l=l: keep(f"mlp_out.{l}", o)))
    keep("logits", model(input_ids[None], use_cache=False).logits)
    for h in handles:
        h.remove()
    return out


def make_model(name, folder):
    family = name.split("_")[0]
    config_type, model_type = FAMILIES[family]
    config = config_type(**{**BASE[family], **MODELS[name]})
    config._attn_implementation = "eager"
    generator = torch.Generator().manual_seed(seed_of(name))
    model = model_type(config).eval()
    randomise(model, generator)
    model.tie_weights()
    model.to(STORED_AS.get(name, torch.float32)).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    # Read back, so that the expected values belong to the weights as stored (and rope's frequencies are float32 again).
    model = model_type.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids = torch.randint(config.vocab_size, (T,), generator=generator)
    expected = expected_of(model, ids)
    if name not in HOOKED:
        expected = {k: expected[k] for k in ("input_ids", "logits")}
    save_file(expected, folder / "expected.safetensors")


def copy_expected(source, folder):
    expected = load_file(source / "expected.safetensors")
    save_file({k: expected[k] for k in ("input_ids", "logits")}, folder / "expected.safetensors")


def write_config(folder, config):
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def make_old_spelling(name, folder, source):
    """The same checkpoint with config.json as transformers 4 wrote it: rope_theta and rope_scaling, rotary_pct."""
    config = json.loads((source / "config.json").read_text())
    old = config.pop("rope_parameters", None)
    if old is not None:
        theta, pct, kind = old.pop("rope_theta"), old.pop("partial_rotary_factor", None), old.pop("rope_type")
        if config["model_type"] == "gpt_neox":
            config["rotary_emb_base"], config["rotary_pct"] = theta, pct
            config.pop("attention_bias")  # later than the Pythia checkpoints; true where absent
        else:
            config["rope_theta"] = theta
            config.pop("head_dim")  # later too; hidden_size / num_attention_heads where absent
        key = "type" if kind == "linear" else "rope_type"
        config["rope_scaling"] = {key: kind, **old} if kind != "default" else None
    else:
        config["n_ctx"] = config["n_positions"]
        for later in ("tie_word_embeddings", "scale_attn_by_inverse_layer_idx", "scale_attn_weights"):
            config.pop(later)
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.30.0"
    folder.mkdir(parents=True)
    write_config(folder, config)
    shutil.copy(source / "model.safetensors", folder)
    copy_expected(source, folder)
    if name == "gpt2_old_config":
        # The files of gpt2 on the hub have no "transformer." prefix, and carry the causal mask as a buffer.
        weights = load_file(source / "model.safetensors")
        weights = {k.removeprefix("transformer."): v for k, v in weights.items()}
        n = config["n_positions"]
        for l in range(config["n_layer"]):
            weights[f"h.{l}.attn.bias"] = torch.tril(torch.ones(n, n)).view(1, 1, n, n)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def make_sharded(folder, source):
    weights = load_file(source / "model.safetensors")
    names = sorted(weights)
    folder.mkdir(parents=True)
    where = {}
    for i, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :]), start=1):
        file = f"model-{i:05d}-of-00002.safetensors"
        save_file({n: weights[n] for n in part}, folder / file, metadata={"format": "pt"})
        where.update(dict.fromkeys(part, file))
    index = {"metadata": {"total_size": sum(w.nbytes for w in weights.values())}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    shutil.copy(source / "config.json", folder)
    copy_expected(source, folder)


# ---------------------------------------------------------------------------------------------------------------------
# GGUF, with the names and layouts that llama.cpp's converter uses

GGUF_NAMES = {
    "gpt2": {
        "transformer.wte": "token_embd",
        "transformer.wpe": "position_embd",
        "transformer.ln_f": "output_norm",
        "lm_head": "output",
        "ln_1": "attn_norm",
        "attn.c_attn": "attn_qkv",
        "attn.c_proj": "attn_output",
        "ln_2": "ffn_norm",
        "mlp.c_fc": "ffn_up",
        "mlp.c_proj": "ffn_down",
    },
    "neox": {
        "gpt_neox.embed_in": "token_embd",
        "gpt_neox.final_layer_norm": "output_norm",
        "embed_out": "output",
        "input_layernorm": "attn_norm",
        "attention.query_key_value": "attn_qkv",
        "attention.dense": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.dense_h_to_4h": "ffn_up",
        "mlp.dense_4h_to_h": "ffn_down",
    },
    "llama": {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    },
}


def gguf_name(family, name):
    """`model.layers.3.mlp.up_proj.weight` -> `blk.3.ffn_up.weight`."""
    module, kind = name.rsplit(".", 1)
    parts = module.split(".")
    if parts[1:2] in (["h"], ["layers"]):
        return f"blk.{parts[2]}.{GGUF_NAMES[family]['.'.join(parts[3:])]}.{kind}"
    return f"{GGUF_NAMES[family][module]}.{kind}"


def interleave(w, heads):
    """Rows of q or k from rotate-half order (0, h/2, 1, h/2+1, ... come together) to the pairs that llama.cpp rotates."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def gguf_layout(family, name, w, config):
    """The tensor as GGUF stores it; `name` is the GGUF name."""
    if family == "gpt2" and w.ndim == 2 and any(s in name for s in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")):
        return np.ascontiguousarray(w.T)  # Conv1D stores [in, out], GGUF always [out, in]
    if family == "neox" and "attn_qkv" in name:
        # Hugging Face: per head q, k, v. GGUF: all q, all k, all v.
        n = config.num_attention_heads
        return w.reshape(n, 3, w.shape[0] // n // 3, *w.shape[1:]).swapaxes(0, 1).reshape(w.shape)
    if family == "llama" and "attn_q." in name:
        return interleave(w, config.num_attention_heads)
    if family == "llama" and "attn_k." in name:
        return interleave(w, config.num_key_value_heads)
    return w


def add_tokenizer(writer, family, vocab_size):
    """A toy vocabulary that just fits: lower-case letters, a few merges, and what is left in punctuation and digits."""
    kinds = gguf.TokenType
    letters, rest = list("abcdefghijklmnopqrstuvwxyz"), iter(".,0123456789")
    if family == "llama":  # sentencepiece, without byte fallback
        space, special = "\u2581", ["<unk>", "<s>", "</s>"]
        types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL]
    else:  # byte-level BPE
        space, special = "\u0120", ["<|endoftext|>"]
        types = [kinds.CONTROL]
    merges = ["t h", "th e", f"{space} the", "i n", "a n"]
    tokens = [*special, *(m.replace(" ", "") for m in merges), space, *letters]
    tokens += [next(rest) for _ in range(vocab_size - len(tokens))]
    types += [kinds.NORMAL] * (vocab_size - len(types))
    if family == "llama":
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_scores([-float(i) if t == kinds.NORMAL else 0.0 for i, t in enumerate(types)])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_add_bos_token(True)
    else:
        writer.add_tokenizer_model("gpt2")
        if family == "gpt2":  # older GPT-NeoX files name no pre-tokeniser
            writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges(merges)
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(0)
    writer.add_token_list(tokens)
    writer.add_token_types(types)


def make_gguf(name, folder, source):
    family = name.split("_")[0]
    config = FAMILIES[family][0].from_pretrained(source)
    folder.mkdir(parents=True)
    writer = gguf.GGUFWriter(folder / "model.gguf", {"neox": "gptneox"}.get(family, family))
    writer.add_name(name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    if family == "gpt2":
        writer.add_feed_forward_length(config.n_inner or 4 * config.n_embd)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    elif family == "neox":
        head = config.hidden_size // config.num_attention_heads
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_rope_dimension_count(int(config.rope_parameters["partial_rotary_factor"] * head))
        writer.add_parallel_residual(config.use_parallel_residual)
        writer.add_layer_norm_eps(config.layer_norm_eps)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_rope_dimension_count(config.head_dim)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_vocab_size(config.vocab_size)
    add_tokenizer(writer, family, config.vocab_size)
    for hf_name, w in sorted(load_file(source / "model.safetensors").items()):
        new = gguf_name(family, hf_name)
        writer.add_tensor(new, np.ascontiguousarray(gguf_layout(family, new, w.float().numpy(), config)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    copy_expected(source, folder)


# ---------------------------------------------------------------------------------------------------------------------
# Quantised blocks

# Where each block keeps its float16 scales (byte offsets); every other byte may hold anything.
SCALES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}


def make_quant(name, file):
    """Random bytes in every field, so that all bit patterns occur, but finite scales of either sign."""
    rng = np.random.default_rng(seed_of(name))
    kind = gguf.GGMLQuantizationType[name]
    _, size = gguf.GGML_QUANT_SIZES[kind]
    if name in ("F16", "BF16"):
        values = np.concatenate([rng.normal(0, 1, 120), [0.0, -0.0, 1.0, 6e-8, -6e-8, 1e-5, 65504.0, -65504.0]])
        if name == "F16":
            data = values.astype(np.float16).view(np.uint8)
        else:
            data = torch.tensor(values, dtype=torch.float32).to(torch.bfloat16).view(torch.uint8).numpy()
    else:
        blocks = 16 if size < 64 else 6
        data = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
        for at in SCALES[name]:
            scales = rng.normal(0, 0.05, blocks).astype(np.float16)
            data[:, at : at + 2] = scales[:, None].view(np.uint8)
        data[0] = 0  # an all-zero block
        data[1] = 255  # every field at its largest ...
        for at in SCALES[name]:
            data[1, at : at + 2] = np.float16([0.5]).view(np.uint8)  # ... with a scale that is a number
        data = data.reshape(-1)
    values = gguf.dequantize(data, kind).reshape(-1).astype(np.float32)
    assert np.isfinite(values).all(), name
    save_file({"bytes": torch.from_numpy(np.array(data)), "expected": torch.from_numpy(np.array(values))}, file)


# ---------------------------------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", help="names of fixtures to make, `quants` for the quantised blocks")
    only = parser.parse_args().only
    torch.set_num_threads(1)  # so that sums are in one order

    def wanted(name):
        return only is None or name in only

    def fresh(name):
        folder = ROOT / "models" / name
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    for name in filter(wanted, MODELS):
        make_model(name, fresh(name))
    for name in filter(wanted, OLD_SPELLING):
        make_old_spelling(name, fresh(name), ROOT / "models" / OLD_SPELLING[name])
    for name in filter(wanted, SHARDED):
        make_sharded(fresh(name), ROOT / "models" / SHARDED[name])
    for name in filter(wanted, GGUF):
        make_gguf(name, fresh(name), ROOT / "models" / GGUF[name])
    if wanted("quants"):
        (ROOT / "quants").mkdir(parents=True, exist_ok=True)
        for name in QUANTS:
            make_quant(name, ROOT / "quants" / f"{name}.safetensors")


if __name__ == "__main__":
    main()
