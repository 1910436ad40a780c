"""From settings to jobs: which results a change invalidates, and which it leaves."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
from study.sources import checkpoint_like, data_config, leave_out_code, write_data

from mechcore.analyses.ablation import Ablation
from mechcore.analyses.dose import Dose
from mechcore.analyses.effective_size import EffectiveSize
from mechcore.analyses.failure import Failure
from mechcore.analyses.halves import Halves
from mechcore.analyses.heads import Heads
from mechcore.analyses.paths import Paths
from mechcore.analyses.roles import Roles
from mechcore.analyses.search import Search
from mechcore.analyses.smallest import Smallest
from mechcore.analyses.sweep import Sweep
from mechcore.errors import InputError
from mechcore.main_study.config import Analyses, Resources, StudyConfig
from mechcore.main_study.plan import Plan, make_plan
from mechcore.main_study.study import MainStudy
from mechcore.pruning import PruneSettings
from mechcore.steps.answers import Answers
from mechcore.steps.config import DataConfig, ModelConfig
from mechcore.steps.masks import AcceptMasks, half_of
from mechcore.study.step import Job
from mechcore.study.store import Store


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan reads files, but opens no model and parses no data."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("loaded by a plan")

    for name in ("load_model", "load_tokenizer", "read_sources", "encode_for"):
        monkeypatch.setattr(f"mechcore.steps.inputs.{name}", refuse)
    leave_out_code(monkeypatch)


def study_of(folder: Path) -> StudyConfig:
    model = checkpoint_like(folder / "model")
    return StudyConfig(
        model=ModelConfig(source=str(model)),
        data=data_config(folder / "data"),
        seeds=(1, 2, 3),
        target_sparsities=(0.3, 0.5),
        seeds_per_job=2,
        prune=PruneSettings(steps=9, batch_size=4),
        analyses=Analyses(sweep=Sweep("heads")),
    )


@pytest.fixture
def config(tmp_path: Path) -> StudyConfig:
    return study_of(tmp_path)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """The plan of equal files in another place."""
    with pytest.MonkeyPatch.context() as patch:
        leave_out_code(patch)
        return make_plan(study_of(tmp_path_factory.mktemp("elsewhere")))


def label(job: Job) -> str:
    """What a job is, in a word of the table below."""
    if not isinstance(job.step, Answers):
        own_mean = job.step.kind == "means" and "ood" in job.inputs
        return "means ood" if own_mean else job.step.kind
    return f"{'sub' if job.needs else 'full'} {job.step.split}"


def keys(plan: Plan, *labels: str) -> set[str]:
    """Keys of the jobs, or of those with such labels."""
    return {job.key for job in plan.jobs if not labels or label(job) in labels}


def target_and_seeds(job: Job) -> tuple[float, tuple[int, ...]]:
    assert isinstance(job.step, AcceptMasks)
    return job.step.target_sparsity, job.step.seeds


def changed(before: Plan, after: Plan) -> set[str]:
    """Labels of jobs whose key is new; all jobs of a label change together."""
    new: dict[str, set[bool]] = {}
    known = keys(before)
    for job in after.jobs:
        new.setdefault(label(job), set()).add(job.key not in known)
    assert all(len(answers) == 1 for answers in new.values())
    return {name for name, answers in new.items() if answers == {True}}


EVERYTHING = {
    *("describe", "means", "full id", "full ood", "prune", "masks", "sub id", "sub ood"),
    *("accuracy", "core", "scores", "heads", "ablation", "swept", "sweep", "roles"),
    *("flips", "smallest", "paths", "dose", "means ood", "ood_mean", "failure"),
    *("responses", "rankings"),
}
TRAIN = EVERYTHING - {"scores", "full id", "full ood", "means ood"}
JUDGED = {"sweep", "roles", "flips", "failure", "paths", "dose", "responses", "rankings"}
SWEPT = {"swept", "ood_mean", *JUDGED}
OF_ROLES = JUDGED - {"sweep", "failure", "rankings"}
TABLES = {"accuracy", "ablation", *JUDGED}
ID = {"describe", "full id", "sub id", "scores", "heads", "swept", "smallest", *TABLES}
OOD = {"describe", "full ood", "sub ood", "swept", "smallest", "means ood", "ood_mean", *TABLES}
READ = {"masks", "sub id", "sub ood", "accuracy", "smallest", "core", "heads", "ablation"}
READ |= {"paths", "failure", "responses", "rankings"}
MASKS = READ | {"prune"}
ABLATED = {"ablation", "failure", "rankings"}
ANSWERS = {"full id", "full ood", "sub id", "sub ood"}


@dataclass(frozen=True)
class World:
    """A study and where its files are."""

    config: StudyConfig
    folder: Path

    def of(self, part: str, **settings: Any) -> StudyConfig:
        return replace(self.config, **{part: replace(getattr(self.config, part), **settings)})

    model, data = partialmethod(of, "model"), partialmethod(of, "data")
    prune, analyses = partialmethod(of, "prune"), partialmethod(of, "analyses")

    def set(self, **settings: Any) -> StudyConfig:
        return replace(self.config, **settings)

    def write(self, name: str, content: str = "new") -> StudyConfig:
        (self.folder / name).write_text(content)
        return self.config

    def longer(self, split: str) -> StudyConfig:
        write_data(Path(getattr(self.config.data, split)), 20)
        return self.config

    def touch(self) -> StudyConfig:
        for path in self.folder.rglob("*.*"):
            os.utime(path, (1, 1))
        return self.config

    def data_moved(self, split: str, name: str) -> StudyConfig:
        (self.folder / "moved").mkdir()
        old = Path(getattr(self.config.data, split))
        return self.data(**{split: str(old.rename(self.folder / "moved" / name))})

    def model_moved(self) -> StudyConfig:
        return self.model(source=str((self.folder / "model").rename(self.folder / "moved")))


CHANGES: dict[str, tuple[Callable[[World], StudyConfig], set[str]]] = {
    # files
    "weights": (lambda w: w.write("model/model.safetensors"), EVERYTHING),
    "model's config": (lambda w: w.write("model/config.json", "{}"), EVERYTHING),
    "tokenizer": (lambda w: w.write("model/tokenizer.json"), EVERYTHING),
    "chat template": (lambda w: w.write("model/chat_template.jinja"), EVERYTHING),
    "model's notes": (lambda w: w.write("model/README.md"), set()),
    "model's place": (World.model_moved, set()),
    "times of files": (World.touch, set()),
    "train content": (lambda w: w.longer("train"), TRAIN),
    "id content": (lambda w: w.longer("id"), ID),
    "ood content": (lambda w: w.longer("ood"), OOD),
    "id place": (lambda w: w.data_moved("id", "id-data.csv"), set()),
    "id name, as in tables": (lambda w: w.data_moved("id", "other.csv"), {"describe", *TABLES}),
    "id kind": (lambda w: w.data_moved("id", "id-data.tsv"), ID),
    # model
    "max_length": (lambda w: w.model(max_length=9), EVERYTHING),
    "class_names": (lambda w: w.model(class_names=("a", "b", "c")), EVERYTHING),
    "prompt": (lambda w: w.model(prompt="{a}"), EVERYTHING),
    "chat_template": (lambda w: w.model(chat_template=True), EVERYTHING),
    "answers": (lambda w: w.model(answers={"a": "b"}), EVERYTHING),
    "backend": (lambda w: w.model(backend="hooked"), EVERYTHING),
    "backend, as it was chosen": (lambda w: w.model(backend="bridge"), set()),
    "allow_pickle": (lambda w: w.model(allow_pickle=True), set()),
    "revision of a folder": (lambda w: w.model(revision="v2"), set()),
    "embedded, not used": (lambda w: w.model(embedded="decoder", checkpoint="x"), set()),
    # data
    "data seed": (lambda w: w.data(seed=1), EVERYTHING),
    "max_train": (lambda w: w.data(max_train=3), TRAIN),
    "max_id": (lambda w: w.data(max_id=3), ID),
    "max_ood": (lambda w: w.data(max_ood=3), OOD),
    "ood_label": (lambda w: w.data(ood_label="neutral"), OOD),
    "ood_subsets": (lambda w: w.data(ood_subsets=("x",)), OOD),
    "population": (lambda w: w.data(population="texts"), ID | OOD),
    "columns": (lambda w: w.data(columns={"text_a": "text_b"}), EVERYTHING),
    "label_map": (lambda w: w.data(label_map={"0": "neutral"}), EVERYTHING),
    # pruning
    "steps": (lambda w: w.prune(steps=10), MASKS),
    "lr": (lambda w: w.prune(lr=0.2), MASKS),
    "precision": (lambda w: w.prune(precision="bfloat16"), MASKS),
    "masks_per_pass": (lambda w: w.prune(masks_per_pass=3), MASKS),
    "save_every": (lambda w: w.prune(save_every=3), set()),
    "tolerance": (lambda w: w.prune(tolerance=0.5), READ),
    "discretisation": (lambda w: w.prune(discretisation="threshold"), READ),
    "seeds_per_job": (lambda w: w.set(seeds_per_job=3), MASKS),
    "order of seeds": (lambda w: w.set(seeds=(3, 1, 2)), set()),
    "order of sparsities": (lambda w: w.set(target_sparsities=(0.5, 0.3)), set()),
    # analyses
    "batch_size": (lambda w: w.set(batch_size=7), ANSWERS | TABLES | SWEPT | {"smallest"}),
    "n_resamples": (lambda w: w.set(n_resamples=7), (TABLES | {"smallest"}) - {"accuracy"}),
    "heads.max_examples": (lambda w: w.analyses(heads=Heads(7)), {"scores", "heads"}),
    "no heads": (lambda w: w.analyses(heads=None), set()),
    "max_joint": (lambda w: w.analyses(ablation=Ablation(max_joint=1)), ABLATED),
    "max_non_core": (lambda w: w.analyses(ablation=Ablation(max_non_core=1)), ABLATED),
    "controls": (lambda w: w.analyses(ablation=Ablation(controls=1)), ABLATED),
    "their examples": (lambda w: w.analyses(ablation=Ablation(control_examples=1)), ABLATED),
    "no ablation": (lambda w: w.analyses(ablation=None), {"failure", "rankings"}),
    "no pairs": (lambda w: w.analyses(failure=Failure(n_pairs=0)), {"failure"}),
    # The core's ablations are taken from the sweep, where there is one.
    "sweep": (lambda w: w.analyses(sweep=Sweep()), {"ablation", *SWEPT}),
    # Only what takes the mean's place can be that of another domain.
    "no ood_mean": (lambda w: w.analyses(sweep=Sweep("heads", ood_mean=False)), JUDGED),
    "fill": (lambda w: w.analyses(fill="zero"), {"swept", *ABLATED, *JUDGED}),
    "loss": (lambda w: w.analyses(smallest=Smallest(0.1)), {"smallest"}),
    "no sweep": (lambda w: w.analyses(sweep=None), {"describe", "ablation", "paths"}),
    "roles": (lambda w: w.analyses(roles=Roles(alpha=0.1)), OF_ROLES),
    "paths": (lambda w: w.analyses(paths=Paths(controls=3)), {"paths"}),
    "fewer examples": (lambda w: w.analyses(paths=Paths(max_examples=3)), {"paths"}),
    "doses": (lambda w: w.analyses(dose=Dose(2)), {"dose"}),
    "no doses": (lambda w: w.analyses(dose=None), set()),
    "no paths": (lambda w: w.analyses(paths=None), set()),
    "groups": (lambda w: w.data(groups={"g": ("x",)}), JUDGED | {"accuracy"}),
    "sizes alone": (lambda w: w.analyses(effective_size=EffectiveSize((0.1,), 0.1)), set()),
    "resources": (lambda w: w.set(resources=Resources(1, 1.0, "cuda")), set()),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_invalidates_what_depends_on_it(
    what: str, config: StudyConfig, tmp_path: Path, elsewhere: Plan
) -> None:
    change, expected = CHANGES[what]
    assert {label(job) for job in elsewhere.jobs} == EVERYTHING
    assert changed(elsewhere, make_plan(change(World(config, tmp_path)))) == expected


def test_versions_and_code_invalidate_everything(
    config: StudyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make_plan(config)
    for name, value in (
        ("code_digests", lambda things: {"mechcore.components": "0"}),
        ("versions", lambda packages: {"torch": "0"}),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"mechcore.study.step.{name}", value)
            assert changed(before, make_plan(config)) == EVERYTHING
    assert changed(before, make_plan(config)) == set()


def test_code_of_the_models_architecture_counts(
    config: StudyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its module is found by name: no step imports it."""
    monkeypatch.undo()  # with the code
    modules = {"bert": ("bert", "encoder"), "llama": ("decoders",)}
    for kind, own in modules.items():
        (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": kind}))
        code = {job.step.kind: job.recipe["code"] for job in make_plan(config).jobs}
        there = {f"mechcore.models.architectures.{name}" for name in own}
        for step in ("means", "prune", "answers", "swept", "paths"):
            assert there <= set(code[step]), (kind, step)
        others = {f"mechcore.models.architectures.{name}" for name in {"bert", "decoders"} - {*own}}
        assert not others & set(code["prune"])


def test_the_jobs_of_a_study(config: StudyConfig) -> None:
    plan = make_plan(config)
    (part,) = plan.parts
    # Seeds 1 and 2, and 3, at two sparsities.
    several = dict.fromkeys(("prune", "masks", "sub id", "sub ood"), 4)
    assert Counter(map(label, plan.jobs)) == dict.fromkeys(EVERYTHING, 1) | several
    chunks = [(0.3, (1, 2)), (0.3, (3,)), (0.5, (1, 2)), (0.5, (3,))]
    assert list(map(target_and_seeds, part.masks)) == chunks
    assert len({job.name for job in plan.jobs}) == len(plan.jobs)


def test_halves_are_pruned_beside_what_there_is(config: StudyConfig) -> None:
    before = make_plan(config)
    analyses = replace(config.analyses, halves=Halves())
    after = make_plan(replace(config, analyses=analyses))
    assert keys(before) < keys(after)
    new = Counter(label(job) for job in after.jobs if job.key not in keys(before))
    # Two halves with two chunks of seeds at two sparsities, and no answers of them.
    assert new == {"means": 2, "prune": 8, "masks": 8, "halves": 1}
    (part,) = after.parts
    assert [job.key for job in part.masks] == [job.key for job in before.parts[0].masks]
    assert len({job.key for job in after.jobs if label(job) == "prune"}) == 12
    assert len({job.name for job in after.jobs}) == len(after.jobs)
    assert {half_of(job) for job in part.jobs["halves"].needs.values()} == {None, 1, 2}
    assert {job.key for job in part.masks} < {j.key for j in part.jobs["halves"].needs.values()}
    other = make_plan(replace(config, analyses=analyses, data=replace(config.data, seed=1)))
    assert not keys(other, "means") & keys(after, "means")


def test_every_job_comes_after_those_that_it_needs(config: StudyConfig) -> None:
    both = replace(config, variants={"a": config, "b": config})
    for study in (config, both, embedded(checkpoints=("embedded",))):
        seen: set[str] = set()
        for job in make_plan(study).jobs:
            assert {need.key for need in job.needs.values()} <= seen
            assert job.key not in seen
            seen.add(job.key)


def test_what_is_added_keeps_what_there_is(config: StudyConfig) -> None:
    before, after = make_plan(config), make_plan(replace(config, seeds=(1, 2, 3, 4, 5)))
    known = keys(before)
    chunks = {target_and_seeds(job)[1]: job.key in known for job in after.parts[0].masks}
    assert chunks == {(1, 2): True, (3, 4): False, (5,): False}
    assert {label(job) for job in after.jobs if job.key not in known} == MASKS
    after = make_plan(replace(config, target_sparsities=(0.3, 0.4, 0.5)))
    kinds = ("describe", "means", "prune", "full id", "full ood", "sub id", "sub ood", "scores")
    old, new = keys(before, *kinds), keys(after, *kinds)
    assert old < new
    assert len(new - old) == 6  # two chunks, each pruned and answered twice


def test_equal_models_share_their_jobs(config: StudyConfig, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "model", tmp_path / "same")
    checkpoint_like(tmp_path / "other", "else")
    variants = {
        name: replace(config, model=ModelConfig(source=str(tmp_path / name)))
        for name in ("model", "same", "other")
    }
    third = {"other": variants.pop("other")}
    alone, plan = make_plan(config), make_plan(replace(config, variants=variants))
    assert [part.name for part in plan.parts] == ["model", "same"]
    assert keys(plan) == keys(alone)
    first, second = ({job.key for job in part.results} for part in plan.parts)
    assert first == second
    plan = make_plan(replace(config, variants=variants | third))
    # Tables of other masks are other jobs, and so is everything else.
    assert len(plan.jobs) == 2 * len(alone.jobs)


def embedded(**settings: Any) -> StudyConfig:
    return replace(
        StudyConfig(
            data=DataConfig(max_train=8, max_id=8, max_ood=8),
            seeds=(1,),
            target_sparsities=(0.5,),
            analyses=Analyses(effective_size=EffectiveSize((0.3, 0.5))),
        ),
        **settings,
    )


def test_checkpoints_share_what_the_study_has(tmp_path: Path) -> None:
    alone, plan = make_plan(embedded()), make_plan(embedded(checkpoints=("embedded",)))
    assert keys(alone) < keys(plan)
    sizes = plan.parts[0].jobs["effective_size"]
    assert isinstance(sizes.step, EffectiveSize)
    n = len(sizes.step.checkpoints)
    assert n > 2
    assert len(sizes.needs) == n
    pruned = [job for job in plan.jobs if label(job) == "prune"]
    # Two sparsities at every checkpoint, of which the last is the model itself, at 0.5.
    assert len(pruned) == 2 * n
    assert len(plan.parts[0].masks) == 1
    only = make_plan(embedded(checkpoints=("embedded",), target_sparsities=()))
    assert keys(only) <= keys(plan)
    assert "core" not in only.parts[0].jobs


def test_a_checkpoint_that_changes_invalidates_its_own_jobs(
    config: StudyConfig, tmp_path: Path
) -> None:
    for step in (1, 2):
        checkpoint_like(tmp_path / "run" / f"step-{step}", str(step))
    study = replace(config, checkpoints=(str(tmp_path / "run"),))
    before = make_plan(study)
    sizes = before.parts[0].jobs["effective_size"].step
    assert isinstance(sizes, EffectiveSize)
    assert sizes.checkpoints == (1, 2)
    (tmp_path / "run" / "step-2" / "model.safetensors").write_text("new")
    after = make_plan(study)
    new = [job for job in after.jobs if job.key not in keys(before)]
    assert {label(job) for job in new} == {
        *("means", "prune", "masks", "full id", "full ood", "sub id", "sub ood", "accuracy"),
        "effective_size",
    }
    assert all(label(job) == "effective_size" or "checkpoint 2" in job.name for job in new)


def test_missing_files_are_named(config: StudyConfig, tmp_path: Path) -> None:
    for split in ("train", "id", "ood"):
        data = replace(config.data, **{split: str(tmp_path / "no.csv")})
        with pytest.raises(InputError, match=r"no\.csv: no such file"):
            make_plan(replace(config, data=data))
    with pytest.raises(InputError, match="data of your own; missing --train, --id, --ood"):
        make_plan(replace(config, data=DataConfig()))
    with pytest.raises(InputError, match="without --model"):
        make_plan(replace(config, model=ModelConfig()))
    for path in (tmp_path / "model").iterdir():
        path.unlink()
    with pytest.raises(InputError, match=r"no config\.json and no weights"):
        make_plan(config)
    with pytest.raises(InputError, match="is not a checkpoint and contains none"):
        make_plan(embedded(checkpoints=(str(tmp_path),)))


def test_only_what_is_asked_for_is_read(config: StudyConfig) -> None:
    train = replace(config, data=DataConfig(train=config.data.train))

    def jobs(*only: str, of: StudyConfig = train) -> dict[str, Job]:
        return {label(job): job for job in make_plan(replace(of, only=only)).jobs}

    assert set(jobs("core")) == {"describe", "means", "prune", "masks", "core"}
    assert set(jobs("core")["describe"].inputs) == {"model", "train"}
    with pytest.raises(InputError, match="missing --id, --ood"):
        jobs("smallest")
    # The core is marked where it is asked for, too, or where all is.
    alone, beside, every = jobs("heads"), jobs("heads", "core"), jobs(of=config)
    assert set(alone) == {"describe", "scores", "heads"}
    assert [set(known["heads"].needs) for known in (alone, beside, every)] == [
        {"scores"},
        {"scores", "core"},
        {"scores", "core"},
    ]
    # In-domain texts come first, and models without a head will do for it alone.
    assert "train" in alone["scores"].inputs
    assert set(jobs("heads", of=config)["scores"].inputs) == {"model", "id"}
    assert [known["scores"].inputs["model"].answers for known in (alone, every)] == [False, True]  # type: ignore[attr-defined]


def test_names_of_data(config: StudyConfig, tmp_path: Path) -> None:
    data = write_data(tmp_path / "mnli.train.csv", 3)
    study = replace(config, data=replace(config.data, train=str(data)))
    steps = [make_plan(planned).parts[0].jobs["describe"].step for planned in (study, embedded())]
    own, splits = (step.names for step in steps)  # type: ignore[attr-defined]
    assert own == {"train": "mnli", "id": "id-data", "ood": "ood-data"}
    assert splits == {split: split for split in ("train", "id", "ood")}


def test_the_hasher_reads_each_file_once(config: StudyConfig) -> None:
    asked: list[str] = []

    def hasher(path: Path) -> str:
        asked.append(path.name)
        return path.name

    make_plan(config, hasher)
    names = ["config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(asked) == sorted([*names, "train-data.csv", "id-data.csv", "ood-data.csv"])


def test_analyses_that_a_fill_cannot_do_are_refused_before_any_work(config: StudyConfig) -> None:
    def with_fill(fill: str, **more: Any) -> StudyConfig:
        return replace(config, analyses=replace(config.analyses, fill=fill, **more))

    with pytest.raises(
        InputError,
        match=r"paths and dose cannot use the fill 'counterfactual'.*--without paths,dose",
    ):
        make_plan(with_fill("counterfactual"))
    make_plan(with_fill("counterfactual", paths=None, dose=None))
    with pytest.raises(InputError, match="search cannot use the fill 'resample'"):
        make_plan(with_fill("resample", search=Search()))


@pytest.mark.parametrize(
    ("method", "n_jobs", "n_masks"),
    [("l0", 4, 4), ("ugs", 2, 4), ("attribution", 1, 2), ("random", 4, 4)],
)
def test_a_ranking_is_worked_out_once(
    config: StudyConfig, method: str, n_jobs: int, n_masks: int
) -> None:
    """Two sparsities and three seeds, two to a job; a ranking without chance has one mask."""
    plan = make_plan(replace(config, method=method))
    kinds = [job.step.kind for job in plan.jobs]
    assert (kinds.count("prune"), kinds.count("masks")) == (n_jobs, n_masks)
    for job in plan.jobs:
        if isinstance(job.step, AcceptMasks):
            assert job.step.target_sparsity in job.needs["trained"].step.target_sparsities  # type: ignore[attr-defined]


def test_a_run_to_compare_with_is_looked_for_first(config: StudyConfig, tmp_path: Path) -> None:
    study = replace(config, beside=str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"none/config\.json: not found; expected the folder of a"):
        MainStudy(study, Store(tmp_path / "store"))
