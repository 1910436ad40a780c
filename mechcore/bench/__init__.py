"""Models of known truth, and how well methods recover it."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.bench.case import Case as Case
    from mechcore.bench.case import Truth as Truth
    from mechcore.bench.case import mask_distance as mask_distance
    from mechcore.bench.case import node_auroc as node_auroc
    from mechcore.bench.case import pair_auroc as pair_auroc
    from mechcore.bench.case import sign_accuracy as sign_accuracy
    from mechcore.bench.cases import trained_case as trained_case
    from mechcore.bench.faithfulness import cmd as cmd
    from mechcore.bench.faithfulness import cpr as cpr
    from mechcore.bench.faithfulness import faithfulness_of as faithfulness_of

attach(__name__)
