"""Outputs kept in notebooks are those of their code, and each runs in its short form."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from helpers import embedded_shape, script

from mechcore.cli import app
from mechcore.report.attention_views import library_script

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "notebooks"
SHAPE = embedded_shape()
N_HEADS, N_COMPONENTS = len(SHAPE.heads), len(SHAPE.components)
NAMES = (
    "01_heuristic_core",
    "02_head_categories",
    "03_superadditivity",
    "04_your_own_checkpoint",
    "05_cognitive_task",
    "06_extractive_structures",
    "07_who_reads_the_core",
    "08_repair",
)
each_notebook = pytest.mark.parametrize("name", NAMES)


def read(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


def sources(name: str, kind: str) -> dict[str, str]:
    """Cells of one kind by their id."""
    cells = read(name)["cells"]
    return {cell["id"]: "".join(cell["source"]) for cell in cells if cell["cell_type"] == kind}


# -- what is in the files -------------------------------------------------------------------------


def test_the_notebooks_are_those_named() -> None:
    assert sorted(path.name for path in FOLDER.iterdir() if path.is_file()) == [
        f"{name}.ipynb" for name in NAMES
    ]


@pytest.fixture(scope="module")
def keeping() -> ModuleType:
    """The script that executes notebooks in full."""
    pytest.importorskip("nbclient", reason="needs the notebooks extra")
    return script(REPOSITORY / "docs" / "notebooks.py")


@each_notebook
def test_a_notebook_has_the_outputs_of_its_code_or_none(name: str, keeping: ModuleType) -> None:
    notebook = read(name)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    if not any(cell["outputs"] for cell in code):
        assert notebook["metadata"] == keeping.METADATA
        assert {cell["execution_count"] for cell in code} == {None}
        return
    executed = {"executed": keeping.digest(notebook)}
    assert notebook["metadata"] == {**keeping.METADATA, "mechcore": executed}, (
        f"execute it: python docs/notebooks.py {name}"
    )
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert len(outputs) > 5
    for output in outputs:
        assert output["output_type"] != "error"
        assert output.get("name") != "stderr", output["text"]
        text = json.dumps(output, ensure_ascii=False)
        assert not re.search(r"Traceback|Warning|CircuitsVis\.render", text)
        assert not re.search(r"/(?:home|root|tmp|work|usr)/", text)
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 1_000_000


@each_notebook
def test_a_notebook_is_kept_clean(name: str) -> None:
    notebook = read(name)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in notebook["cells"]:
        assert cell["metadata"] == {}
        assert "".join(cell["source"]).strip()
        assert cell["cell_type"] in ("code", "markdown")
    text = (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")
    assert text == json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    code = sources(name, "code")  # what makes it small is in its first cell
    assert next(iter(code)) == "parameters"
    assert 'QUICK = os.environ.get("MECHCORE_QUICK") == "1"' in code.pop("parameters")
    assert not any(re.search(r"\bQUICK\b|environ", source) for source in code.values())
    for cell in notebook["cells"]:  # no path of any machine
        text = "".join(cell["source"])
        assert not re.search(r"(?<![\w.:/<>~-])/\w[\w.-]*/|\b[A-Za-z]:\\|~/", text), cell["id"]


@each_notebook
def test_commands_in_a_notebook_are_those_of_the_command_line(name: str) -> None:
    group: Any = typer.main.get_command(app)
    context = typer.Context(group)
    for text in sources(name, "markdown").values():
        joined = text.replace("\\\n", " ")
        mentions = re.findall(r"`mechcore ([^`]+)`|^    mechcore (.+)$", joined, re.MULTILINE)
        for mention in map("".join, mentions):
            first, second, *_ = [*mention.split(), ""]
            command = group.get_command(context, first)
            if hasattr(command, "get_command"):
                command = command.get_command(context, second)
            known = {option for parameter in command.params for option in parameter.opts}
            assert set(re.findall(r"--[a-z-]+", mention)) <= known, mention


def test_outputs_of_other_code_are_noticed(keeping: ModuleType) -> None:
    notebook = read(NAMES[0])
    before = keeping.digest(notebook)
    notebook["cells"][1]["outputs"] = []
    assert keeping.digest(notebook) == before
    notebook["cells"][1]["source"] = [*notebook["cells"][1]["source"], "\n1"]
    assert keeping.digest(notebook) != before


# -- what they show -------------------------------------------------------------------------------


class _Rows(HTMLParser):
    """Texts of the cells of every table, row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.open = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self.open = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self.open = False

    def handle_data(self, data: str) -> None:
        if self.open:
            self.tables[-1][-1][-1] += data.strip()


