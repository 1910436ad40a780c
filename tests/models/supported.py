"""The families that the tests of this folder load, as a table for the documentation.

    python tests/models/supported.py

writes ``docs/tables/models.csv``; `test_supported` makes sure that it is up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import transformers as hf
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as CLASSIFIERS,
)

REPOSITORY = Path(__file__).resolve().parents[2]
TABLE = REPOSITORY / "docs" / "tables" / "models.csv"
if __name__ == "__main__":
    sys.path[:0] = [str(REPOSITORY / "tests")]

import helpers  # noqa: E402

from mechcore.models.architectures.base import ARCHITECTURES, Architecture  # noqa: E402

REFUSED = {
    "StableLm": "TransformerLens bridges it with other logits",
    "OpenAIGPT": "TransformerLens bridges it with other logits",
    "HunYuanDenseV1": "TransformerLens 3.9 bridges it with other logits; with 4.3 it loads",
}


def kinds(families: dict[str, Any]) -> list[str]:
    """``model_type`` of the Hugging Face configurations of families by name."""
    names = dict.fromkeys(name.split()[0] for name in families)
    return [str(getattr(hf, f"{name}Config").model_type) for name in names]


def table(encoders: dict[str, Any], decoders: dict[str, Any]) -> pd.DataFrame:
    """One row per family: what it loads as, its sweeps, exports.

    Args:
        encoders: those of ``test_encoders``.
        decoders: those of ``test_derived``.
    """
    known = dict.fromkeys([*helpers.ARCHITECTURES, *kinds(encoders), *kinds(decoders)])
    rows = []
    for kind in known:
        family = ARCHITECTURES[kind] if kind in ARCHITECTURES else Architecture  # noqa: SIM401
        encoder = family.encoder
        rows.append(
            {
                "family": CLASSIFIERS[kind].removesuffix("ForSequenceClassification"),
                "kind": "encoder" if encoder else "decoder",
                "loads_as": f"classifier, {'without a head' if encoder else 'language model'}",
                "sweeps": "restart" if family.stack is Architecture.stack else "tree",
                "export": "no" if family.projections is None else "yes",
                "training": "yes",
            }
        )
    return pd.DataFrame(rows).sort_values(["kind", "family"], key=lambda c: c.str.lower())


if __name__ == "__main__":
    from models.test_derived import FAMILIES as DECODERS
    from models.test_encoders import FAMILIES as ENCODERS

    table(ENCODERS, DECODERS).to_csv(TABLE, index=False)
