"""The papers of what the workers run: lock, SBOM and provenance of an image, and how they hold together."""
