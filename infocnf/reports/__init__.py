"""Pictures and pages for people: samples, curves, confusion, counterfactuals, a report."""

from infocnf.reports.page import write_report
from infocnf.reports.samples import class_grid, counterfactual_grid, draw_samples

__all__ = ["class_grid", "counterfactual_grid", "draw_samples", "write_report"]
