"""Models: flows and latent ODEs with a partitioned, conditional code."""

from infocnf.models.base import PartitionedModel
from infocnf.models.code import Code
from infocnf.models.factors import Categorical, Real
from infocnf.models.infocnf import InfoCNF
from infocnf.models.latent_ode import LatentODE
from infocnf.models.pretrained import load

__all__ = ["Categorical", "Code", "InfoCNF", "LatentODE", "PartitionedModel", "Real", "load"]
