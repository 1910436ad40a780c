"""A study's configuration, its steps and its folder."""

from mechcore.study.config import DataConfig, ModelConfig, RunConfig
from mechcore.study.run import run

__all__ = ["DataConfig", "ModelConfig", "RunConfig", "run"]
