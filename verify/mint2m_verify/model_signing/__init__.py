"""OpenSSF model_signing v1.0, key mode: signatures of a directory's files that other people's tools check, and theirs.

The rule: such a signature says which files there were and who signed the list; it says nothing of a run, so no policy
of ours is ever satisfied by one. Format: https://model_signing/signature/v1.0, as written by model_signing 1.1.1.
"""

from mint2m_verify.model_signing.check import verify_model
from mint2m_verify.model_signing.making import sign_and_verify, sign_model

__all__ = ["sign_and_verify", "sign_model", "verify_model"]
