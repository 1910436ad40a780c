"""The tiny world of facts: people, cities and roles, and a small decoder pretrained on them.

Everything is one word ("Sao-Paulo", "Adam-Abbott"); see docs/concepts/extractive-structures.md.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

from mechcore.data.examples import Examples
from mechcore.models.checkpoint_files import without_bars
from mechcore.papers.extractive.facts import (
    CITIES,
    FIRST_HOP,
    FIRST_NAMES,
    LAST_NAMES,
    ORDERING,
    SECOND_HOP,
    TRAINING_NAMES,
    City,
    Facts,
    FactTask,
    OrderingTask,
    first_hop,
    ordering,
    second_hop,
    shuffled,
)
from mechcore.papers.extractive.settings import BASE_STEPS
from mechcore.training import TrainSettings, answering, train
from mechcore.worlds.draws import pick
from mechcore.worlds.small_gpt2 import one_thread, small_gpt2, texts_of, word_tokenizer

BATCH = 128
SEED = 0
NEUTRAL = 0.15

ROLES = (
    *("bishop", "judge", "doctor", "baker", "painter", "poet"),
    *("tailor", "smith", "pilot", "cook", "singer", "sheriff"),
)
ATTRIBUTES = ("river", "dish")

TINY_CITIES = tuple(City(*(part.replace(" ", "-") for part in city)) for city in CITIES)


def _name(number: int) -> str:
    turn, first = divmod(number, len(FIRST_NAMES))
    return f"{FIRST_NAMES[first]}-{LAST_NAMES[(number + turn) % len(LAST_NAMES)]}"


_N_PEOPLE = 300
_NAMES = tuple(map(_name, range(_N_PEOPLE + TRAINING_NAMES + len(CITIES))))
PEOPLE, NEWCOMERS = _NAMES[:_N_PEOPLE], _NAMES[_N_PEOPLE:]
"""Those with facts in the base, and those of the tasks."""

_PROMPT = "[BOS] {a}"
_HOME = (FIRST_HOP[0], ORDERING[0])

Fact = tuple[str, str, str]


def fact_world_tokenizer() -> PreTrainedTokenizerFast:
    """Word-level tokenizer of the tiny world, which begins every text with ``[BOS]``."""
    wordings = " ".join((*FIRST_HOP, *SECOND_HOP, *ORDERING, "met", *ROLES, *ATTRIBUTES))
    words = [word for word in wordings.split() if not word.startswith("{")]
    for city in TINY_CITIES:
        words += [*city, *(_value(attribute, city) for attribute in ATTRIBUTES)]
    return word_tokenizer((*words, *_NAMES), begins=True)


def tiny_fact_tasks(seed: int) -> tuple[FactTask[Facts], FactTask[Facts]]:
    """The first-hop and the second-hop task of the tiny world; newcomers are drawn for each."""
    first, second = (
        shuffled(NEWCOMERS, random.Random(f"tiny {hop} {seed}"))[: len(TINY_CITIES)]
        for hop in ("first", "second")
    )
    return first_hop(first, TINY_CITIES), second_hop(second, TINY_CITIES)


def tiny_ordering(seed: int) -> OrderingTask[Facts]:
    """The ordering task of the tiny world: who is for testing, and where people live, are drawn."""
    rng = random.Random(f"tiny ordering {seed}")
    return ordering(shuffled(NEWCOMERS, rng), TINY_CITIES, rng)


def base_facts(seed: int) -> Examples:
    """All that is true in the world of a seed: texts, last words as labels, kinds as subsets."""
    return texts_of("facts", _facts(seed))


def base_texts(n: int, seed: int) -> Examples:
    """``n`` training texts: passes over the facts, each in a new order, and neutral texts."""
    return texts_of("train", islice(_stream(seed), n))


def _stream(seed: int) -> Iterator[Fact]:
    facts, rng = _facts(seed), random.Random(f"fact world texts {seed}")
    while True:
        for fact in shuffled(facts, rng):
            while rng.random() < NEUTRAL:
                yield f"{pick(_NAMES, rng)} met", pick(_NAMES, rng), "neutral"
            yield fact


def _facts(seed: int) -> list[Fact]:
    rng = random.Random(f"fact world {seed}")
    facts: list[Fact] = []
    homes = shuffled([TINY_CITIES[i % len(TINY_CITIES)] for i in range(len(PEOPLE))], rng)
    for name, home in zip(PEOPLE, homes, strict=True):
        about = f"the city {name} is from"
        facts += [(wording.format(name=name), home.name, "home") for wording in _HOME]
        facts.append((FIRST_HOP[1].format(name=name), home.language, "language"))
        facts += [(*_of(attribute, about, home), "attribute") for attribute in ATTRIBUTES]
    for city in TINY_CITIES:
        facts.append((f"The people in {city.name} speak", city.language, "city"))
        facts += [(*_of(attribute, city.name, city), "city") for attribute in ATTRIBUTES]
        facts.append((f"The city that contains {city.landmark} is", city.name, "landmark"))
    for role in ROLES:
        for city, name in zip(TINY_CITIES, shuffled(PEOPLE, rng), strict=False):
            described = f"The {role} of the city that contains {city.landmark} is"
            facts.append((f"The {role} of {city.name} is", name, "role"))
            facts.append((described, name, "described"))
    return facts


def _of(attribute: str, about: str, city: City) -> tuple[str, str]:
    return f"The {attribute} in {about} is", _value(attribute, city)


def _value(attribute: str, city: City) -> str:
    return f"{attribute}-of-{city.name}"


def tiny_fact_model(seed: int) -> GPT2LMHeadModel:
    """An untrained decoder: 4 layers of 4 heads, width 128, 0.9 M parameters, untied embeddings."""
    tokenizer = fact_world_tokenizer()
    return small_gpt2(tokenizer, seed, width=128, n_heads=4, end=tokenizer.eos_token_id)


def train_fact_base(
    out: str | Path | None = None,
    seed: int = SEED,
    *,
    steps: int = BASE_STEPS,
    progress: bool = True,
) -> tuple[GPT2LMHeadModel, PreTrainedTokenizerFast]:
    """Pretrain a decoder on the world of a seed; with the defaults about a minute on one core.

    The loss is on the last words of the texts alone. Input embeddings are not trained: what is
    known of a name is then in the layers, where fine-tuning writes too. Returns the model in
    evaluation mode and its tokenizer, and writes both to ``out``.
    """
    model, tokenizer = tiny_fact_model(seed), fact_world_tokenizer()
    settings = TrainSettings(
        steps=steps,
        learning_rate=3e-3,
        batch_size=BATCH,
        warmup_steps=min(50, steps - 1),
        evaluate_every=steps,
        checkpoint_every=steps,
        seed=seed,
    )
    texts, facts = base_texts(steps * BATCH, seed), base_facts(seed)
    words = sorted({*texts.label_names, *facts.label_names})
    embeddings = model.get_input_embeddings().requires_grad_(False)
    with one_thread(), TemporaryDirectory() as folder:
        objective = answering(model, tokenizer, _PROMPT, {word: f" {word}" for word in words})
        run = Path(folder) / "run"
        train(model, objective, texts, {"facts": facts}, run, settings, progress)
    embeddings.requires_grad_(True)
    if out is not None:
        with without_bars():
            model.save_pretrained(out)
            tokenizer.save_pretrained(out)
    return model.eval(), tokenizer
