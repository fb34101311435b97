#!/usr/bin/env python3
"""Makes tests/fixtures/gradients with PyTorch's autograd on the models of tests/fixtures/models.

    venv/bin/python tests/reference/make_gradient_fixtures.py

<model>.safetensors   of the mean next-token loss over the fixture's input_ids, float32, eager attention
    loss                  [1]
    <parameter>           its gradient, by Hugging Face's name
    mlp_out.<l>           [T, d] gradient at what layer l's MLP adds to the residual stream
distill.safetensors   the same for student llama_gqa and teacher llama_biases, temperature 2: the mean over all positions
                      but the last of 4 KL(softmax(teacher / 2) || softmax(student / 2))
places.safetensors    llama_gqa with other things in its MLPs' places:
    layer 0  p full(x) + (1 - p) affine(x), p = logistic(out(gelu(hidden(x))))
    layer 1  full(x) where p > 1/2, else low rank + narrow MLP + constant; gradients of p straight through
    and to the loss 0.1 * the mean over the two layers of p's mean. Values are named value.<name>, gradients as above.
"""

import zlib
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parents[1] / "fixtures"
MODELS = [
    "gpt2_base",
    "gpt2_head7_relu",
    "gpt2_inverse_layer_scale",
    "gpt2_untied_unscaled",
    "neox_base",
    "neox_sequential",
    "neox_tied_no_attention_bias",
    "llama_gqa",
    "llama_biases",
    "mistral_window",
]


def load(name):
    folder = ROOT / "models" / name
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    return model, load_file(folder / "expected.safetensors")["input_ids"].long()


def mlps(model):
    body = model.base_model
    return [block.mlp for block in (body.h if hasattr(body, "h") else body.layers)]


def next_token_loss(model, ids):
    logits = model(ids[None], use_cache=False).logits[0]
    return F.cross_entropy(logits[:-1], ids[1:])


def differentiate(model, loss_of):
    """loss, every parameter's gradient and those at the MLPs' outputs."""
    outputs = {}

    def keep(l):
        def hook(module, args, output):
            output.retain_grad()
            outputs[f"mlp_out.{l}"] = output

        return hook

    handles = [mlp.register_forward_hook(keep(l)) for l, mlp in enumerate(mlps(model))]
    loss = loss_of()
    loss.backward()
    for handle in handles:
        handle.remove()
    tensors = {"loss": loss.detach()[None]}
    for name, p in model.named_parameters():
        if model.config.model_type == "gpt_neox":  # as its checkpoints call it
            name = name.replace("lm_head", "embed_out")
        if p.grad is not None:
            tensors[name] = p.grad.clone()
    tensors.update({name: output.grad[0].clone() for name, output in outputs.items()})
    return tensors


class Narrow(torch.nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.gate, self.up = torch.nn.Linear(d, h, bias=False), torch.nn.Linear(d, h, bias=False)
        self.down = torch.nn.Linear(h, d, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Place(torch.nn.Module):
    """What stands in an MLP's place."""

    def __init__(self, full, d, soft):
        super().__init__()
        self.full, self.soft, self.mean = full, soft, None
        if soft:
            self.affine = torch.nn.Linear(d, d)
            self.hidden, self.out = torch.nn.Linear(d, 32), torch.nn.Linear(32, 1)
        else:
            self.low_rank_in, self.low_rank_out = torch.nn.Linear(d, 3, bias=False), torch.nn.Linear(3, d)
            self.narrow = Narrow(d, 7)
            self.constant = torch.nn.Parameter(torch.zeros(d))
            self.out = torch.nn.Linear(d, 1)

    def forward(self, x):
        if self.soft:
            cheap = self.affine(x)
            p = torch.sigmoid(self.out(F.gelu(self.hidden(x))))
            share = p
        else:
            cheap = self.low_rank_out(self.low_rank_in(x)) + self.narrow(x) + self.constant
            p = torch.sigmoid(self.out(x))
            share = (p > 0.5).float() + p - p.detach()
        self.mean = p.mean()
        return share * self.full(x) + (1 - share) * cheap


def main():
    folder = ROOT / "gradients"
    folder.mkdir(exist_ok=True)
    for name in MODELS:
        model, ids = load(name)
        save_file(differentiate(model, lambda: next_token_loss(model, ids)), folder / f"{name}.safetensors")

    student, ids = load("llama_gqa")
    teacher, _ = load("llama_biases")
    with torch.no_grad():
        q = F.log_softmax(teacher(ids[None]).logits[0, :-1] / 2, dim=-1)

    def divergence():
        p = F.log_softmax(student(ids[None], use_cache=False).logits[0, :-1] / 2, dim=-1)
        return 4 * (q.exp() * (q - p)).sum(-1).mean()

    save_file(differentiate(student, divergence), folder / "distill.safetensors")

    model, ids = load("llama_gqa")
    generator = torch.Generator().manual_seed(zlib.crc32(b"places"))
    places = []
    for l, layer in enumerate(model.base_model.layers):
        layer.mlp = Place(layer.mlp, model.config.hidden_size, soft=l == 0)
        for name, p in sorted(layer.mlp.named_parameters()):
            if not name.startswith("full."):
                p.data.copy_(0.3 * torch.randn(p.shape, generator=generator))
        places.append(layer.mlp)
    loss = next_token_loss(model, ids)
    (loss + 0.1 * (places[0].mean + places[1].mean) / 2).backward()
    tensors = {"loss": loss.detach()[None], "means": torch.stack([p.mean.detach() for p in places])}
    for name, p in model.named_parameters():
        name = name.replace(".mlp.full.", ".mlp.")
        tensors[name] = p.grad.clone()
        if ".mlp." in name and "_proj" not in name:
            tensors[f"value.{name}"] = p.data.clone()
    save_file(tensors, folder / "places.safetensors")


if __name__ == "__main__":
    main()
