#!/usr/bin/env python3
"""Makes tests/fixtures/generate/sampling.json: which tokens transformers' logits processors leave, and
how probable they are."""

import itertools
import json
import pathlib

import torch
from transformers.generation import logits_process as lp

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "generate"
VOCAB = 48


def main():
    torch.manual_seed(5)
    logits = (torch.randn(VOCAB) * 3).tolist()
    logits = [round(v, 4) for v in logits]
    history = [3, 7, 7, 11, 40, 41, 12, 0]
    cases = []
    for temperature, top_k, top_p, min_p, penalty in itertools.product(
            [0.6, 1.0, 1.7], [0, 7], [1.0, 0.9, 0.35], [0.0, 0.08], [1.0, 1.4]):
        ids = torch.tensor([history])
        scores = torch.tensor([logits])
        if penalty != 1:
            scores = lp.RepetitionPenaltyLogitsProcessor(penalty)(ids, scores)
        scores = lp.TemperatureLogitsWarper(temperature)(ids, scores)
        if top_k:
            scores = lp.TopKLogitsWarper(top_k)(ids, scores)
        if top_p < 1:
            scores = lp.TopPLogitsWarper(top_p)(ids, scores)
        if min_p > 0:
            scores = lp.MinPLogitsWarper(min_p)(ids, scores)
        p = torch.softmax(scores[0].double(), -1)
        order = sorted((-v, i) for i, v in enumerate(p.tolist()) if v > 0)
        cases.append({"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
                      "repetition_penalty": penalty, "ids": [i for _, i in order],
                      "probabilities": [round(-v, 7) for v, _ in order]})
    FIXTURES.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(c) for c in cases)
    (FIXTURES / "sampling.json").write_text(
        '{"logits": %s,\n"history": %s,\n"cases": [\n%s\n]}\n' % (json.dumps(logits), json.dumps(history), lines))


main()
