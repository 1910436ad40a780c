"""The documentation lists the families that tests load, with what the code says of them."""

from __future__ import annotations

import pandas as pd
from models.supported import REFUSED, TABLE, table
from models.test_derived import FAMILIES as DECODERS
from models.test_encoders import FAMILIES as ENCODERS


def test_the_table_of_supported_models_is_that_of_the_tests() -> None:
    expected = table(ENCODERS, DECODERS).reset_index(drop=True)
    pd.testing.assert_frame_equal(pd.read_csv(TABLE, dtype=str), expected.astype("str"))
    assert not set(REFUSED) & set(expected["family"])
