"""A study's configuration, its units of work, the store that keeps them, and its results."""

from mechcore.steps.config import (
    AblationConfig,
    Analyses,
    DataConfig,
    HeadsConfig,
    ModelConfig,
    Resources,
    SearchConfig,
    SizesConfig,
    StudyConfig,
)
from mechcore.steps.config_file import read_config
from mechcore.study.run import prepare, run

__all__ = [
    "AblationConfig",
    "Analyses",
    "DataConfig",
    "HeadsConfig",
    "ModelConfig",
    "Resources",
    "SearchConfig",
    "SizesConfig",
    "StudyConfig",
    "prepare",
    "read_config",
    "run",
]
