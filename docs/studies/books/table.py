#!/usr/bin/env python3
"""Markdown tables of the study, from the directories that run.sh made.

  table.py OUT
"""

import json
import pathlib
import struct
import sys

FAMILIES = {"gpt2": "gpt2-books (sequential)", "neox": "neox-books (parallel)"}
GATES = ["linear", "b1", "b3", "b6", "harm"]
SHOWN = ["linear", "b6", "harm"]  # with intervals


def change(figure, rate=False):
    """ΔPPL with its interval and, of a routed replacement, the share that went linear."""
    text = f"{figure['delta_ppl_pct']:+.2f} % [{figure['ci_lo']:+.2f}, {figure['ci_hi']:+.2f}]"
    return text + (f" at {figure['pct_linear']:.0f} %" if rate else "")


def named(figures, name):
    return next(figure for figure in figures if figure["name"] == name)


def at_rate(figures, rate):
    return next(figure for figure in figures if figure["rate"] == rate)


def print_table(head, rows):
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def layers(sweeps):
    print("### Each layer linear, for all tokens\n")
    for family, sweep in sweeps.items():
        lo, hi = sweep["baseline_ppl_ci_lo"], sweep["baseline_ppl_ci_hi"]
        print(f"{FAMILIES[family]}: baseline perplexity {sweep['baseline_ppl']:.2f} [{lo:.2f}, {hi:.2f}], "
              f"{int(sweep['test_predictions']):,} predictions.\n")
        head = ["layer", "R²", "all linear", "verdict", "a quarter of the neurons kept", "mean output", "narrow MLP, equal FLOPs",
                "harm predicted, measured, nats"]
        rows = []
        for layer in sweep["layers"]:
            controls = layer["controls"]
            narrow = next(c for c in controls if c["name"].startswith("narrow"))
            fold = next(f for f in layer["folds"] if f["keep"] == 0.25)
            rows.append([str(layer["layer"]), f"{layer['r2']:.2f}", change(layer["all_linear"]), layer["all_linear"]["verdict"],
                         change(fold), change(named(controls, "mean output")), change(narrow),
                         f"{layer['harm']['predicted']:.3f}, {layer['harm']['measured']:.3f}"])
        print_table(head, rows)


def gates(sweeps):
    print("### Gates, half the calibration tokens linear\n\nShare of test tokens reached behind each figure.\n")
    for family, sweep in sweeps.items():
        print(f"{FAMILIES[family]}:\n")
        rows = []
        for layer in sweep["layers"]:
            routing = layer.get("routing_controls", [])
            row = [str(layer["layer"])]
            for name in SHOWN:
                have = [gate for gate in layer["gates"] if gate["name"] == name]
                row.append(change(at_rate(have[0]["at"], 0.5), True) if have else "")
            for name in ("random", "oracle"):
                row.append(change(at_rate([r for r in routing if r["name"] == name], 0.5), True))
            rows.append(row)
        print_table(["layer"] + [f"`{name}`" for name in SHOWN] + ["random", "oracle"], rows)
    print("AUC of each gate, mean over layers:\n")
    rows = []
    for name in GATES:
        row = [f"`{name}`"]
        for sweep in sweeps.values():
            values = [g["auc"] for layer in sweep["layers"] for g in layer["gates"] if g["name"] == name]
            row.append(f"{sum(values) / len(values):.3f} ({min(values):.3f} to {max(values):.3f})")
        rows.append(row)
    print_table(["gate"] + [FAMILIES[family] for family in sweeps], rows)


def allocation(path):
    """What `halflin allocate` measured: a string in the file's header."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    return json.loads(header["__metadata__"]["allocation"])["metadata"]


def joint(out):
    print("### All layers together, no training\n")
    for family, label in FAMILIES.items():
        result = allocation(out / f"{family}.allocation")
        print(f"{label}, budget {result['budget_pct']:g} % on calibration text ({result['fit']} fit):\n")
        names = [control["name"] for control in result["pareto"][0]["controls"]]
        rows = []
        for point in result["pareto"]:
            own = point["price"] == result["price"]
            saved = f"{point['flops_saved_pct']:.1f} %"
            controls = {c["name"]: f"{c['delta_ppl_pct']:+.2f} %" for c in point["controls"]}
            rows.append([f"**{saved}**, the budget's" if own else saved, change(point)] + [controls[name] for name in names])
        print_table(["FLOPs saved", "gates and price"] + names, rows)


def training(out, kind, title):
    print(f"### {title}\n")
    for family, label in FAMILIES.items():
        result = json.loads((out / f"{family}-{kind}" / "result.json").read_text())
        print(f"{label}:\n")
        if kind == "progressive":
            print_table(["layers linear", "before", "replaced", "after training", "control"],
                        [[", ".join(map(str, stage["layers"])) or "the same", f"{stage['before']['ppl']:.2f}",
                          f"{stage['replaced']['ppl']:.2f}" if "replaced" in stage else "", f"{stage['tuned']['ppl']:.2f}",
                          f"{stage['control']['ppl']:.2f}" if stage.get("control") else ""] for stage in result["stages"]])
        rows = []
        for model in result["models"]:
            row = [model["name"]]
            for text in ("test", "second"):
                figure = model[text]
                row.append(f"{figure['ppl']:.2f}")
                row.append(change(figure) if "delta_ppl_pct" in figure else "")
                against = figure.get("against_control")
                row.append(change(against) if against else "")
            row.append(f"{model['test']['pct_linear']:.0f} %" if "pct_linear" in model["test"] else "")
            rows.append(row)
        print_table(["model", "books", "against the original", "against the control", "second text", "against the original",
                     "against the control", "linear"], rows)


def main():
    out = pathlib.Path(sys.argv[1])
    sweeps = {family: json.loads((out / f"{family}-sweep" / "result.json").read_text()) for family in FAMILIES}
    layers(sweeps)
    gates(sweeps)
    joint(out)
    training(out, "progressive", "Progressive linearisation")
    training(out, "two-phase", "Two-phase")


main()
