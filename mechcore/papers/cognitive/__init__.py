"""Fine-tuned or trained from scratch: one cognitive task, learned in two ways, compared.

The study of arXiv 2406.18926; `mechcore reproduce cognitive` does all of it.
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
