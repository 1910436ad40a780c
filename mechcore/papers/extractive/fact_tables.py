"""Cities with what belongs to them, and words to make up people's names of.

Plain data, for settings that are read before anything is trained.
"""

from __future__ import annotations

from typing import NamedTuple

BASE_STEPS = 400
"""Optimiser steps that a tiny base, which knows these facts, is pretrained for."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


class City(NamedTuple):
    """A city and its attributes, each unique to it in a task."""

    name: str
    language: str
    landmark: str
    animal: str


CITIES = tuple(
    City(*row)
    for row in (
        ("Tokyo", "Japanese", "Senso-ji Temple", "crane"),
        ("Beijing", "Mandarin", "Forbidden City", "panda"),
        ("Mumbai", "Marathi", "Gateway of India", "peacock"),
        ("Paris", "French", "Eiffel Tower", "rooster"),
        ("Berlin", "German", "Brandenburg Gate", "bear"),
        ("Moscow", "Russian", "St. Basil's Cathedral", "wolf"),
        ("Cairo", "Arabic", "Great Pyramid of Giza", "camel"),
        ("Bangkok", "Thai", "Wat Arun", "elephant"),
        ("Istanbul", "Turkish", "Blue Mosque", "cat"),
        ("Sao Paulo", "Portuguese", "Ibirapuera Park", "jaguar"),
        ("Seoul", "Korean", "N Seoul Tower", "tiger"),
        ("Rome", "Italian", "Colosseum", "eagle"),
        ("London", "English", "Tower Bridge", "fox"),
        ("Madrid", "Spanish", "Plaza Mayor", "bull"),
        ("Athens", "Greek", "Acropolis", "owl"),
        ("Hanoi", "Vietnamese", "Ho Chi Minh Mausoleum", "buffalo"),
        ("Addis Ababa", "Amharic", "Meskel Square", "lion"),
        ("Jakarta", "Indonesian", "Istiqlal Mosque", "rhinoceros"),
        ("Tehran", "Persian", "Azadi Tower", "leopard"),
        ("Nairobi", "Swahili", "Uhuru Gardens", "giraffe"),
    )
)
"""The paper's 20 cities; the animals are chosen here, and are told apart by their first tokens."""

FIRST_NAMES = _words(
    """
    Adam Agnes Albert Alice Amanda Andrew Angela Anthony Arthur Audrey Barbara Benjamin Bernard
    Betty Brandon Brenda Brian Bruce Calvin Carl Catherine Charles Chloe Christopher Claire Colin
    Craig Cynthia Daniel David Deborah Denise Diana Donald Dorothy Douglas Dylan Edward Eleanor
    Elizabeth Emily Eric Ethan Eugene Evelyn Felix Fiona Frank Frederick Gabriel Gary George Gerald
    Gloria Gordon Grace Gregory Hannah Harold Heather Helen Henry Howard Hugh Ian Irene Isaac Ivan
    Jacob James Janet Jason Jeffrey Jennifer Jeremy Jessica John Jonathan Joseph Joyce Julia Justin
    Karen Keith Kenneth Kevin Kimberly Kyle Larry Laura Leonard Leslie Linda Louise Lucas Lynn
    Malcolm Margaret Matthew Megan Melissa Michael Miranda Nancy Nathan Neil Nicholas Nina Nora
    Oliver Oscar Pamela Patrick Paul Peter Philip Phoebe Rachel Ralph Raymond Rebecca Richard
    Robert Roger Ronald Rose Ruth Ryan Samuel Sandra Sarah Scott Sean Sharon Simon Sophie Stanley
    Stephen Stuart Susan Sylvia Theodore Thomas Timothy Tracy Tyler Vanessa Victor Vincent Virginia
    Walter Warren Wendy William Zachary Zoe
    """
)
"""No two begin with the same three letters, so that few tokenizers begin two of them alike."""

LAST_NAMES = _words(
    """
    Abbott Anderson Bailey Baker Barnes Barrett Bennett Bishop Blackwell Bradley Brooks Burgess
    Butler Campbell Carpenter Carter Chambers Chapman Clayton Coleman Collins Cooper Crawford
    Cunningham Dawson Dixon Doyle Duncan Eaton Edwards Elliott Ellis Evans Farrell Ferguson Fisher
    Fletcher Foster Freeman Gallagher Gardner Gibson Gilbert Goodman Graham Greene Griffin
    Hamilton Hansen Harper Harrison Hawkins Hayes Henderson Higgins Holmes Hopkins Hudson Hughes
    Ingram Jackson Jenkins Jennings Johnston Kendall Kennedy Knight Lambert Lawson Lindsay
    Lowe Lyons Marshall Mason Maxwell McCarthy Mercer Miller Mitchell Monroe Morgan Murphy
    Nash Newman Nichols Norris Osborne Owens Palmer Parker Payne Perkins Phillips Porter Powell
    Quinn Ramsey Reynolds Rhodes Richardson Robinson Russell Sanders Saunders Shaw Sherman Sinclair
    Spencer Stevenson Stewart Sullivan Sutton Talbot Taylor Thornton Tucker Turner Underwood
    Vaughan Wagner Walker Wallace Watkins Webb Weaver Wheeler Whitaker Winters Woodward Wright
    Yates Young
    """
)
