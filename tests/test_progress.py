"""Progress: silent by default, lines where there is no terminal."""

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


def test_without_a_terminal_every_tenth_is_a_line(capsys):
    with progress.shown():
        run(20)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"work: {n}/20" for n in range(2, 21, 2)]


def test_few_steps_are_a_line_each(capsys):
    with progress.shown():
        run(3)
    assert capsys.readouterr().err.splitlines() == ["work: 1/3", "work: 2/3", "work: 3/3"]


def test_nothing_is_printed_without_work(capsys):
    with progress.shown():
        pass
    assert capsys.readouterr().err == ""


# -- unequal steps --------------------------------------------------------------------------------


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


def test_work_is_silent_unless_shown(capsys: Capture) -> None:
    with progress.work("sweep", 2.5) as advance:
        advance(2)
        advance(0.5)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_work_is_shown_in_per_cent_with_the_time_left(capsys: Capture, clock: Clock) -> None:
    with progress.shown(), progress.work("sweep", 200.0) as advance:
        for cost, seconds in ((10, 5), (10, 5), (50, 25), (1, 0), (109, 200), (20, 10)):
            clock.now += seconds
            advance(cost)
    # 10 of 200 is no tenth; 20 took 10 s, so 180 take 90 s, or 1.5 min; 70 took 35 s; 71 is no
    # new tenth; 180 took 235 s, so 20 take 26 s; at the end nothing is left.
    assert capsys.readouterr().err.splitlines() == [
        "sweep: 10 %, about 2 min left",
        "sweep: 35 %, about 65 s left",
        "sweep: 90 %, about 26 s left",
        "sweep: 100 %",
    ]


def test_the_time_left_has_a_suitable_unit(capsys: Capture, clock: Clock) -> None:
    for seconds in (3, 8.9, 20, 540, 660, 3600):
        with progress.shown(), progress.work("w", 10.0) as advance:
            clock.now += seconds
            advance(1)
    left = [line.partition("about ")[2] for line in capsys.readouterr().err.splitlines()]
    # Nine times as long is left.
    wanted = ["27 s", "80 s", "3 min", "81 min", "1.6 h", "9.0 h"]
    assert left == [f"{each} left" for each in wanted]


def test_many_small_steps_are_a_line_for_every_tenth(capsys: Capture, clock: Clock) -> None:
    with progress.shown(), progress.work("w", 1.0) as advance:
        for _ in range(1000):
            advance(0.001)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [*(f"w: {n} %, about 0 s left" for n in range(10, 91, 10)), "w: 100 %"]


def test_an_interrupted_sweep_keeps_its_lines(capsys: Capture) -> None:
    def interrupted() -> None:
        with progress.shown(), progress.work("w", 4.0) as advance:
            advance(1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert capsys.readouterr().err.startswith("w: 25 %")
    run(1)
    assert capsys.readouterr().err == ""


def test_on_a_terminal_work_is_a_bar_in_per_cent(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()

    def console(**options: Any) -> Console:
        return Console(file=screen, force_terminal=True, width=100)

    monkeypatch.setattr("rich.console.Console", console)
    with progress.shown():
        with progress.work("sweep", 8.0) as advance:
            advance(3.0)
            advance(5.0)
        with progress.bar("means", 4) as step:
            step()
    shown = screen.getvalue()
    assert re.search(r"sweep.* 100 %", shown)
    assert re.search(r"means.* 1/4", shown)
    assert "100/" not in shown


# -- studies --------------------------------------------------------------------------------------


def test_within_puts_a_name_before_lines_inside_the_block(capsys: Capture) -> None:
    with progress.shown():
        with progress.within("2/7 prune"):
            run(1)
            with progress.within("inner"):
                run(1)
            run(1)
        run(1)
    names = ["2/7 prune: work", "inner: work", "2/7 prune: work", "work"]
    assert capsys.readouterr().err.splitlines() == [f"{name}: 1/1" for name in names]


def test_within_ends_with_an_error(capsys: Capture) -> None:
    def fails() -> None:
        with progress.within("job"):
            raise KeyboardInterrupt

    with progress.shown():
        with pytest.raises(KeyboardInterrupt):
            fails()
        run(1)
    assert capsys.readouterr().err == "work: 1/1\n"


def test_bars_of_jobs_vanish_and_that_of_the_study_stays() -> None:
    display = progress._Bars(Console(file=io.StringIO(), force_terminal=True, width=100))
    with progress.shown_on(display), progress.work("study", 2.0) as advance:
        for i in range(2):
            with progress.within(f"{i + 1}/2 job"):
                with progress.bar("steps", 3) as step:
                    step()
                    shown = [task.description for task in display.progress.tasks]
                    assert shown == ["study", f"{i + 1}/2 job: steps"]
                assert [task.description for task in display.progress.tasks] == ["study"]
            advance(1.0)
    display.stop()
    (task,) = display.progress.tasks
    assert (task.completed, task.total) == (2.0, 2.0)


def test_a_relay_tells_shares_each_time_a_hundredth_more_is_done() -> None:
    told: list[float] = []
    with progress.shown_on(progress.Relay(told.append)):
        with progress.bar("steps", 1000) as step:
            for _ in range(1000):
                step()
        assert told == pytest.approx([n / 100 for n in range(1, 101)], abs=0.0011)
        assert told[-1] == 1.0
        told.clear()
        with progress.work("sweep", 8.0) as advance:
            for amount in (0.01, 3.99, 0.0, 4.0):
                advance(amount)
        assert told == [0.5, 1.0]
        told.clear()
        with progress.bar("nothing", 0) as step:
            step()
        assert told == [1.0]
    run(5)  # outside of it nothing is told
    assert told == [1.0]


def test_a_relay_prints_nothing(capsys: Capture) -> None:
    with progress.shown_on(progress.Relay(lambda share: None)), progress.within("job"):
        run(10)
        progress.say("for nobody")
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_what_is_said_is_a_line_as_it_is(capsys: Capture) -> None:
    progress.say("before")
    message = "[red]job 1/2[/red]: " + "x" * 200 + " 3.5 s"
    with progress.shown():
        progress.say(message)
        run(1)
    progress.say("after")
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [message, "work: 1/1"]
    assert captured.out == ""


def test_what_is_said_stands_above_the_bars() -> None:
    screen = io.StringIO()
    display = progress._Bars(Console(file=screen, force_terminal=True, width=100))
    with progress.shown_on(display), progress.work("study", 1.0) as advance:
        progress.say("waiting for [another] process")
        advance(1.0)
    display.stop()
    shown = screen.getvalue()
    assert "waiting for [another] process" in shown
    assert shown.rindex("study") > shown.index("waiting")


def test_displays_are_those_of_the_innermost_block(capsys: Capture) -> None:
    told: list[float] = []
    with progress.shown():
        with progress.shown_on(progress.Relay(told.append)):
            run(1)
        assert (told, capsys.readouterr().err) == ([1.0], "")
        run(1)
    assert (told, capsys.readouterr().err) == ([1.0], "work: 1/1\n")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((0, "0 s"), (89.4, "89 s"), (90, "2 min"), (600, "10 min"), (5399, "90 min")),
        *((5400, "1.5 h"), (36000, "10.0 h")),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert progress.duration(seconds) == words
