"""What sections say of the data of their tables."""

import numpy as np
import pandas as pd

from mechcore.report.groups import population_note

PLACES = {"role": ["id", "ood", "ood"], "data": ["mnli", "hans", "hans"], "subset": ["all"] * 3}


def test_what_intervals_are_for_is_said_where_there_are_clusters() -> None:
    table = pd.DataFrame(PLACES)
    assert not list(population_note(table))
    unknown = table.assign(n_clusters=np.nan, population=None)
    assert not list(population_note(unknown))
    known = table.assign(n_clusters=[np.nan, 60, 60], population=[None, "clusters", "clusters"])
    (note,) = population_note(known)
    text = "Intervals are for other clusters, such as templates; clusters are 60 of hans."
    assert note.text.startswith(text)
    (other,) = population_note(known.assign(n_clusters=9, population="texts"))
    assert "other texts of the subsets; clusters are 9 of mnli and 9 of hans." in other.text
