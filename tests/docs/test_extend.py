"""The package of docs/extend.md, put together from the page, adds everything that it says."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import helpers
import pandas as pd
import pytest
import torch
import transformers as hf
from forks import python

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

from mechcore.components import Mask, ModelShape
from mechcore.data.examples import ALL
from mechcore.worlds import tiny_world
from mechcore.worlds.embedded import tiny_encoder_dir

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extend.md"
FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)^```$", re.DOTALL | re.M)

STUDY = """
model: {{source: {model}}}
data: {{task: toy, folder: {data}}}
method: late-first
seeds: [1]
target_sparsities: [0.5]
n_resamples: 10
analyses:
  heads: {{max_examples: 8}}
  ablation: {{max_joint: 0, max_non_core: 1, controls: 1}}
  fill: half
  sweep: null
  paths: null
  lengths: {{longest: 9}}
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, as an installer leaves it."""
    folder = tmp_path_factory.mktemp("site")
    files = dict(FILE.findall(PAGE.read_text(encoding="utf-8")))
    project = tomllib.loads(files.pop("pyproject.toml"))["project"]
    (folder / "mechcore_extras").mkdir()
    (folder / "mechcore_extras" / "__init__.py").touch()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    info = folder / f"mechcore_extras-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = project["entry-points"].items()
    (info / "entry_points.txt").write_text(
        "\n".join(
            f"[{group}]\n" + "".join(f"{name} = {at}\n" for name, at in points.items())
            for group, points in groups
        )
    )
    return folder


@pytest.fixture
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what is printed."""
    return tmp_path_factory.mktemp("output")


Mechcore = Callable[..., str]


@pytest.fixture
def mechcore(installed: Path, output: Path) -> Mechcore:
    """Runs the command with the package installed; what it prints."""
    return partial(python, installed, "-m", "mechcore", output=output)


UNDRAWN = """
from helpers import undrawn
from mechcore.cli import main
with undrawn():
    main({arguments!r})
"""


def test_the_main_study_has_all_that_was_added(
    installed: Path, tmp_path: Path, output: Path
) -> None:
    for split in ("train", "id", "ood"):
        frame = tiny_world.generate(split, 24, 1).frame  # type: ignore[arg-type]
        frame.to_csv(tmp_path / f"{split}.csv", index=False)
    file, out = tmp_path / "study.yaml", tmp_path / "out"
    file.write_text(STUDY.format(model=tiny_encoder_dir(), data=tmp_path))
    arguments = ["run", str(file), "--out", str(out), "--cpus", "1"]
    python(installed, "-c", UNDRAWN.format(arguments=arguments), output=output)
    tables = {path.stem: pd.read_csv(path) for path in (out / "tables").glob("*.csv")}
    # Half of the 4 x 7 components, the later ones, are pruned.
    kept = tables["subnetworks"].iloc[0]
    assert kept["method"] == "late-first"
    assert kept["subnetwork"] == "late-first-s0.50-seed1"
    assert set(kept["kept"].split()) == {
        f"L{layer}.{name}" for layer in range(2) for name in (*map("H{}".format, range(6)), "MLP")
    }
    assert tables["head_categories"]["mass_two_back"].between(0, 1).all()
    lengths = tables["lengths"].set_index("split")
    assert lengths["n"].tolist() == [24, 24]
    assert 0 < lengths["longer"].sum() <= 48
    report = (out / "report.html").read_text(encoding="utf-8")
    assert "Lengths of texts" in report
    assert "How many texts are long" in report
    assert f"{lengths['longer'].sum()} of 48 test texts are long." in report


LAB = """
import mechcore
lab = mechcore.open("embedded", store={store!r})
answer = lab.lengths(longest=9)
print(answer.headline, answer.table["longer"].tolist(), "lengths" in dir(lab))
"""


@pytest.mark.everyday
def test_the_analysis_is_a_command_a_method_and_a_setting(
    mechcore: Mechcore, installed: Path, tmp_path: Path, output: Path
) -> None:
    out, small = tmp_path / "out", ("--max-train", "8", "--max-id", "8", "--max-ood", "8")
    assert "How many test texts are longer than so many tokens." in mechcore("--help")
    assert "Tokens of the longest text that is not long." in mechcore("lengths", "--help")
    printed = mechcore("lengths", "--longest", "9", *small, "--out", str(out))
    table = pd.read_csv(out / "tables" / "lengths.csv")
    sentence = f"{table['longer'].sum()} of 16 test texts are long."
    assert sentence in printed
    # In the run's folder the same question is answered again with another setting alone.
    printed = mechcore("lengths", str(out), "--longest", "1")
    assert "16 of 16 test texts are long." in printed
    assert len(list((out / "tables").glob("lengths.csv"))) == 1
    printed = python(installed, "-c", LAB.format(store=str(tmp_path / "store")), output=output)
    assert "test texts are long. [" in printed
    assert printed.rstrip().endswith("True")
    mechcore("study", "init", str(tmp_path / "study.yaml"))
    assert "lengths: null" in (tmp_path / "study.yaml").read_text(encoding="utf-8")


