"""Progress: silent by default, lines where there is no terminal."""

from mechcore import progress


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
