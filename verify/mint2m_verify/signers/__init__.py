"""Makes signatures: by key files, by hardware and cloud keys, by certificates, and by a private root of one's own.

The rule: nothing here decides what a signature is worth. Every signer writes Sigstore bundles v0.3 that other people's
verifiers read, and whoever verifies brings the key, the policy or the root by which they count.
"""
