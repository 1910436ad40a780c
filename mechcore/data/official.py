"""The official data sets of the named tasks: their ids on the hub, and the names of their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mechcore.errors import InputError

DICT_FILE, STATE_FILE = "dataset_dict.json", "state.json"
"""What a folder has that ``datasets`` saved: one of several splits, and one of a single one."""


@dataclass(frozen=True)
class Official:
    """Some official examples.

    Attributes:
        what: they are.
        files: names of files, patterns within a folder, best first. The members of a group serve
            equally well, so that there must not be two of them.
        saved: folder that ``datasets`` saved, looked for after the files.
        split: of that folder, if it has several, and of the data set on the hub.
        project: where the files come from, for people.
        dataset: id on the hub; None if the texts are not there.
        config: of the data set.
        revision: of the data set.
    """

    what: str
    files: tuple[tuple[str, ...], ...]
    saved: str
    split: str
    project: str
    dataset: str | None = None
    config: str | None = None
    revision: str | None = None

    @property
    def looked_for(self) -> str:
        """Names of the files, for messages."""
        names = [name for group in self.files for name in group]
        return ", ".join([*names, f"{self.saved}/ (saved by datasets)"])

    def find(self, folder: Path) -> Path | None:
        """The best file or saved folder there is; None if there is none.

        Raises:
            InputError: two files would serve equally well.
        """
        for group in self.files:
            found = sorted({path for name in group for path in folder.glob(name) if path.is_file()})
            if len(found) > 1:
                raise InputError(
                    f"{folder}: {found[0].relative_to(folder)} and {found[1].relative_to(folder)} "
                    f"both are {self.what}; expected one of them: remove or rename the other"
                )
            if found:
                return found[0]
        saved = folder / self.saved
        return saved if any((saved / name).is_file() for name in (DICT_FILE, STATE_FILE)) else None


def _multinli(part: str) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (f"multinli_1.0_{part}.{kind}", f"multinli_1.0/multinli_1.0_{part}.{kind}")
        for kind in ("jsonl", "txt")
    )


def _hans(part: str) -> tuple[str, ...]:
    name = f"heuristics_{part}_set.txt"
    return name, f"hans/{name}", f"hans-master/{name}"


_MULTINLI = "MultiNLI 1.0 of New York University, or MNLI of GLUE"
_GLUE = "nyu-mll/glue"

MNLI_TRAIN = Official(
    what="MNLI training examples",
    files=(*_multinli("train"), ("MNLI/train.tsv",), ("mnli_train*.tsv", "mnli_train*.tsv.gz")),
    saved="mnli",
    split="train",
    project=_MULTINLI,
    dataset=_GLUE,
    config="mnli",
)
MNLI_MATCHED, MNLI_MISMATCHED = (
    Official(
        what=f"MNLI {part} validation examples",
        files=(
            *_multinli(f"dev_{part}"),
            (f"MNLI/dev_{part}.tsv",),
            (f"mnli_dev_{part}.tsv", f"mnli_dev_{part}.tsv.gz"),
        ),
        saved="mnli",
        split=f"validation_{part}",
        project=_MULTINLI,
        dataset=_GLUE,
        config="mnli",
    )
    for part in ("matched", "mismatched")
)
HANS = Official(
    what="HANS evaluation examples",
    files=(_hans("evaluation"), ("hans_validation.tsv", "hans_validation.tsv.gz")),
    saved="hans",
    split="validation",
    project="HANS, tommccoy1/hans on GitHub",
    dataset="jhu-cogsci/hans",
    # The main branch is a script, which `datasets` no longer runs.
    revision="refs/convert/parquet",
)
QQP_TRAIN, QQP_DEV = (
    Official(
        what=f"QQP {part} examples",
        files=((f"QQP/{part}.tsv",), (f"qqp_{part}.tsv", f"qqp_{part}.tsv.gz")),
        saved="qqp",
        split=split,
        project="QQP of GLUE",
        dataset=_GLUE,
        config="qqp",
    )
    for part, split in (("train", "train"), ("dev", "validation"))
)
PAWS_QQP = Official(
    what="PAWS-QQP examples with their texts",
    files=(
        ("dev_and_test.tsv", "paws_qqp/dev_and_test.tsv", "paws_final/dev_and_test.tsv"),
        ("paws_qqp.tsv", "paws_qqp.tsv.gz"),
    ),
    saved="paws_qqp",
    split="test",
    project="PAWS, google-research-datasets/paws on GitHub, whose qqp_generate_data.py builds it",
)

_ALL = (MNLI_TRAIN, MNLI_MATCHED, MNLI_MISMATCHED, HANS, QQP_TRAIN, QQP_DEV, PAWS_QQP)


def files_instead(dataset: str | None, config: str | None, split: str | None) -> str:
    """What to do without a data set of the hub."""
    for official in _ALL:
        if (official.dataset, official.config, official.split) == (dataset, config, split):
            return (
                f"or give a folder (folder) with the official files, {official.project}: looked "
                f"for there are {official.looked_for}"
            )
    return "or give files instead (path)"