def test_the_fill_and_the_method_have_their_commands(mechcore: Mechcore, tmp_path: Path) -> None:
    small = ("--max-train", "16", "--max-id", "8", "--max-ood", "8")
    changes = {}
    for fill in ("mean", "half"):
        options = ("--components", "L0.H0", "--fill", fill, "--resamples", "10")
        mechcore("ablation", *options, *small, "--out", str(tmp_path / fill))
        changes[fill] = pd.read_csv(tmp_path / fill / "tables/ablation.csv")["margin_change"]
    assert (changes["mean"] - changes["half"]).abs().max() > 1e-6
    options = ("--prune-method", "late-first", "--seeds", "1", "--target-sparsities", "0.5")
    mechcore("accuracy", *options, *small, "--out", str(tmp_path / "out"))
    assert (tmp_path / "out" / "masks" / "late-first-s0.50-seed1.safetensors").is_file()


def test_what_was_added_passes_the_checks_of_the_page(installed: Path, output: Path) -> None:
    (code,) = re.findall(
        r"^```python\n(from mechcore import testing\n.*?)^```$",
        PAGE.read_text(encoding="utf-8"),
        re.S | re.M,
    )
    assert len(re.findall(r"testing\.check_", code)) == 4
    python(installed, "-c", code, output=output)


def test_a_search_screens_by_the_way_that_was_added(mechcore: Mechcore, tmp_path: Path) -> None:
    options = ("--components", "L0.H0,L0.H1,L2.H0,L3.H0", "--pairs", "1", "--max-size", "2")
    small = ("--max-train", "16", "--max-id", "8", "--max-ood", "16")
    how = ("--screening-by", "nearest-first", "--fill", "zero")
    mechcore("search", *options, *small, *how, "--out", str(tmp_path / "found"))
    screened = pd.read_csv(tmp_path / "found" / "tables" / "screening.csv")
    expected = {"L0.H0+L0.H1": 0, "L2.H0+L3.H0": -1, "L0.H0+L2.H0": -2, "L0.H1+L2.H0": -2}
    expected |= {"L0.H0+L3.H0": -3, "L0.H1+L3.H0": -3}
    assert dict(zip(screened["set"], screened["predicted"], strict=True)) == expected
    assert screened["interaction"].notna().tolist() == [True] + [False] * 5


def test_the_architecture_is_masked_as_by_an_edit_of_its_weights(
    mechcore: Mechcore, installed: Path, output: Path, tmp_path: Path
) -> None:
    """A tiny random OPT classifier, against Hugging Face's own with weights set to zero."""
    tokenizer = hf.AutoTokenizer.from_pretrained(tiny_encoder_dir())
    classes = {"entailment": 0, "non-entailment": 1}
    config = hf.OPTConfig(
        vocab_size=len(tokenizer), hidden_size=16, word_embed_proj_dim=16, ffn_dim=24,
        num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=40,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=None, eos_token_id=None,
        label2id=classes, id2label={0: "entailment", 1: "non-entailment"},
    )  # fmt: skip
    model = hf.OPTForSequenceClassification(config).eval()
    helpers.randomise(model)
    source = tmp_path / "opt"
    model.save_pretrained(source)
    tokenizer.save_pretrained(source)
    frames = {split: tiny_world.generate(split, 12, 1).frame for split in ("train", "id", "ood")}
    for split, frame in frames.items():
        frame.to_csv(tmp_path / f"{split}.csv", index=False)
    files = [x for split in frames for x in (f"--{split}", str(tmp_path / f"{split}.csv"))]
    given = ("--model", str(source), *files)

    def margins(edited: Any) -> torch.Tensor:
        """Log-odds of the right classes, text by text, so that nothing is padded."""
        frame, values = frames["ood"], []
        for a, b, label in zip(frame["text_a"], frame["text_b"], frame["label"], strict=True):
            ids = tokenizer(a, b, return_tensors="pt")["input_ids"]
            right, wrong = classes[label], 1 - classes[label]
            with torch.no_grad():
                logits = edited(ids).logits[0].double()
            values.append(logits[right] - logits[wrong])
        return torch.stack(values)

    def without(components: str) -> Any:
        edited = copy.deepcopy(model)
        layers = edited.model.decoder.layers
        with torch.no_grad():
            if "L0.H1" in components:
                layers[0].self_attn.out_proj.weight[:, 4:8] = 0
            if "L1.MLP" in components:
                layers[1].fc2.weight.zero_()
                layers[1].fc2.bias.zero_()
        return edited

    options = ("--components", "L0.H1,L1.MLP", "--fill", "zero", "--resamples", "10")
    mechcore("ablation", *given, *options, "--out", str(tmp_path / "ablated"))
    table = pd.read_csv(tmp_path / "ablated" / "tables/ablation.csv")
    whole = table[(table["split"] == "ood") & (table["subset"] == ALL)]
    changes = whole.set_index("set")["margin_change"]
    for components in ("L0.H1", "L1.MLP", "L0.H1+L1.MLP"):
        expected = float((margins(without(components)) - margins(model)).mean())
        assert abs(expected) > 1e-2
        assert changes[components] == pytest.approx(expected, abs=1e-5)

    mask, out = tmp_path / "mask.safetensors", tmp_path / "folded"
    Mask.full(ModelShape(2, 4)).without("L0.H1", "L1.MLP").save(mask)
    exporting = f"export_checkpoint({str(source)!r}, {str(out)!r}, Mask.load({str(mask)!r}), "
    exporting += "fill='zero')"
    python(
        installed, "-c", f"from mechcore import Mask, export_checkpoint; {exporting}", output=output
    )
    folded: Any = hf.AutoModelForSequenceClassification.from_pretrained(out)
    expected = without("L0.H1+L1.MLP").state_dict()
    assert folded.state_dict().keys() == expected.keys()
    for name, weight in folded.state_dict().items():
        assert torch.equal(weight, expected[name]), name


