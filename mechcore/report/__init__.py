"""Figures and the report page of a finished run; computes nothing new."""

from typing import TYPE_CHECKING

from mechcore._lazy import attach

if TYPE_CHECKING:
    from mechcore.report import ablation_figures as ablation_figures
    from mechcore.report import ablation_tables as ablation_tables
    from mechcore.report import about as about
    from mechcore.report import attention_views as attention_views
    from mechcore.report import component_figures as component_figures
    from mechcore.report import figures as figures
    from mechcore.report import groups as groups
    from mechcore.report import subnetwork_figures as subnetwork_figures
    from mechcore.report.blocks import AS_FIGURE as AS_FIGURE
    from mechcore.report.blocks import Block as Block
    from mechcore.report.blocks import Command as Command
    from mechcore.report.blocks import Drawing as Drawing
    from mechcore.report.blocks import Paragraph as Paragraph
    from mechcore.report.blocks import Section as Section
    from mechcore.report.blocks import Shown as Shown
    from mechcore.report.blocks import Table as Table
    from mechcore.report.blocks import Tile as Tile
    from mechcore.report.blocks import View as View
    from mechcore.report.blocks import missing as missing
    from mechcore.report.blocks import table_of as table_of
    from mechcore.report.page import REPORT_FILE as REPORT_FILE
    from mechcore.report.page import build_report as build_report
    from mechcore.report.run_folder import SINGLE as SINGLE
    from mechcore.report.run_folder import RunFolder as RunFolder

attach(__name__)
