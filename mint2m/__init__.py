"""The command line of mint2m: thin. Each command takes typed arguments, makes one library call, returns one outcome."""

from mint2m_verify import __version__

__all__ = ["__version__"]
