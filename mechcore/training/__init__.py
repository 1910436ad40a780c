"""Fine-tuning of Hugging Face models with checkpoints, a history of accuracies, and resumption.

A run's folder holds ``step-0200/``, ..., ``final/``, ``history.json`` and ``training.json``.
"""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.training.fresh import new_model as new_model
    from mechcore.training.objectives import Objective as Objective
    from mechcore.training.objectives import accuracies as accuracies
    from mechcore.training.objectives import answering as answering
    from mechcore.training.objectives import classification as classification
    from mechcore.training.run import train as train
    from mechcore.training.run_folder import HISTORY_FILE as HISTORY_FILE
    from mechcore.training.run_folder import SETTINGS_FILE as SETTINGS_FILE
    from mechcore.training.run_folder import STATE_FOLDER as STATE_FOLDER
    from mechcore.training.run_folder import best_step as best_step
    from mechcore.training.run_folder import checkpoint_path as checkpoint_path
    from mechcore.training.run_folder import read_history as read_history
    from mechcore.training.settings import PRESETS as PRESETS
    from mechcore.training.settings import TrainSettings as TrainSettings
    from mechcore.training.settings import train_settings as train_settings

attach(__name__)
