"""Neural networks: the fields of continuous flows."""

from infocnf.networks.fields import ConvField, DenseField

__all__ = ["ConvField", "DenseField"]
