"""Selection and sparse attention: the interface, and the torch reference that defines the right result.

Legend of this package: T queries, S rows, H heads, D row width, R value width (the latent part of a row),
K kept rows a query.
"""

from mint2m_trainer.kernels.attention import SparseAttention
from mint2m_trainer.kernels.interface import Candidates, KernelError, Kernels, KeyBlock
from mint2m_trainer.kernels.reference import TorchKernels

__all__ = ["Candidates", "KernelError", "Kernels", "KeyBlock", "SparseAttention", "TorchKernels"]