class Shown:
    """Outputs of an executed notebook, by the id of their cell."""

    def __init__(self, notebook: Any) -> None:
        self.outputs = {c.id: c.outputs for c in notebook.cells if c.cell_type == "code"}

    def text(self, cell: str) -> str:
        """What it printed."""
        return "".join(o.text for o in self.outputs[cell] if o.output_type == "stream")

    def html(self, cell: str) -> str:
        return "".join(o.data["text/html"] for o in self._displayed(cell) if "text/html" in o.data)

    def plain(self, cell: str) -> str:
        return "".join(o.data["text/plain"] for o in self._displayed(cell))

    def tables(self, cell: str) -> list[list[list[str]]]:
        """Rows of its tables, those of their headers first."""
        parser = _Rows()
        parser.feed(self.html(cell))
        return parser.tables

    def columns(self, cell: str) -> dict[str, list[str]]:
        """Its first table by column; the index is the column ''."""
        header, *rows = [row for row in self.tables(cell)[0] if row]
        if rows and not any(rows[0][1:]):  # the index has a name, in a row of its own
            rows = rows[1:]
            header = ["", *header[1:]]
        return {name: [row[i] for row in rows] for i, name in enumerate(header)}

    def pictures(self) -> set[str]:
        """Cells with a figure that is a picture of some size."""
        cells = set()
        for cell in self.outputs:
            for output in self._displayed(cell):
                if "image/png" in output.data:
                    picture = base64.b64decode(output.data["image/png"])
                    assert picture.startswith(b"\x89PNG")
                    assert len(picture) > 5000
                    cells.add(cell)
        return cells

    def _displayed(self, cell: str) -> list[Any]:
        return [
            o for o in self.outputs[cell] if o.output_type in ("display_data", "execute_result")
        ]


