"""Progress: silent by default, a line a step where there is no terminal."""

import io
import re
from typing import Any, TypeAlias

import pytest
from rich.console import Console

from mechcore import progress

Capture: TypeAlias = pytest.CaptureFixture[str]


def run(total: int) -> None:
    with progress.bar("work", total) as advance:
        for _ in range(total):
            advance()


def test_bars_are_silent_unless_shown(capsys):
    run(20)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_without_a_terminal_a_line_tells_the_end(capsys):
    with progress.shown():
        run(20)
    assert capsys.readouterr().err == "work: 100 %\n"


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_lines_have_per_cent_and_the_time_left(capsys: Capture, clock: Clock) -> None:
    with progress.shown(), progress.bar("sweep", 200.0) as advance:
        for cost, seconds in ((20, 30), (50, 40), (1, 50), (109, 200), (20, 10)):
            clock.now += seconds
            advance(cost)
    # After 30 s there is no line; 70 took 70 s, so 130 take 130 s; 71 come within a minute of that;
    # 180 took 320 s, so 20 take 36 s; at the end nothing is left.
    assert capsys.readouterr().err.splitlines() == [
        "sweep: 35 %, about 2 min left",
        "sweep: 90 %, about 36 s left",
        "sweep: 100 %",
    ]


def test_the_time_left_is_unknown_at_first(capsys: Capture, clock: Clock) -> None:
    with progress.shown(), progress.bar("sweep", 100.0) as advance:
        for cost in (4, 1):
            clock.now += 60
            advance(cost)
    assert capsys.readouterr().err.splitlines() == ["sweep: 4 %", "sweep: 5 %, about 38 min left"]


def test_work_with_a_name_has_a_line_and_short_work_within_it_none(
    capsys: Capture, clock: Clock
) -> None:
    with progress.shown(), progress.bar("study", 4.0) as advance:
        with progress.within("means"):
            run(3)
        clock.now += 5
        advance(1.0, "means")
        with progress.within("prune"), progress.bar("steps", 10) as step:
            clock.now += 90
            step(5)
            step(5)
        advance(3.0, "prune")
    assert capsys.readouterr().err.splitlines() == [
        "study: 25 % (means), about 15 s left",
        "prune: steps: 50 %, about 2 min left",
        "study: 100 % (prune)",
    ]


def test_on_a_terminal_work_is_a_bar_in_per_cent() -> None:
    screen = io.StringIO()
    with progress.shown(Console(file=screen, force_terminal=True, width=100)):
        with progress.bar("sweep", 8.0) as advance:
            advance(3.0)
            advance(5.0)
        with progress.bar("means", 4) as step:
            step()
    assert re.search(r"sweep.*100%", screen.getvalue())
    assert re.search(r"means.*25%", screen.getvalue())


def test_within_puts_a_name_before_lines_inside_the_block(capsys: Capture, clock: Clock) -> None:
    def run_for_a_minute() -> None:
        with progress.bar("work", 1) as advance:
            clock.now += 60
            advance()

    with progress.shown():
        with progress.within("2/7 prune"):
            run_for_a_minute()
            with progress.within("inner"):
                run_for_a_minute()
            run_for_a_minute()
        run_for_a_minute()
    names = ["2/7 prune: work", "inner: work", "2/7 prune: work", "work"]
    assert capsys.readouterr().err.splitlines() == [f"{name}: 100 %" for name in names]


def test_bars_of_jobs_vanish_and_that_of_the_study_stays() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with progress.shown(console), progress.bar("study", 2.0) as advance:
        bars: Any = progress._shown.get()
        for i in range(2):
            with progress.within(f"{i + 1}/2 job"):
                with progress.bar("steps", 3) as step:
                    step()
                    shown = [task.description for task in bars.progress.tasks]
                    assert shown == ["study", f"{i + 1}/2 job: steps"]
                assert [task.description for task in bars.progress.tasks] == ["study"]
            advance(1.0)
    (task,) = bars.progress.tasks
    assert (task.completed, task.total) == (2.0, 2.0)


def test_what_is_said_is_a_line_as_it_is(capsys: Capture) -> None:
    progress.say("before")
    message = "[red]job 1/2[/red]: " + "x" * 200 + " 3.5 s"
    with progress.shown():
        progress.say(message)
        run(1)
    progress.say("after")
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [message, "work: 100 %"]
    assert captured.out == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((0, "0 s"), (89.4, "89 s"), (90, "2 min"), (600, "10 min"), (5399, "90 min")),
        *((5400, "1.5 h"), (36000, "10.0 h")),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert progress._duration(seconds) == words
