"""Study configurations as a slip or an enemy may write them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import yaml
from fuzz.harness import ODD_VALUES, changed, damaged

VALID: dict[str, Any] = {
    "model": {"source": "my-bert", "max_length": 64, "allow_pickle": False},
    "data": {
        "train": "train.tsv",
        "id": "id.tsv",
        "ood": "ood.tsv",
        "columns": {"text_a": "premise"},
        "label_map": {"0": "entailment", "1": "neutral"},
        "ood_label": "non-entailment",
        "ood_subsets": ["lexical_overlap"],
        "max_train": None,
        "seed": 1,
    },
    "prune": {"preset": "fast", "steps": 100},
    "seeds": [1, 2, 3],
    "sparsities": [0.5, 0.7],
    "seeds_per_job": 2,
    "analyses": {"heads": {"max_examples": 64}, "sweep": {"components": "all"}},
    "batch_size": 32,
    "n_resamples": 200,
    "resources": {"cpus": 1, "gpus": 0.0, "device": "cpu"},
}
ODD = (
    *ODD_VALUES,
    *("../../etc/passwd", "~nobody-here/x", "~", "file:///etc/passwd", "C:\\x", "a/b", "name/../x"),
    *("\x1b[31m", "a\nb", "a\rb", "!!python/object:os.system", "${HOME}", "{{x}}", "1e999"),
    *(float("nan"), float("inf"), -0.0, 1e-320, 10**4000, [0.5] * 3000, ["x"] * 3000),
)
YAML = (
    "seeds: [1]\nseeds: [2]\n",
    "a: &a [x, x]\nb: &b [*a, *a, *a]\nc: &c [*b, *b, *b]\nseeds: [*c, *c]\n",
    "&a [*a]\n",
    "model: {<<: {source: x}}\n",
    "x: !!python/object/apply:os.system ['touch made']\n",
    "x: !!python/name:os.system ''\n",
    "!!python/object/new:type [x, [], {}]\n",
    "seeds: !!set {1, 2}\n",
    "seeds: !!binary aGVsbG8=\n",
    "seeds: !!timestamp 2020-01-01\n",
    "model: !include /etc/passwd\n",
    "seeds: [1:30:00, 0o7, 0x10, 1_000, yes]\n",
    "? [a, b]\n: c\n",
    "? {a: b}\n: c\n",
    "--- \nseeds: [1]\n--- \nseeds: [2]\n",
    "%YAML 9.9\n---\nseeds: [1]\n",
    "%TAG ! tag:x,2000:\n---\nseeds: [1]\n",
    "\tseeds: [1]\n",
    "seeds: [1\n",
    "seeds: 'x\n",
    "\x00",
    "seeds: \x07\n",
    "null",
    "~",
    "5",
    "- a\n- b\n",
    "just text",
    "# nothing\n",
    "[" * 5000,
    "{a: " * 5000,
    "- " * 5000,
    "a:\n" + "".join(" " * i + "a:\n" for i in range(1, 300)),
    "seeds: [" + "1, " * 10_000 + "1]\n",
    "x" * (2**20 + 1),
    "1: 2\n",
    "true: x\nnull: y\n1.5: z\n",
    "seeds: [" + "9" * 5000 + "]\n",
    "sparsities: [." + "9" * 5000 + "]\n",
)


def write_config(rng: random.Random, folder: Path) -> Path:
    """A configuration: one that was valid, changed, or one of the tricks of YAML."""
    kind = rng.choice(["yaml", "yml"])
    if rng.random() < 0.3:
        text = rng.choice(YAML)
    else:
        content = VALID
        for _ in range(rng.choice([0, 1, 1, 1, 2])):
            content = _odd(rng, content)
        text = str(yaml.safe_dump(content, allow_unicode=True, sort_keys=False))
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.15:
        data = damaged(rng, data)
    path = folder / f"study.{kind}"
    path.write_bytes(data)
    return path


def _odd(rng: random.Random, content: dict[str, Any]) -> dict[str, Any]:
    if rng.random() < 0.4:
        return new if isinstance(new := changed(rng, content), dict) else {"seeds": new}
    name = rng.choice(list(content))
    if isinstance(content[name], dict) and content[name] and rng.random() < 0.8:
        return {**content, name: _odd(rng, content[name])}
    return {**content, name: rng.choice(ODD)}