AFRESH = """
%reset -f
import os, sys
import matplotlib.pyplot, pandas
os.chdir({folder!r})
matplotlib.pyplot.close("all")
pandas.reset_option("^display")
for name in [name for name in sys.modules if name.partition(".")[0] == "mechcore"]:
    del sys.modules[name]
%reset -f
"""
"""What a notebook begins with, as in a kernel of its own: the libraries alone are imported once."""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A kernel for all notebooks, without a network."""
    client = pytest.importorskip("jupyter_client", reason="needs the notebooks extra")
    pytest.importorskip("ipykernel", reason="needs the notebooks extra")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MECHCORE_QUICK", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        manager = client.AsyncKernelManager(kernel_name="python3")
        yield manager
        if manager.has_kernel:
            asyncio.run(manager.shutdown_kernel(now=True))


@pytest.fixture
def run(tmp_path: Path, kernel: Any) -> Callable[[str], Shown]:
    """Execute a notebook in its short form, and see that it is quiet."""
    nbformat = pytest.importorskip("nbformat", reason="needs the notebooks extra")
    nbclient = pytest.importorskip("nbclient", reason="needs the notebooks extra")
    folder = tmp_path / "folder"
    folder.mkdir()

    def execute(name: str) -> Shown:
        notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        nbformat.validate(notebook)
        afresh = nbformat.v4.new_code_cell(AFRESH.format(folder=str(folder)))
        notebook.cells.insert(0, afresh)
        client = nbclient.NotebookClient(notebook, km=kernel, timeout=240)
        client.execute()
        client.kc.stop_channels()
        shown = Shown(notebook)
        for cell, outputs in shown.outputs.items():
            for output in outputs:
                assert output.output_type != "error", cell
                assert output.get("name") != "stderr", (cell, output.text)
                text = output.get("text", "") + str(output.get("data", {}).get("text/plain", ""))
                assert not re.search(r"Traceback|Warning", text), (cell, text)
                assert str(REPOSITORY) not in text, cell
        assert list(folder.iterdir()) == [], "a notebook leaves files behind"
        return shown

    return execute


def number_after(text: str, before: str) -> float:
    match = re.search(re.escape(before) + r"\s*([-+]?[\d.]+(?:e[-+]?\d+)?)", text)
    assert match, (before, text)
    return float(match[1])


def test_the_heuristic_core(run: Callable[[str], Shown]) -> None:
    shown = run("01_heuristic_core")
    full = shown.columns("full")
    assert full["subset"] == ["all", "so_swap", "prep", "embed_if", "embed_verb", "all"]
    assert float(full["accuracy"][0]) > 0.9
    hooks = shown.text("hooks")
    assert number_after(hooks, "masking L0.H1 changes a logit by up to") > 0.1
    assert number_after(hooks, "masked and hooked logits differ by up to") < 1e-4
    assert "with m = 1 everywhere, bit for bit the same: True" in hooks
    pruned = shown.columns("prune")
    names = ["full", *(f"s{s}-seed{seed}" for s in ("0.50", "0.70") for seed in (42, 43))]
    assert pruned[""] == names
    kept = zip(pruned["heads kept"], pruned["MLPs kept"], strict=True)
    assert [int(heads) + int(mlps) for heads, mlps in kept] == [
        *(N_COMPONENTS - round(share * N_COMPONENTS) for share in (0, 0.5, 0.5, 0.7, 0.7))
    ]
    core = shown.text("core")
    assert "in all 4 subnetworks" in core
    assert f"{len(re.findall(r'L[0-9][.]H[0-9]', core))} of {N_HEADS} heads" in core
    changes = shown.tables("drops")[0]
    assert [row[0] for row in changes[3:]] == ["core", *(f"random {i}" for i in range(1, 6))]
    assert shown.pictures() == {"accuracy-figure", "core", "ablate"}


def test_head_categories(run: Callable[[str], Shown]) -> None:
    shown = run("02_head_categories")
    layer = shown.columns("table")
    assert layer["component"] == [f"L1.H{i}" for i in range(6)]
    assert "repeated" in layer["category"]
    assert "is repeated: queries with such a key" in shown.html("explain")
    counts = shown.columns("thresholds")
    assert list(counts)[1] == "mass 0.25, ratio 3"
    assert all(sum(map(int, counts[rule])) == N_HEADS for rule in list(counts)[1:])
    assert f"LabelAgreement(n={N_HEADS}" in shown.plain("stability")
    names = re.search(r"heads by name: (\{.*\})", shown.text("decoder"))
    assert names
    assert sum(map(int, re.findall(r": (\d+)", names[1]))) == 32
    assert "is condition: queries with such a key" in shown.html("custom")
    assert "repeated keys" in shown.text("knockouts") or "Attention to" in shown.text("knockouts")
    effects = shown.columns("effects")
    assert set(effects["split"]) <= {"id", "ood"}
    assert all(effects["share"])
    assert shown.pictures() == {"grid", "knockouts"}
    check_views(shown)


def check_views(shown: Shown) -> None:
    """Views of attention share one library, and need no network."""
    views = {cell: shown.html(cell) for cell in ("encoder-view", "decoder")}
    everything = "".join(shown.html(cell) for cell in shown.outputs)
    assert everything.count(library_script()) == 1
    assert views["encoder-view"].startswith(library_script())
    for page in views.values():
        check_view(page)
    assert len(titles_of(views["decoder"])) == 4
    assert re.search(r'"maskUpperTri": ?true', views["decoder"])
    assert re.search(r'"maskUpperTri": ?false', views["encoder-view"])


def check_view(page: str) -> None:
    """A view of attention is small beside its library, and needs no network."""
    figure = page.replace(library_script(), "")
    assert len(figure) < 100_000
    assert figure.count("CircuitsVis.render(") == 1
    assert not re.search(r"https?://|<script[^>]+src=", figure)


def titles_of(view: str) -> list[str]:
    match = re.search(r'"attentionHeadNames": ?(\[[^]]*\])', view)
    assert match
    return [str(title) for title in json.loads(match[1])]


def test_superadditivity(run: Callable[[str], Shown]) -> None:
    shown = run("03_superadditivity")

    match = re.search(
        r"(\d+) of (\d+) pairs differ in sign, (\d+) of them clearly; (\d+) are at the floor",
        shown.text("compare"),
    )
    assert match
    differ, pairs, clearly, floor = map(int, match.groups())
    assert clearly <= differ <= pairs == 10
    compared = shown.columns("compare")
    assert compared["signs differ"].count("True") == differ
    assert compared["floor"].count("True") == floor
    parts = shown.text("shapley")
    joint = float(re.search(r"joint change of .*: ([-\d.]+) nats", parts)[1])  # type: ignore[index]
    assert number_after(parts, "sum of dividends:") == pytest.approx(joint, abs=0.002)
    assert number_after(parts, "sum of Shapley values:") == pytest.approx(joint, abs=0.002)
    n_pairs = math.comb(N_COMPONENTS, 2)
    said = f"{n_pairs} pairs, {n_pairs - 8} of them screened out by gradients"
    assert said in shown.text("search")
    assert [name.count("+") for name in shown.columns("search")["set"]] == [1, 1, 2, 2]
    assert shown.pictures() == {"singles", "pairs", "margin-figure", "bars"}


def test_your_own_checkpoint(run: Callable[[str], Shown]) -> None:
    shown = run("04_your_own_checkpoint")

    assert "context\tclaim\tverdict\tpattern" in shown.text("files")
    assert "numbers have no agreed meaning" in shown.text("labels")
    mapping = shown.text("mapping")
    assert "non-entailment -> neutral (1) or contradiction (2)" in mapping
    assert "entailment -> entailment (0); not_entailment -> non-entailment (1)" in mapping
    assert number_after(shown.text("evaluate"), "accuracy") > 0.9
    assert shown.columns("prune")[""] == ["full", "s0.50-seed42", "s0.50-seed43"]
    assert re.search(rf"core: \d+ of {N_HEADS} heads", shown.text("prune"))
    assert 1 <= len(shown.columns("heads")["component"]) <= 8
    export = shown.text("export")
    assert "'config.json', 'mechcore.json', 'model.safetensors', 'tokenizer.json'" in export
    assert number_after(export, "largest difference of a logit:") < 1e-3
    assert number_after(export, "logits up to") > 1
    assert shown.pictures() == {"roles"}


def test_the_cognitive_task(run: Callable[[str], Shown]) -> None:
    shown = run("05_cognitive_task")

    two_sided, signed = (shown.text("task").splitlines()[i : i + 3] for i in (0, 3))
    for line in two_sided:
        left, right = map(int, re.findall(r"\d+", line)[2 * ("context color" in line) :][:2])
        assert line.endswith("-> right" if right > left else "-> left")
    for line in signed:
        evidence = re.findall(r"-?0\.\d\d", line)["Context: color" in line]
        assert line.endswith("-> left" if evidence.startswith("-") else "-> right")
    conditions = shown.columns("conditions")
    assert conditions["trials"] == ["15"] * 8
    for name, answer in zip(conditions[""], conditions["answer"], strict=True):
        context, motion, color = name.split("/")
        assert answer == (motion if context == "motion" else color)
    pairs = shown.columns("pairs")
    assert pairs["of them in train"] == [pairs["pairs"][0], "0", "0"]
    words, pieces = shown.text("spans").splitlines()
    assert len(re.findall(r"\[\d\d\]", words)) == words.count("[") == 4
    assert len(re.findall(r"\[0\] \[\.\] (?:\[\d\] ?)+", pieces)) == 2
    answers = [line.rpartition(" -> ")[2] for line in shown.text("base").splitlines()]
    assert answers[:3] == ["71", "34", "left"]

    arms = ["base", *["fine_tuned"] * 2, *["scratch"] * 2]
    assert shown.columns("train")["arm"] == arms
    assert shown.columns("matched")["arm"] == arms[::2]
    most = shown.columns("attention-view")
    assert all(float(ratio) > 1 for ratio in most["ratio"])
    view = shown.html("attention-view")
    check_view(view)
    heads = zip(most["arm"], most["component"], strict=True)
    assert titles_of(view) == [f"{arm} {head}" for arm, head in heads]

    check = shown.columns("decoding")
    assert check["n_rows"] == ["9"] * 3
    assert check["holds"] == ["True"] * 3
    assert shown.columns("answer")["variable"][::3] == ["choice", "color", "context", "motion"]
    assert shown.columns("selectivity")[""] == arms[::2]
    assert shown.text("projection") == "method: pca\n"
    drawn = {"curve", "ablation", "mass", "attention", "decoding", "selectivity", "projection"}
    assert shown.pictures() == drawn


def test_extractive_structures(run: Callable[[str], Shown]) -> None:
    shown = run("06_extractive_structures")

    heads = [line for line in shown.text("facts").splitlines() if "options" in line]
    assert [line.partition(",")[0] for line in heads] == [
        f"{hop}-hop {data}" for hop in ("first", "second") for data in ("facts", "implications")
    ]
    assert all(line.endswith("20 prompts, 20 options") for line in heads)
    known = re.findall(r"-> \S+ \((\S+)\)", shown.text("base"))
    assert len(known) == 7
    assert "the model is as it was, bit for bit: True" in shown.text("tune")
    grid = shown.columns("recall")
    assert grid["learning_rate"] == ["0.0005", "0.0010"] * 2
    for task in (slice(0, 2), slice(2, 4)):
        assert sorted(grid["chosen"][task]) == ["False", "True"]

    scores = shown.columns("scores")
    assert scores["score"] == [*["informative"] * 3, *["upstream"] * 3, *["downstream"] * 3]
    assert scores["n"] == ["20"] * 9
    gaps = re.findall(r"largest gap (\S+) logits", shown.text("sums"))
    assert len(gaps) == 2
    assert all(float(gap) < 1e-4 for gap in gaps)
    view = shown.html("heads")
    check_view(view)
    assert titles_of(view) == re.findall(r"(L\d\.H\d), downstream", shown.text("heads"))

    rows = shown.tables("ordering")[0][2:]
    orders = ["facts first", "implications first", "joint"]
    assert [row[-5] for row in rows] == orders * 2
    assert rows[2][-4:] == rows[5][-4:], "joint training has nothing to replay"
    grafted = shown.tables("grafting")[0]
    assert [row[0] for row in grafted[2:]] == ["control graft", "graft", "other facts"]
    assert shown.pictures() == {"recall", "first-hop-map", "second-hop-map", "freezing-figure"}


def test_who_reads_the_core(run: Callable[[str], Shown]) -> None:
    shown = run("07_who_reads_the_core")

    check = shown.text("check")
    assert number_after(check, "the head changes a logit by up to") > 0.1
    assert "all 16 paths out of it cut" in check  # to 12 heads, 3 MLP layers and the answer
    assert number_after(check, "logits differ by up to") < 1e-4
    assert "with no path cut, bit for bit the same: True" in check
    one_path = shown.columns("blind")
    moved = [a != b for a, b in zip(one_path["full model"], one_path["L1.H3>L1.MLP"], strict=True)]
    assert len(moved) == 8
    assert any(moved)

    rows = {row[0]: row[1:] for row in shown.tables("readers")[0] if row[0].startswith("L")}
    assert len(rows) >= 8
    assert not {"L1.H1", "L1.H3"} & set(rows), "nothing of layer 1 but its MLP reads its heads"
    for name in ("L1.MLP", "L2.H2"):
        assert rows[name][-1] in ("0.333", "0.667", "1.000")  # of two random sets and the core
    answers = [row for row in shown.tables("direct")[0] if row[0] == f"L{SHAPE.n_layers - 1}.MLP"]
    assert len(answers) == 1
    assert answers[0][1] == answers[0][2], "nothing but the answer reads the last MLP layer"
    paths = [row[0] for row in shown.tables("direct")[1] if ">" in row[0]]
    assert len(paths) == 10
    assert not any("answer" in path for path in paths)
    verdict = re.search(r"verdict: (.+)", shown.text("verdict"))
    assert verdict
    assert verdict[1] in ("supported", "not supported", "inconclusive")
    if "R: empty" in shown.text("verdict"):
        assert verdict[1] == "inconclusive"
    joint = {row[0]: row[1] for row in shown.tables("together")[0] if row[0]}
    assert joint["all, and the answer"] == joint["ablated core"]
    assert shown.pictures() == {"lab", "pairs", "halves"}


def test_what_can_be_repaired(run: Callable[[str], Shown]) -> None:
    shown = run("08_repair")
    assert shown.pictures() == {"repair"}
    assert shown.text("headline").startswith("With 24 repair examples (2 runs), ")
    assert [row[0] for row in shown.tables("table")[0][3:]] == ["none", "threshold", "gates"]
    assert "out of domain and" in shown.text("why")
    assert len(set(shown.columns("sides")["set"])) == 1
