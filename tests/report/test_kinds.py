import pytest

from mechcore.errors import InputError
from mechcore.report.kinds import DEFAULT, REPORTS, report_of, schemas_of


def test_a_run_that_names_no_kind_is_of_the_main_study() -> None:
    assert report_of({}) is report_of({"kind": None}) is REPORTS[DEFAULT]


@pytest.mark.parametrize("kind", ["ablation", 3, ["extractive"], {"a": 1}])
def test_a_kind_that_nothing_installed_knows_is_refused(kind: object) -> None:
    with pytest.raises(InputError, match=r"kind of study .*: unknown.*; expected one of heuristic"):
        report_of({"kind": kind})


def test_the_papers_are_found_by_their_entry_points() -> None:
    assert {"cognitive", "extractive"} <= set(REPORTS.names())
    assert set(schemas_of({"kind": "extractive"})) > {"extractive_ranks"}
