"""The README and what stands beside it: short, with both commands, and without dead ends."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
LINK = re.compile(r"\]\((?!\w+:|#)(?P<path>[^)#\s]+)")
MOST_LINES = 130


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("name", ["run", "test"])
def test_each_command_that_checks_run_is_one_line(name: str) -> None:
    (command,) = re.findall(rf"^<!-- {name} -->\n    (.+)\n\n", README, re.M)
    assert command.startswith(".ci/setup .venv && .venv/bin/")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_to_files(page: str) -> None:
    path = REPOSITORY / page
    links = [match["path"] for match in LINK.finditer(path.read_text(encoding="utf-8"))]
    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_the_checks_before_a_commit_are_commands_of_the_checks() -> None:
    config = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    hooks = [hook["entry"] for repository in config["repos"] for hook in repository["hooks"]]
    checks = (REPOSITORY / ".ci/run").read_text(encoding="utf-8").replace(".venv-ci/", ".venv/")
    assert len(hooks) == 4
    assert set(hooks) <= {line.strip() for line in checks.splitlines()}


def test_the_sample_report_is_one_small_file_without_paths_of_a_machine() -> None:
    sample = REPOSITORY / "docs/sample/minilm-mnli.html"
    assert sample.stat().st_size <= 5_000_000
    page = sample.read_text(encoding="utf-8")
    assert re.search(r"(?<![\w.])/(?:home|root|tmp|work|Users)/", page) is None
    links = re.findall(r'<a\s[^>]*href="([^"]*)"', page)
    assert links
    assert [link for link in links if not link.startswith(("#", "data:"))] == []


def test_the_code_map_is_that_of_the_import_contracts() -> None:
    pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")
    import code_map

    shown = code_map.shown(code_map.PAGE.read_text(encoding="utf-8"))
    assert shown == code_map.drawn(code_map.layers())
    assert len(code_map.layers()) > 15
