"""Studies in YAML: what is read is what stands there, or a clear error."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mechcore.analyses.effective_size import EffectiveSize
from mechcore.analyses.sweep import Sweep
from mechcore.data.sources import Source
from mechcore.errors import InputError
from mechcore.main_study.config import Analyses, StudyConfig
from mechcore.main_study.study import STUDY, located, read_content
from mechcore.pruning.settings import prune_settings
from mechcore.steps.config import DataConfig
from mechcore.study.kinds import read_study
from mechcore.study.step import plain
from mechcore.training.settings import train_settings
from mechcore.yaml_file import parse_yaml


def written(folder: Path, text: str | bytes, name: str = "study.yaml") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(folder: Path, text: str | bytes, name: str = "study.yaml") -> StudyConfig:
    return read_study(written(folder, text, name))[1]


def labels(folder: Path, value: str) -> Any:
    """How YAML reads a value, seen where text belongs; else the message."""
    return read(folder, f"data: {{ood_label: {value}}}").data.ood_label


@pytest.mark.parametrize(
    "value",
    [
        *("no", "No", "NO", "yes", "on", "off", "y", "N", "True", "FALSE", "Null", "NULL"),
        *("010", "-01", "007.5", "0x10", "0o17", "1_000", "12:30:45", "1e", ".", "+", "1.2.3"),
        *("2024-01-31", "2024-01-31 12:00:00", ".inf", "-.inf", ".nan", ".NaN", "<<", "="),
        *("non-entailment", "is 5", "~x", "C:/x"),
    ],
)
def test_yaml_texts_stay_what_they_are(tmp_path: Path, value: str) -> None:
    assert labels(tmp_path, value) == value
    names = read(tmp_path, f"data: {{label_map: {{{value}: {value}}}}}").data.label_map
    assert names == {value: value}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("0", 0), ("-3", -3), ("+5", 5), ("1e-3", 0.001), ("1E5", 1e5), (".5", 0.5), ("5.", 5.0)),
        *(("1.50", 1.5), ("-1.5e+2", -150.0), ("1e3", 1000.0), ("true", True), ("false", False)),
        *(("null", None), ("~", None), ("", None), ("[]", []), ("{}", {}), ("[no, 1]", ["no", 1])),
        *(("'no'", "no"), ('"1"', "1"), ("|\n  a\n  b", "a\nb\n"), ('"\\u00e4"', "ä")),
    ],
)
def test_yaml_values_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    parsed = parse_yaml(f"x: {text}\n")
    assert parsed == {"x": value}
    assert type(parsed["x"]) is type(value)


def test_yaml_names_are_text(tmp_path: Path) -> None:
    text = "data:\n  label_map:\n    0: a\n    01: b\n    1.0: c\n    null: d\n    no: e\n"
    text += "    true: f\n    2024-01-31: g\n    1e3: h\n    ? 'x: y'\n    : i\n"
    names = ["0", "01", "1.0", "null", "no", "true", "2024-01-31", "1e3"]
    expected = dict(zip([*names, "x: y"], "abcdefghi", strict=True))
    assert read(tmp_path, text).data.label_map == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds: [1]\nseeds: [2]", "'seeds' occurs twice.*line 2, column 1"),
        ("model: {source: a, 'source': b}", "'source' occurs twice"),
        ("seeds: *x", "undefined alias.*line 1"),
        ("seeds: &x [*x]", "Circular reference|recursive"),
        ("model: !!python/object/apply:os.system [ls]", "constructor for the tag .*os.system"),
        ("!mine\nseeds: [1]", "constructor for the tag '!mine'"),
        ("model: {source: !!binary aGk=}", "bytes is not JSON"),
        ("? [1, 2]\n: 3", "found unhashable key"),
        ("seeds:\n\t- 1", "invalid YAML"),
        ("seeds: [1]\n---\nseeds: [2]", "expected a single document"),
        ("seeds: [" + "9" * 5000 + "]", "invalid YAML: .*4300"),
        ("[" * 5_000, "nested too deeply|maximum recursion"),
        (b"seeds: [1]\x00", "invalid YAML"),
        (b"\xff\xfe\x00s", "invalid YAML: .*utf-8"),
        ("- 1\n- 2", "found list; expected settings by name"),
        ("5", "found int"),
    ],
)
def test_yaml_that_cannot_be_used_is_refused(
    tmp_path: Path, text: str | bytes, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'study.yaml'}: ")
    assert len(str(caught.value)) < 600


@given(st.text(max_size=40) | st.text("[]{}:,-?*&!|>'\"#%@`\n ~<=0aé", max_size=30))
def test_any_text_is_a_study_or_an_error_of_ours(text: str) -> None:
    try:
        content = parse_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return
    with suppress(InputError):
        STUDY.read(content or {}, "study")


def test_nothing_leaves_everything_at_its_default(tmp_path: Path) -> None:
    for text in ("", "# nothing\n", "---\n", "null", "{}"):
        assert read(tmp_path, text) == StudyConfig()


def test_files_of_windows_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, b"\xef\xbb\xbfseeds:\r\n- 7\r\n", "study.yml").seeds == (7,)


def test_what_is_read_is_what_stands_there(tmp_path: Path) -> None:
    text = """
        seeds: [1, 2]
        target_sparsities: [0.25]
        model: {source: no such folder, answers: {yes: " Yes", no: " No"}}
        data: {train: a.csv, id: b.csv, ood: c.csv, label_map: {0: x}}
        prune: {preset: paper, lr: 1}
        analyses: {sweep: {components: mlps}, heads: null, effective_size: {tolerance: 0}}
        """
    config = read(tmp_path, text)
    assert (config.seeds, config.target_sparsities) == ((1, 2), (0.25,))
    assert config.data.label_map == {"0": "x"}
    assert config.prune == prune_settings("paper", lr=1.0)
    assert config.model.answers == {"yes": " Yes", "no": " No"}
    sizes = EffectiveSize(tolerance=0.0)
    assert config.analyses == Analyses(sweep=Sweep("mlps"), heads=None, effective_size=sizes)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for name in ("study.json", "study", "study.YAML", "study.yaml.bak"):
        with pytest.raises(InputError, match=r"expected a file that ends in \.yaml, \.yml$"):
            read(tmp_path, "seeds: [1]", name)
    for path in (tmp_path / "study.yaml", tmp_path):
        with pytest.raises(InputError, match="no such file; mechcore study init writes one"):
            read_study(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sedes: [1]", "sedes: no such setting; expected model, variants, .*resources"),
        ("model: {sorce: x}", "model.sorce: no such setting; expected source, embedded"),
        ("variants: {a: {model: {x: 1}}}", "variants.a.model.x: no such setting; expected source"),
        ("variants: {a: 5}", "variants.a: found 5; expected an object"),
        ("variants: {a: {variants: {b: {}}}}", "'a' has variants itself; list all variants"),
        ("variants: {a: {resources: {cpus: 1}}}", "variants: 'a' has its own resources"),
        ("seeds: x\nvariants: {a: {}, b: {}}", "yaml: seeds: found 'x'; expected a valid array$"),
        ("training: {}\nvariants: {a: {}}", "variants.a: training: needs your own model"),
        ("analyses: {heads: {n: 1}}", "analyses.heads.n: no such setting; expected max_examples"),
        ("prune: {stesp: 1}", "prune: .*unknown setting 'stesp'; expected steps"),
        ("prune: {preset: slow}", "prune: .*unknown preset 'slow'; expected fast or thorough or"),
        ("prune: {preset: [fast]}", r"prune: preset is \['fast'\]; expected a name"),
        ("prune: 5", "prune: found 5; expected a preset's name"),
        ("prune: null", "prune: found None"),
        ("seeds: 1", "seeds: found 1; expected a valid (tuple|array)"),
        ("seeds: [1.0]", "seeds.0: found 1.0; expected a valid integer"),
        ("target_sparsities: [1e999]", r"sparsity inf: expected a share"),
        ("data: {ood_label: 5}", "data.ood_label: found 5; expected a valid string"),
        ("model: {backend: fast}", "model.backend: found 'fast'; expected 'bridge' or 'hooked'"),
        ("model: null", "model: found None"),
        ('model: {source: "\\0"}', "model: source .* control characters"),
        ("data: {train: ~nobody-of-that-name/x}", "nobody-of-that-name"),
        ('data: {ood_label: "\\ud800"}', "surrogate"),
    ],
)
def test_messages_name_file_and_setting(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, text)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 500
    assert said.startswith(f"{tmp_path / 'study.yaml'}: ") or "path" in said


def test_of_many_errors_the_first_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, "a: 1\nb: 1\nc: 1\nd: 1\ne: 1\nseeds: " + repr("x" * 5000))
    assert str(caught.value).count("no such setting") <= 3
    assert str(caught.value).endswith("; and 3 more")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("content", [None, [], "x", 5, {"seeds": {1, 2}}, {"x": b"y"}, {(1,): 2}])
def test_only_plain_values_are_settings(content: Any) -> None:
    with pytest.raises(InputError, match=r"^here: .*expected"):
        STUDY.read(content, "here")


def test_relative_paths_begin_at_the_folder_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "inner"
    (inner / "model").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    text = "model: {source: model}\ncheckpoints: [runs/a, /abs/b]\nbeside: runs/b\n"
    written(inner, text + "data: {train: t.csv, id: ../i.csv, ood: ~/o.csv}")
    expected = DataConfig(
        train=str(inner / "t.csv"), id=str(inner / "../i.csv"), ood=str(tmp_path / "home" / "o.csv")
    )
    for start, path in ((tmp_path, "inner/study.yaml"), (inner, "study.yaml")):
        monkeypatch.chdir(start)
        _, config = read_study(path)
        assert config.model.source == str(inner / "model")
        assert config.checkpoints == (str(inner / "runs/a"), "/abs/b")
        assert config.beside == str(inner / "runs/b")
        assert config.data == expected
        assert located(config, tmp_path / "elsewhere") == config
    assert read(tmp_path, "checkpoints: [embedded]").checkpoints == ("embedded",)


def test_what_is_no_folder_is_the_id_of_a_hub(tmp_path: Path) -> None:
    assert read(tmp_path, "model: {source: org/name}").model.source == "org/name"
    (tmp_path / "org" / "name").mkdir(parents=True)
    here = str(tmp_path / "org" / "name")
    assert read(tmp_path, "model: {source: org/name}").model.source == here
    train = read(tmp_path, "data: {train: [{dataset: org/name}, {dataset: other}]}").data.train
    assert train == (Source(dataset=here), Source(dataset="other"))
    text = "variants: {a: {model: {source: org/name}}, b: {model: {source: other}}, c: {}}"
    variants = read(tmp_path, text).variants
    assert [variants[name].model.source for name in "abc"] == [here, "other", None]


def test_variants_take_what_they_do_not_name_from_the_study(tmp_path: Path) -> None:
    text = """
        model: {source: org/name, max_length: 7}
        training: {preset: quick, steps: 900}
        prune: fast
        data: {train: a.csv, label_map: {x: y}}
        resources: {cpus: 1}
        variants:
          same: {}
          seed: {training: {seed: 1}, prune: {steps: 9}}
          data: {data: {train: b.csv, label_map: {p: q}}}
          preset: {training: {preset: bert-mnli}}
          none: {training: null, analyses: {heads: null}}
        """
    study = read(tmp_path, text)
    alone = read(tmp_path, text.partition("variants:")[0])
    named = study.each_variant()
    assert named["same"] == alone
    training, prune = train_settings("quick", steps=900, seed=1), prune_settings("fast", steps=9)
    assert named["seed"] == replace(alone, training=training, prune=prune)
    data = replace(alone.data, train=str(tmp_path / "b.csv"), label_map={"p": "q"})
    assert named["data"] == replace(alone, data=data)
    assert named["preset"].training == train_settings("bert-mnli")
    analyses = replace(alone.analyses, heads=None)
    assert named["none"] == replace(alone, training=None, analyses=analyses)
    # What a study's folder notes of its settings is read as what they were.
    assert read_content(plain(study), "study.json") == study
