"""Runs logged to Weights & Biases: what is written, and that nothing else happens."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_up_run import World, write_run

from mechcore.errors import InputError, MechcoreError, MechcoreWarning
from mechcore.report import build_report
from mechcore.report.run_folder import read_run
from mechcore.study.tracking import log_run, summary_of

needs_wandb = pytest.mark.skipif(find_spec("wandb") is None, reason="needs the wandb extra")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_run(tmp_path_factory.mktemp("tracking") / "my run", World())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mechcore.report.blocks.PNG_DPI", 20)
        build_report(path)
    return path


def test_the_summary_has_accuracies_and_the_core(run: Path) -> None:
    accuracy = pd.read_csv(run / "tables" / "accuracy.csv").query("subset == 'all'")
    expected = {}
    for split, rows in accuracy.groupby("split"):
        expected[f"accuracy/{split}/full"] = rows.query("subnetwork == 'full'")["accuracy"].item()
        for sparsity, same in rows.groupby("target_sparsity"):
            assert len(same) == 3
            expected[f"accuracy/{split}/s{sparsity:.2f}"] = sum(same["accuracy"]) / 3
    core = pd.read_csv(run / "tables" / "core.csv").iloc[0]
    names = {"size": "core_size", "expected_by_chance": "expected_by_chance", "p_value": "p_value"}
    expected |= {f"core/{name}": float(core[column]) for name, column in names.items()}
    assert len(expected) == 2 * 3 + 3
    assert summary_of(read_run(run)) == pytest.approx(expected)


_LOG = """
import sys
from mechcore.study.tracking import log_run
print("logged", log_run(sys.argv[1], project="heuristics"), flush=True)
"""


@dataclass
class Logged:
    """What was logged, as its file says."""

    folder: Path
    stdout: str
    stderr: str
    records: list[Any]

    def of(self, kind: str) -> list[Any]:
        return [getattr(r, kind) for r in self.records if r.WhichOneof("record_type") == kind]

    def media(self, name: str) -> Path:
        """The file of a table or figure that was logged."""
        items = [item for record in self.of("history") for item in record.item]
        (path,) = [i.value_json for i in items if list(i.nested_key) == [name, "path"]]
        return self.folder / "files" / str(json.loads(path))


def records_of(path: Path) -> Iterator[bytes]:
    """The records of a wandb file: a LevelDB log of blocks of 32 KiB behind seven bytes."""
    content = path.read_bytes()
    assert content[:4] == b":W&B"
    at, parts = 7, b""
    while at < len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        checksum, length, kind = struct.unpack("<IHB", content[at : at + 7])
        data = content[at + 7 : at + 7 + length]
        assert zlib.crc32(bytes([kind]) + data) == checksum
        at += 7 + length
        parts += data
        if kind in (1, 4):  # whole, or the last of several
            yield parts
            parts = b""
    assert parts == b""


@pytest.fixture(scope="module")
def logged(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Logged:
    from wandb.proto import wandb_internal_pb2

    copy = shutil.copytree(run, tmp_path_factory.mktemp("place") / run.name)
    own = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
    done = subprocess.run(
        [sys.executable, "-c", _LOG, str(copy)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env=own | {"HOME": str(tmp_path_factory.mktemp("home"))},
    )
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.removeprefix("logged ").strip())
    assert folder.parent == copy.resolve() / "wandb"
    (file,) = folder.glob("*.wandb")
    records = [wandb_internal_pb2.Record.FromString(data) for data in records_of(file)]
    return Logged(folder, done.stdout, done.stderr, records)


@needs_wandb
def test_the_run_is_that_of_the_folder_and_nothing_else_happens(logged: Logged, run: Path) -> None:
    assert logged.stdout == f"logged {logged.folder}\n"
    assert "wandb" not in logged.stderr
    first = logged.of("run")[0]
    assert (first.project, first.display_name) == ("heuristics", "my run")
    config = {item.key: json.loads(item.value_json) for item in first.config.update}
    config.pop("_wandb", None)
    assert config == json.loads((run / "config.json").read_text())
    # Nothing of the machine or the terminal.
    assert logged.of("output") == logged.of("output_raw") == logged.of("stats") == []
    assert [path.name for path in (logged.folder / "files").iterdir()] == ["media"]
    assert first.git.remote_url == ""


@needs_wandb
def test_summary_tables_figures_and_report_are_logged_whole(logged: Logged, run: Path) -> None:
    updates = [item for record in logged.of("summary") for item in record.update]
    summary = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in updates}
    expected = summary_of(read_run(run))
    assert {key: summary[key] for key in expected} == pytest.approx(expected)
    for name in ("accuracy", "core", "interactions"):
        content = json.loads(logged.media(f"tables/{name}").read_text())
        shown = pd.DataFrame(content["data"], columns=content["columns"])
        table = pd.read_csv(run / "tables" / f"{name}.csv")
        pd.testing.assert_frame_equal(shown, table, check_dtype=False)
    figures = {path.stem: path for path in (run / "figures").glob("*.png")}
    assert len(figures) > 3
    for name, path in figures.items():
        assert logged.media(f"figures/{name}").read_bytes() == path.read_bytes()
    (artifact,) = [record for record in logged.of("artifact") if record.type == "report"]
    sizes = {entry.path: entry.size for entry in artifact.manifest.contents}
    files = [run / "config.json", run / "report.html", *(run / "tables").iterdir()]
    assert sizes == {str(path.relative_to(run)): path.stat().st_size for path in files}


@needs_wandb
def test_a_long_table_is_said_to_be_shown_in_part_and_any_error_is_one_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise TypeError("cannot take it:\nbecause\nof that")

    copy = shutil.copytree(run, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr("wandb.Table.MAX_ROWS", 3)
        with pytest.warns(
            MechcoreWarning, match=r"wandb: table accuracy: \d+ rows, but .* the first 3; "
        ):
            log_run(copy, project="x")
    monkeypatch.setattr("wandb.Image", fail)
    with pytest.raises(MechcoreError, match=r"^wandb: cannot take it: because$"):
        log_run(copy, project="x")


def test_what_cannot_be_logged(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="expected the folder of a finished run"):
        log_run(tmp_path, project="x")
    mode: Any = "shared"
    with pytest.raises(InputError, match=r"^mode: found 'shared'; expected 'offline' or 'online'"):
        log_run(run, project="x", mode=mode)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"^wandb is not installed; .*pip install 'mechcore\[wa"):
        log_run(run, project="x")


@needs_wandb
def test_online_without_a_login_asks_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on the terminal"))
    with pytest.raises(InputError, match=r"^wandb: not logged in; run `wandb login` first"):
        log_run(run, project="x", mode="online")
    assert not (run / "wandb").exists()
