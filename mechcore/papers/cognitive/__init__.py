"""Fine-tuned or trained from scratch: one cognitive task, learned in two ways, compared.

The study of arXiv 2406.18926 on this toolkit: context-dependent decision making as text
(`mechcore.papers.cognitive.trials`), learned by a pretrained decoder and by the same architecture
from new weights; what the two are made of at equal accuracy; and the paper's seven claims, each
with a verdict. `mechcore reproduce cognitive` does all of it.
"""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.papers.cognitive.settings import ArmTraining as ArmTraining
    from mechcore.papers.cognitive.settings import CognitiveSettings as CognitiveSettings
    from mechcore.papers.cognitive.settings import default_settings as default_settings
    from mechcore.papers.cognitive.study import run as run
    from mechcore.papers.cognitive.verdicts import verdicts as verdicts

attach(__name__)
