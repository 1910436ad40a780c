"""A study's configuration, its units of work, the store that keeps them, and its results."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.study.config import (
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
    from mechcore.study.config_file import read_config
    from mechcore.study.run import prepare, run

attach(__name__)

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
