"""Models: flows with a partitioned, conditional code."""

from infocnf.models.codes import Code
from infocnf.models.conditional import InfoCNF
from infocnf.models.factors import Categorical, Real
from infocnf.models.latent_ode import LatentODE
from infocnf.models.loading import load

__all__ = ["Categorical", "Code", "InfoCNF", "LatentODE", "Real", "load"]
