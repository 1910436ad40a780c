"""Fine-tuning of Hugging Face models with checkpoints, a history of accuracies, and resumption.

One loop, that of `transformers.Trainer`, serves both kinds of model: a classifier learns the label
of its examples, a causal language model learns to continue a prompt with the answer of the label
(the loss is on the answer token alone). Checkpoints are ordinary Hugging Face directories.

A run's folder holds ``step-0200/``, ``step-0400/``, ..., ``final/``, ``history.json`` and
``training.json`` (what was trained on what, and how); while it is trained also ``state/``, from
which an interrupted run goes on.
"""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.training.fresh import new_model
    from mechcore.training.history import HISTORY_FILE, best_step, read_history
    from mechcore.training.objectives import Objective, accuracies, answering, classification
    from mechcore.training.run import train, train_answering, train_classifier
    from mechcore.training.run_folder import SETTINGS_FILE, STATE_FOLDER, checkpoint_path
    from mechcore.training.settings import PRESETS, TrainSettings, train_settings

attach(__name__)

__all__ = [
    "HISTORY_FILE",
    "PRESETS",
    "SETTINGS_FILE",
    "STATE_FOLDER",
    "Objective",
    "TrainSettings",
    "accuracies",
    "answering",
    "best_step",
    "checkpoint_path",
    "classification",
    "new_model",
    "read_history",
    "train",
    "train_answering",
    "train_classifier",
    "train_settings",
]
