"""Selection and sparse attention: the interface, the torch reference that defines the right result, and fast paths.

Legend of this package: T queries, S rows, H heads, D row width, R value width (the latent part of a row),
K kept rows a query.

`interface` says what kernels do and which bits a score has; `reference` does it in plain torch; `cpu` compiles it for
the processor over `lanes`; `triton_gpu` for CUDA; `choose` takes one of them. Neither numba nor Triton is imported
before it is chosen.
"""

from mint2m_trainer.kernels.choose import choose_kernels, compile_cache
from mint2m_trainer.kernels.interface import Candidates, KernelError, Kernels, KeyBlock
from mint2m_trainer.kernels.reference import TorchKernels

__all__ = ["Candidates", "KernelError", "Kernels", "KeyBlock", "TorchKernels", "choose_kernels", "compile_cache"]
