"""Release archives from anyone: read strictly, verified before anything is unpacked.

`gzipped`, `ustar` and `reader` are the archive's bytes, `names` its names; `head` is what it begins with, `authority`
whether the anchor vouches for that, `members` everything behind it, `contents` and `checkout` what it is about,
`unpacking` where it goes, and `verify` the order of it all.
"""

from mint2m_verify.bundle.verify import BundleQuestion, verify_bundle

__all__ = ["BundleQuestion", "verify_bundle"]
