#!/usr/bin/env python3
"""The table of the iso-FLOP study, from the directories that run.sh made.

  table.py OUT

Differences are of the mean test loss (nats) to `uniform` of the same seed. The interval resamples
test windows, the same for all models and seeds (paired), and averages over the seeds that ran: it
covers the text, not the seeds, whose own differences stand beside it.
"""

import array
import json
import math
import pathlib
import random
import struct
import sys

NAMES = ["uniform", "wide-edges", "wide-middle", "hybrid", "gated"]
DRAWS = 2000


def test_losses(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    begin, end = json.loads(data[8 : 8 + length])["test"]["data_offsets"]
    losses = array.array("f")
    losses.frombytes(data[8 + length + begin : 8 + length + end])
    return losses


def interval(differences):
    """95 % percentile interval of the mean over windows."""
    n = len(differences)
    rng = random.Random(1)
    means = sorted(sum(rng.choices(differences, k=n)) / n for _ in range(DRAWS))
    return means[int(0.025 * DRAWS)], means[int(0.975 * DRAWS) - 1]


def main():
    out = pathlib.Path(sys.argv[1])
    runs = {}
    for name in NAMES:
        for folder in sorted(out.glob(f"{name}-[0-9]*")):
            if (folder / "result.json").exists():
                seed = folder.name.rsplit("-", 1)[1]
                result = json.loads((folder / "result.json").read_text())
                runs[name, seed] = (result, test_losses(folder / "losses.safetensors"))
    seeds = sorted({seed for name, seed in runs if name == "uniform"})
    if not seeds:
        sys.exit(f"{out}: no finished run of uniform")
    first = runs["uniform", seeds[0]][0]
    print(f"{first['tokens']:,} tokens a run, {len(seeds)} seeds\n")
    print("| architecture | parameters | FLOPs a token | test perplexity, mean of seeds (each) "
          "| loss − uniform, nats | 95 % interval | each seed |")
    print("|---|---|---|---|---|---|---|")
    for name in NAMES:
        have = [seed for seed in seeds if (name, seed) in runs]
        if not have:
            continue
        results = [runs[name, seed][0] for seed in have]
        losses = [r["test"]["loss"] for r in results]
        flops = [r["test"].get("flops_per_token", r["flops_per_token"]) for r in results]
        ppl = math.exp(sum(losses) / len(losses))
        cells = [
            name,
            f"{results[0]['parameters']:,}",
            f"{sum(flops) / len(flops) / 1e6:.3f} M",
            f"{ppl:.2f} ({', '.join(f'{math.exp(loss):.2f}' for loss in losses)})",
        ]
        if name == "uniform":
            cells += ["", "", ""]
        else:
            each = [
                [a - b for a, b in zip(runs[name, s][1], runs["uniform", s][1], strict=True)]
                for s in have
            ]
            mean = [sum(column) / len(column) for column in zip(*each)]
            low, high = interval(mean)
            cells += [
                f"{sum(mean) / len(mean):+.4f}",
                f"{low:+.4f} to {high:+.4f}",
                ", ".join(f"{sum(d) / len(d):+.4f}" for d in each),
            ]
        print("| " + " | ".join(cells) + " |")


main()
