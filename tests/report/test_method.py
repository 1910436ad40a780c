"""What was run, on what and how, from what a run's configuration says."""

from __future__ import annotations

from mechcore.report.method import method_tables


def test_settings_say_where_they_came_from() -> None:
    origins = {"seeds": "command line", "prune.steps": "file s.yaml"}
    config = {"settings": {"seeds": [1], "prune": {"steps": 9}}, "origins": origins}
    tables = {table.caption: table for table in method_tables(config)}
    rows = tables["Origins of settings that are not defaults"].rows
    assert rows == [["seeds", "command line"], ["prune.steps", "file s.yaml"]]
    captions = [table.caption for table in method_tables({"settings": {"seeds": [1]}})]
    assert captions == ["Settings", "Versions"]
