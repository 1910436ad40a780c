"""Bad input to commands: refused in one line, with nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import helpers
import pytest

from mechcore.cli import main
from mechcore.worlds import tiny_world
from mechcore.worlds.embedded import tiny_decoder_dir, tiny_encoder_dir

EMBEDDED = helpers.embedded_shape()
SPLITS = ("train", "id", "ood")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files of the tiny world, and a few broken ones."""
    folder = tmp_path_factory.mktemp("files")
    for split in SPLITS:
        frame = tiny_world.generate(split, 24, 11).frame  # type: ignore[arg-type]
        frame.to_csv(folder / f"{split}.csv", index=False)
    frame.drop(columns="label").to_csv(folder / "no-label.csv", index=False)
    (folder / "notes.docx").write_text("text")
    frame.assign(label="maybe").to_csv(folder / "other-label.csv", index=False)
    return folder


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every command runs in an empty folder, so that nothing written goes unseen."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return tmp_path


def own(files: Path) -> str:
    data = " ".join(f"--{split} {files}/{split}.csv" for split in SPLITS)
    return f"--model {tiny_encoder_dir()} {data}"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


Refused = Callable[..., None]


@pytest.fixture
def refused(files: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Check that a command is refused in one line and leaves nothing behind."""

    def check(command: str, message: str) -> None:
        places = {
            "own": own(files),
            "data": own(files).split(maxsplit=2)[2],
            "final": tiny_encoder_dir(),
            "files": files,
            "decoder": tiny_decoder_dir(),
        }
        before = contents(here), sorted(here.rglob("*"))
        capsys.readouterr()
        # A lone '' stands for an empty argument.
        arguments = [a if a != "''" else "" for a in command.format(**places).split()]
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        out, err = capsys.readouterr()
        assert len(err.splitlines()) == 1, err
        assert err.startswith("mechcore: error: ")
        assert message.format(**places) in err
        assert out == ""
        assert (contents(here), sorted(here.rglob("*"))) == before

    return check


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--train {files}/nosuch.csv", "{files}/nosuch.csv: no such file"),
        ("--ood {files}/no-label.csv", "no-label.csv: no column for label"),
        ("--id {files}/notes.docx", "notes.docx: unknown kind of file"),
        ("--id {files}/other-label.csv", "label 'maybe': not a class of the checkpoint"),
        ("--class-names a", "1 given (a), but the checkpoint has 2 classes"),
        ("--ood-label nosuch", "no example with label 'nosuch' (--ood-label)"),
        ("--max-id -1", "--max-id is -1; expected a whole number from 1 to 2147483647, or 0 for"),
    ],
)
def test_bad_data(refused: Refused, options: str, message: str) -> None:
    refused(f"run {{own}} {options} --out deep/results", message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("{own} --target-sparsities 50", "in [0, 1)"),
        ("{own} --target-sparsities abc", "--target-sparsities 'abc': expected numbers"),
        ("{own} --data-seed -1", "--data-seed is -1; expected a whole number"),
        ("{own} --prune-steps many", "'--prune-steps'"),
        ("{own} --nosuch", "No such option: --nosuch"),
        ("{own} extra.yaml more", "unexpected extra argument"),
        ("--model {final} --id {files}/id.csv --ood {files}/ood.csv", "missing --train"),
        ("{own} --prompt {{a}} ", "a classifier, which reads texts without a prompt"),
        ("--model {decoder} {data} --class-names a,b", "language model, whose classes are its"),
        ("--embedded decoder --prompt {{a}}{{b}}", "are for your own checkpoints"),
        ("{own} --answers yes", "--answers 'yes': expected NAME=VALUE pairs"),
    ],
)
def test_bad_options(refused: Refused, options: str, message: str) -> None:
    refused(f"accuracy {options}", message)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run none.yaml", "none.yaml: no such file; mechcore study init writes one"),
        ("study status .", "no study in this folder (no study.json)"),
        ("study init study.json", "expected a file that ends in .yaml, .yml"),
        ("nosuch", "No such command 'nosuch'"),
        ("core ~/no-such-masks", f"{Path.home()}/no-such-masks: no such file"),
        ("core m --out=~/no-such/masks", "m: no such file"),
        (
            "ablation {own} --sets L0.H1,+",
            "the set '+' contains no component; example: L1.H0+L2.MLP",
        ),
        ("ablation {own} --components L1.H0 --fill nosuch", "fill 'nosuch': unknown"),
        ("ablation {own} --subsets", "0 components named; expected 2 to 10 for all subsets"),
        (
            "ablation {own} --components heads --subsets",
            f"{len(EMBEDDED.heads)} components named; expected 2 to 10 for all subsets",
        ),
        ("search {own} --components L1.H0", "search: 1 component; expected at least two"),
        ("search {own} --subset nosuch", "search: no subset 'nosuch'; the data has so_swap"),
        ("accuracy {own} --prune-settings lr=fast", "pruning: lr is 'fast'; expected a number"),
        ("accuracy {own} --prune-method layer-matched", "use mechcore methods"),
        ("methods {own} --methods layer-matched", "add l0 to the methods"),
        ("effective-size --checkpoints {files} {data}", "is not a checkpoint and contains none"),
        ("effective-size --embedded decoder", "the embedded decoder has no series"),
        ("effective-size {own} --seeds 1", "only: effective_size has no job in this study"),
        ("roles {files}", "no study in this folder"),
        ("export nosuch --mask s0.50-seed42", "nosuch/config.json: not found"),
        ("export {files}", "Missing option '--mask'"),
        ("report nosuch", "nosuch/config.json: not found"),
        ("methods {own} --target-sparsities 0.995", "0.995: keeps none of the model's 28 comp"),
        ("heads --model {final}", "missing --id"),
        ("heads --train {files}/id.csv", "files are given without --model"),
        ("core --out {files}", "the folder is not empty"),
        ("core --out {files}/id.csv/core", "cannot be written"),
    ],
)
def test_bad_commands(refused: Refused, command: str, message: str) -> None:
    refused(command, message)


def test_a_file_in_the_way_is_left_alone(refused: Refused, here: Path) -> None:
    (here / "mine.csv").write_text("text")
    for command in ("run {own}", "heads"):
        refused(f"{command} --out mine.csv", "mine.csv: ")