@pytest.mark.parametrize("head", ["ForSequenceClassification", "Model"])
def test_the_encoder_loads_with_and_without_a_head(
    installed: Path, tmp_path: Path, output: Path, head: str
) -> None:
    """A tiny random Megatron-BERT, against Hugging Face's own with a head's weights at zero."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = hf.MegatronBertConfig(**sizes, vocab_size=40, pad_token_id=1, num_labels=3)
    helpers.randomise(model := getattr(hf, f"MegatronBert{head}")(config).eval())
    model.save_pretrained(tmp_path)
    helpers.word_tokenizer().save_pretrained(tmp_path)
    expected = [model(row[None])[0][0] for row in helpers.texts()]
    with torch.no_grad():
        model.base_model.encoder.layer[1].attention.output.dense.weight[:, 4:8] = 0
    ablated = [model(row[None])[0][0] for row in helpers.texts()]
    code = f"""
import sys, torch
import mechcore
from mechcore.components import Mask
from mechcore.models.protocol import forward
model = mechcore.load_model({str(tmp_path)!r}, head={head != "Model"})
batches, pairs = torch.load({str(tmp_path / "batches.pt")!r}), []
with torch.no_grad():
    for batch in batches:
        whole = forward(model, batch)
        with mechcore.masked(model, Mask.full(model).without("L1.H1"), fill="zero") as run:
            pairs.append((whole, run(batch)))
torch.save(pairs, {str(tmp_path / "found.pt")!r})
"""
    sides = ("right", "left")
    batches = [helpers.padded(helpers.texts(), side, extra=1) for side in sides]
    torch.save(batches, tmp_path / "batches.pt")
    python(installed, "-c", code, output=output)
    for logits in torch.load(tmp_path / "found.pt"):
        for batch, rows in zip(logits, (expected, ablated), strict=True):
            for answer, row in zip(batch, rows, strict=True):
                row = row.detach()
                torch.testing.assert_close(answer[: len(row)], row, rtol=0, atol=1e-5)


def test_a_kind_of_study_has_a_command_and_a_file(mechcore: Mechcore, tmp_path: Path) -> None:
    assert "The squares of the first whole numbers." in mechcore("reproduce", "--help")
    mechcore("reproduce", "squares", "--largest", "4", "--out", str(tmp_path / "out"))
    table = pd.read_csv(tmp_path / "out" / "tables" / "squares.csv")
    assert table["square"].tolist() == [1, 4, 9, 16]
    mechcore("study", "init", str(tmp_path / "squares.yaml"), "--kind", "squares")
    assert "kind: squares" in (tmp_path / "squares.yaml").read_text(encoding="utf-8")


def test_a_kind_of_study_is_run_by_the_engine(
    mechcore: Mechcore, installed: Path, tmp_path: Path
) -> None:
    file, out = tmp_path / "squares.yaml", tmp_path / "out"
    file.write_text("kind: squares\nnumbers: [3, 5]\n")
    assert "2 of 2 jobs known so far remain" in mechcore(
        "run", str(file), "--out", str(out), "--dry-run"
    )
    mechcore("run", str(file), "--out", str(out))
    assert pd.read_csv(out / "tables" / "squares.csv")["square"].tolist() == [9, 25]
    assert "Numbers and their squares" in (out / "report.html").read_text(encoding="utf-8")
    file.write_text("kind: squares\nnumbers: [3, 4]\n")
    assert "1 of 2 jobs known so far remain" in mechcore(
        "run", str(file), "--out", str(out), "--dry-run"
    )
    assert "2 of 2 jobs are done" in mechcore("study", "status", str(out))
    # An edit of what made a result is noticed, and named.
    study = installed / "mechcore_extras" / "study.py"
    text = study.read_text(encoding="utf-8")
    study.write_text(text.replace("self.number**2", "self.number * self.number"), encoding="utf-8")
    try:
        shown = mechcore("study", "status", str(out))
    finally:
        study.write_text(text, encoding="utf-8")
    assert "0 of 2 jobs are done" in shown
    assert "mechcore_extras/study.py" in shown
