"""The benchmark of starting measures what it says, each beside typer alone."""

import pytest
from benchmarks.in_process import benchmark


def test_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    startup = benchmark("startup", monkeypatch)
    took = {"import typer": 0.5, "import mechcore": 0.25}
    rounds = iter([1.0, 2.0])  # the second is slower
    monkeypatch.setattr("sys.argv", ["startup.py", "--rounds", "2"])
    factor = 1.0

    def seconds(program: str) -> float:
        nonlocal factor
        if program == "import typer":
            factor = next(rounds)
        return factor * took.get(program, 1.0)

    monkeypatch.setattr(startup, "seconds", seconds)
    startup.main()
    rows = [line.rsplit(maxsplit=2) for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[1:] for row in rows[:3]] == [["0.500", "1.0"], ["0.250", "0.5"], ["1.000", "2.0"]]
    assert rows[2][0].strip() == "mechcore --help"


def test_time_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    startup = benchmark("startup", monkeypatch)
    busy = "import time\nwhile time.process_time() < 0.6: pass"
    assert startup.seconds(busy) >= 0.6
