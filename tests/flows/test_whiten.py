"""Whitened patches against moments, autograd and the Gaussian they stand for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal
from torch.nn import functional as F  # noqa: N812

from infocnf import InfoCNF
from infocnf.flows import Squeeze, Traversal
from infocnf.flows.architectures import fit_marginals, fit_whitening
from infocnf.flows.gaussianise import Gaussianise, pixel_tables
from infocnf.flows.whiten import Whiten
from infocnf.models.readout import data_end
from infocnf.networks.unet import Thresholds
from infocnf.tolerances import Fixed

WAY = Traversal(Fixed())


def correlated(count: int = 300) -> Tensor:
    """Images whose four channels are nearly alike, and of different size."""
    common, own = torch.randn(count, 1, 3, 2), torch.randn(count, 4, 3, 2)
    return (common + 0.05 * own) * torch.tensor([1.0, 2.0, 0.5, 1.0])[:, None, None]


def levels(count: int = 400) -> Tensor:
    """Grey levels 0 .. 4 of images of 4x4 pixels, smooth ones."""
    generator = torch.Generator().manual_seed(0)
    rough = torch.randn(count, 1, 4, 4, generator=generator)
    smooth = F.avg_pool2d(F.pad(rough, (1, 1, 1, 1), mode="replicate"), 3, 1)
    return ((smooth + 1.0) * 2.5).clamp(0, 4).long()


def model_of(data: Tensor) -> tuple[InfoCNF, Tensor]:
    """A flow that whitens, fitted to grey levels, and these as it reads them."""
    arguments = {"architecture": "unet", "hidden": (8, 8), "blocks": 1, "marginals": 5}
    model = InfoCNF(tuple(data.shape[1:]), supervised=0.0, whiten=True, **arguments).eval()
    fit_marginals(model.flow, *pixel_tables(data, 5))
    x = (data + torch.rand(data.shape)) / 5
    fit_whitening(model.flow, x)
    return model, x


def test_whitened_channels_have_no_correlation_and_variance_one() -> None:
    x, whiten = correlated(), Whiten(4)
    whiten.fit(x)
    rows = whiten(x, WAY)[0].movedim(1, -1).flatten(0, 2)
    torch.testing.assert_close(rows.t() @ rows / len(rows), torch.eye(4), atol=1e-9, rtol=0)


def test_its_determinant_is_that_of_the_jacobian_and_its_inverse_undoes_it() -> None:
    x, whiten = correlated(), Whiten(4)
    whiten.fit(x)
    z, log_det = whiten(x[:2], WAY)
    torch.testing.assert_close(whiten.inverse(z, WAY), x[:2])
    jacobian = torch.autograd.functional.jacobian(lambda a: whiten(a[None], WAY)[0][0], x[0])
    truth = torch.linalg.slogdet(jacobian.reshape(24, 24))[1]
    torch.testing.assert_close(log_det, truth.expand(2))


def test_a_channel_that_never_changes_stays_finite() -> None:
    x, whiten = correlated(), Whiten(4)
    x[:, 2] = 0.0
    whiten.fit(x)
    z, log_det = whiten(x, WAY)
    assert z.isfinite().all() and log_det.isfinite().all()
    torch.testing.assert_close(whiten.inverse(z, WAY), x)


def test_a_fresh_flow_has_the_likelihood_of_gaussian_patches() -> None:
    model, x = model_of(levels())
    gaussianise, squeeze, _ = model.flow.single[0]
    assert isinstance(gaussianise, Gaussianise) and isinstance(squeeze, Squeeze)
    z, slope = gaussianise(x, WAY)
    patches = squeeze(z, WAY)[0].movedim(1, -1).flatten(1, 2)  # (count, places, 4)
    moments = torch.einsum("npi,npj->ij", patches, patches) / (len(x) * patches.shape[1])
    truth = MultivariateNormal(torch.zeros(4), moments).log_prob(patches).sum(1) + slope
    torch.testing.assert_close(model.log_prob(x, tolerance=1e-9), truth, atol=1e-6, rtol=0)


def test_the_field_is_told_of_pixels_and_not_of_their_mixtures() -> None:
    data = levels()
    model, x = model_of(data)
    thresholds = model.flow.single[1].matched_field.thresholds
    assert isinstance(thresholds, Thresholds)
    t = torch.zeros(1, 1, 1, 1)
    told = thresholds(data_end(model, x), t, t + 1.0).unflatten(1, thresholds.values.shape[:2])
    for level, seen in zip((1, 2, 3, 4), told.unbind(1), strict=True):
        assert torch.equal(seen > 0, F.pixel_unshuffle(data, 2) >= level)


def test_only_marginals_of_images_can_be_whitened() -> None:
    with pytest.raises(ValueError, match="whiten needs architecture 'unet' and marginals"):
        InfoCNF((1, 4, 4), architecture="unet", hidden=(8,), whiten=True)
    with pytest.raises(ValueError, match="build it with whiten=True"):
        fit_whitening(InfoCNF((1, 4, 4), architecture="unet", hidden=(8,)).flow, torch.zeros(1))
