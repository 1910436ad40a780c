"""A study's configuration with every setting explained, as a file to begin with."""

from __future__ import annotations

from pathlib import Path

from mechcore.errors import InputError
from mechcore.yaml_file import YAML

_TEMPLATE = """\
# A study of mechcore: mechcore run {name}
# Whatever is left out has the value shown here. Relative paths begin at this file's folder.
# mechcore run {name} --dry-run lists the jobs with an estimate of time and memory.

# Which model, and how to read its answers. Without a source it is an embedded one.
model:
  source: null             # checkpoint directory or hub id
  embedded: encoder        # encoder or decoder, where there is no source
  checkpoint: final        # of the embedded encoder
  revision: null           # branch, tag or commit of a hub id
  backend: null            # bridge or hooked (HookedTransformer, TransformerLens 3)
  class_labels: null       # [entailment, neutral, contradiction] if id2label does not name them
  prompt: null             # language models: "{{a}} So {{b}}?"
  answers: null            # language models: {{entailment: " Yes", non-entailment: " No"}}
  max_length: null         # tokens after which texts are cut; null: cut nothing
  dtype: float32           # of the weights; or bfloat16, float16
  device_map: null         # auto, or {{module: device}}: a large model over several devices
  allow_pickle: false      # weights from a pickle can run any code on loading

# Several models instead, by name; everything else holds for each of them.
# models:
#   base: {{source: my-bert-mnli}}
#   large: {{source: my-bert-large-mnli}}

# Train the model first; the study is then of what comes of it. Presets are quick, bert-mnli and
# others; any other setting of TrainSettings changes the preset.
training: null             # {{preset: quick, steps: 3000, checkpoint_every: 500}}

# Checkpoints of the model's training, for effective size: directories, or folders of them.
# [embedded] stands for the embedded encoder's, [training] for those of training above.
checkpoints: []

# A task, or for each role a file (.csv, .tsv, .jsonl, .parquet), or a list of sources such as
# {{path: FILE, labels: [neutral], max: 1000}}; nothing for the embedded models.
data:
  task: null               # mnli-hans, qqp-paws or a file that describes a task
  folder: null             # with the task's files; null: from the hub
  train: null              # for training, means and pruning
  id: null                 # in-domain test examples
  ood: null                # out-of-domain test examples
  columns: {{}}              # {{text_a: NAME, text_b: NAME, label: NAME, subset: NAME}}
  label_names: {{}}          # {{"0": entailment, "1": neutral, "2": contradiction}}
  groups: {{}}               # {{NAME: [SUBSET, ...]}}: means over out-of-domain subsets
  ood_label: null          # keep only this label
  ood_subsets: []          # keep only these subsets
  max_train: 4000          # examples to draw at most, by subset; null takes all
  max_id: 2000
  max_ood: 2000
  seed: 0                  # of the draws

# One subnetwork for every seed and sparsity.
seeds: [42, 43, 44]
sparsities: [0.5, 0.7]
method: l0                 # or attribution, integrated, random, or that of a package
prune:                     # the schedule of l0
  preset: fast             # or paper; any other setting of PruneSettings changes the preset
  # steps: 600
  # precision: float32     # bfloat16, or auto: where the hardware has instructions for it
seeds_per_job: 3           # masks of one sparsity that are trained together, in one job

# null leaves an analysis out.
analyses:
  heads:                   # head categories
    max_examples: 512
  ablation:                # the core's heads, alone and jointly
    max_joint: 4           # core heads to ablate in pairs
    max_non_core: 16       # heads outside the core, for comparison
  sweep: null              # heads, mlps or all: each of them ablated alone
  search: null             # for superadditive sets: {{role: ood, components: heads, max_size: 3}}
  effective_size:          # over the checkpoints above
    sparsities: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    tolerance: 0.03        # accuracy that may be lost
    seeds: null            # null: those above
    prune: null            # null: the schedule above
  fill: mean               # what replaces an ablated output; or zero, resample, that of a package
  more: {{}}                 # steps that packages add, by name, each with its settings

batch_size: 64             # examples per evaluation batch
n_resamples: 1000          # bootstrap resamples

# Of one job. They are no part of the results, which are equal to the last bit between
# runs with equal cores on equal hardware.
resources:
  cpus: null               # null: all cores, with --executor ray one
  gpus: 0.0
  device: null             # cpu, cuda or mps; null: cuda if gpus is above 0
"""


def template(file: Path) -> str:
    """The text of a configuration file of this name.

    Raises:
        InputError: it is not named as YAML is.
    """
    if file.suffix not in YAML:
        raise InputError(f"{file}: expected a file that ends in {', '.join(YAML)}")
    return _TEMPLATE.format(name=file.name)
