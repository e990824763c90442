"""Examples with labels: well-known sets, one's own files, and densities that are known exactly."""

from infocnf.data.catalogue import CATALOGUE, kind_of, load_data
from infocnf.data.dataset import Dataset, Preparation, Raw, spread_over

__all__ = ["CATALOGUE", "Dataset", "Preparation", "Raw", "kind_of", "load_data", "spread_over"]
